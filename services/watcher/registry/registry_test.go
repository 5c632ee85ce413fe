package registry_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	networking "istio.io/api/networking/v1alpha3"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher/registry"
)

func instances(n int, port uint32) []registry.Instance {
	var all []registry.Instance
	for i := range n {
		address := fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)
		all = append(all, registry.Instance{ID: address + ":" + fmt.Sprint(port), Address: address, Port: port})
	}
	return all
}

func service(all ...registry.Instance) *registry.Service {
	return &registry.Service{Namespace: "consul", Name: "web", Host: "web.service.consul", Instances: all}
}

// convert returns a service's objects by kind and name, which all must be valid, and its
// problems.
func convert(t *testing.T, s registry.Settings, v *registry.Service) (map[string]any, []problem.Diagnostic) {
	t.Helper()
	objects, ds := s.Convert(v)
	all := map[string]any{}
	for _, o := range objects {
		k, _ := kind.ByName(o.Kind)
		m, err := k.Decode(o.Value.Type, o.Value.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range k.Validate(o.Namespace, m) {
			if d.Severity == problem.Error {
				t.Errorf("%s %s is invalid: %v", o.Kind, o.Name, &d)
			}
		}
		all[o.Kind+" "+o.Name] = m
	}
	return all, ds
}

func TestREG1TwoForms(t *testing.T) {
	ip, name := registry.Instance{ID: "1", Address: "10.0.0.1", Port: 8080}, registry.Instance{ID: "2", Address: "vm.example", Port: 8081}
	var catalog registry.Catalog
	set := func(v *registry.Service) string {
		objects, _ := (&registry.Settings{Protocol: "http"}).Convert(v)
		var said []string
		for _, o := range catalog.Set(v, objects) {
			word := "put"
			if o.Delete {
				word = "delete"
			}
			said = append(said, word+" "+o.Kind+" "+o.Name)
		}
		return strings.Join(said, ", ")
	}
	if got, want := set(service(ip)), "put Service web, put EndpointSlice web#"; got != want {
		t.Errorf("addresses: %s, want %s", got, want)
	}
	if got, want := set(service(ip, name)), "put ServiceEntry web, delete Service web, delete EndpointSlice web#"; got != want {
		t.Errorf("a host name: %s, want %s", got, want)
	}
	if got := catalog.Counts(); got != (registry.Counts{Services: 1, Instances: 2}) {
		t.Errorf("counts %+v", got)
	}
	if got := catalog.Remove("consul", "web"); len(got) != 1 || got[0].Kind != "ServiceEntry" || catalog.Counts() != (registry.Counts{}) {
		t.Errorf("removed %v, counts %+v", got, catalog.Counts())
	}

	all, _ := convert(t, registry.Settings{Protocol: "http"}, service(ip, name))
	e := all["ServiceEntry web"].(*networking.ServiceEntry)
	if e.GetResolution() != networking.ServiceEntry_DNS || len(e.GetEndpoints()) != 2 || e.GetEndpoints()[1].GetPorts()["http-8080"] != 8081 {
		t.Errorf("%v", e)
	}
	outside := service(ip)
	outside.External = true
	all, _ = convert(t, registry.Settings{}, outside)
	if e := all["ServiceEntry web"].(*networking.ServiceEntry); e.GetLocation() != networking.ServiceEntry_MESH_EXTERNAL || e.GetResolution() != networking.ServiceEntry_STATIC {
		t.Errorf("%v", e)
	}
}

// REG-3: the set decides which slices there are, whatever the order and history; a
// changed instance changes one slice, and no slice has more than 100.
func TestREG3Slices(t *testing.T) {
	var s registry.Settings
	for _, n := range []int{0, 1, 100, 101, 5000} {
		all := instances(n, 80)
		objects, _ := s.Convert(service(all...))
		shuffled := slices.Clone(all)
		rand.New(rand.NewPCG(1, 2)).Shuffle(n, func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		again, _ := s.Convert(service(shuffled...))
		if diff := cmp.Diff(objects, again); diff != "" {
			t.Errorf("%d instances in another order: %s", n, diff)
		}
		names, endpoints := map[string]bool{}, 0
		for _, o := range objects[1:] {
			k, _ := kind.ByName(o.Kind)
			m, err := k.Decode(o.Value.Type, o.Value.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			size := len(m.(*registryv1.Endpoints).GetEndpoints())
			if size > 100 || size == 0 || names[o.Name] {
				t.Errorf("%d instances: slice %s has %d endpoints", n, o.Name, size)
			}
			names[o.Name], endpoints = true, endpoints+size
		}
		if endpoints != n || n > 0 && n <= 100 && !names["web#"] {
			t.Errorf("%d instances: %d endpoints in %v", n, endpoints, names)
		}
		if n == 0 {
			continue
		}
		all[n/2].Health = registryv1.Health_HEALTH_UNHEALTHY
		changed, _ := s.Convert(service(all...))
		differ := 0
		for i := range changed {
			if !slices.Equal(changed[i].Value.Bytes, objects[i].Value.Bytes) {
				differ++
			}
		}
		if differ != 1 {
			t.Errorf("%d instances: one changed, and %d objects differ", n, differ)
		}
	}
}

func portsOf(m any) string {
	var all []string
	for _, p := range m.(*registryv1.Service).GetPorts() {
		all = append(all, strings.TrimSuffix(fmt.Sprintf("%d %s %s", p.GetNumber(), p.GetName(), p.GetAppProtocol()), " "))
	}
	return strings.Join(all, ", ")
}

func TestREG4Ports(t *testing.T) {
	of := func(ports ...uint32) *registry.Service {
		v := service()
		for i, p := range ports {
			v.Instances = append(v.Instances, registry.Instance{ID: fmt.Sprint(i), Address: "10.0.0.1", Port: p})
		}
		return v
	}
	multi := of(8080, 8080)
	multi.Instances[0].Named = []registry.NamedPort{{Name: "metrics", Number: 9090}}
	multi.Instances[1].Named = []registry.NamedPort{{Name: "metrics", Number: 9090}, {Name: "api", Number: 7000, Protocol: "grpc"}}
	clash := of(9090)
	clash.Instances[0].Named = []registry.NamedPort{{Name: "metrics", Number: 9090}}
	for name, c := range map[string]struct {
		settings registry.Settings
		service  *registry.Service
		want     string
		warns    string
	}{
		"one port":     {registry.Settings{}, of(8080, 8080), "8080 port-8080", ""},
		"two ports":    {registry.Settings{Protocol: "http"}, of(8081, 8080), "8080 http-8080, 8081 http-8081", ""},
		"the setting":  {registry.Settings{Protocol: "http", Ports: []registry.PortRule{{"w*", 80}, {"*", 90}}}, of(8080, 8081), "80 http", ""},
		"many ports":   {registry.Settings{Protocol: "http"}, of(1, 2, 3, 4, 5, 6, 7, 8, 9), "80 http", "the instances have 9 different ports: clients call port 80"},
		"named ports":  {registry.Settings{Protocol: "http"}, multi, "7000 api grpc, 8080 http, 9090 metrics", ""},
		"no instances": {registry.Settings{}, of(), "", ""},
		"one number":   {registry.Settings{}, clash, "9090 port-9090", `port "metrics" has the number 9090, which another port of the service has: it is left out`},
	} {
		t.Run(name, func(t *testing.T) {
			all, ds := convert(t, c.settings, c.service)
			if got := portsOf(all["Service web"]); got != c.want {
				t.Errorf("ports %s, want %s", got, c.want)
			}
			warns := ""
			for _, d := range ds {
				warns += d.Reason
			}
			if warns != c.warns {
				t.Errorf("problems %q, want %q", warns, c.warns)
			}
		})
	}
	all, _ := convert(t, registry.Settings{}, multi)
	got := all["EndpointSlice web#"].(*registryv1.Endpoints).GetEndpoints()[1].GetPorts()
	if diff := cmp.Diff(map[string]uint32{"": 8080, "metrics": 9090, "api": 7000}, got); diff != "" {
		t.Errorf("ports of an endpoint (-want +got):\n%s", diff)
	}
}

func TestREG5Hosts(t *testing.T) {
	long := strings.Repeat("a", 63)
	for name, want := range map[string]string{
		"Web.service.consul":                  "Web.service.consul",
		"a_b.c":                               "a-b.c",
		"providers:com.x.Hello:1.0:g.G.nacos": "providers-com.x.Hello-1.0-g.G.nacos",
		"-a-..b.":                             "a.b",
		"a.DEFAULT_GROUP.public.nacos":        "a.DEFAULT-GROUP.public.nacos",
		"日本.x":                                "x",
		long + ".x":                           long + ".x",
	} {
		if got, err := registry.Host(name); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", name, got, err, want)
		}
	}
	for _, name := range []string{"", "日本", "...", long + "a.x", strings.Repeat(long+".", 4) + "aa"} {
		if got, err := registry.Host(name); err == nil {
			t.Errorf("%s: %s, want an error", name, got)
		}
	}
	v := service(instances(1, 80)...)
	v.Host = long + "a"
	if objects, ds := (&registry.Settings{}).Convert(v); len(objects) > 0 || len(ds) != 1 || ds[0].Severity != problem.Error {
		t.Errorf("%v, %v", objects, ds)
	}
}

func TestREG6Labels(t *testing.T) {
	v := service(registry.Instance{ID: "1", Address: "10.0.0.1", Port: 80, Metadata: map[string]string{
		"version": "v1", "example.com/team": "a", "empty": "", "a b": "x", "c": "not a label", "security.istio.io/tlsMode": "istio",
	}})
	all, ds := convert(t, registry.Settings{}, v)
	e := all["EndpointSlice web#"].(*registryv1.Endpoints).GetEndpoints()[0]
	want := map[string]string{"version": "v1", "example.com/team": "a", "empty": "", "security.istio.io/tlsMode": "istio"}
	if diff := cmp.Diff(want, e.GetLabels()); diff != "" || !e.GetMutualTls() {
		t.Errorf("mutual TLS %t, labels (-want +got):\n%s", e.GetMutualTls(), diff)
	}
	if len(ds) != 1 || ds[0].Severity != problem.Info || !strings.HasPrefix(ds[0].Reason, "2 entries") {
		t.Errorf("problems %v", ds)
	}
}

func TestREG7Protocol(t *testing.T) {
	of := func(words ...string) *registry.Service {
		v := service()
		for i, w := range words {
			v.Instances = append(v.Instances, registry.Instance{ID: fmt.Sprint(i), Address: "10.0.0.1", Port: 80, Metadata: map[string]string{"protocol": w}})
		}
		return v
	}
	for words, want := range map[string]string{
		"": "80 http 0", "tri": "80 grpc 0", "triple": "80 grpc 0", "dubbo": "80 tcp 0", "GRPC": "80 grpc 0",
		"tcp grpc grpc": "80 grpc 1", "tcp grpc": "80 grpc 1", "soap": "80 http 1",
	} {
		all, ds := convert(t, registry.Settings{Protocol: "http"}, of(strings.Fields(words)...))
		got := portsOf(all["Service web"])
		if words == "" {
			all, ds = convert(t, registry.Settings{Protocol: "http"}, service(instances(1, 80)...))
			got = portsOf(all["Service web"])
		}
		if got = fmt.Sprintf("%s %d", got, len(ds)); got != want {
			t.Errorf("%s: %s, want %s", words, got, want)
		}
	}
}

func TestREG9Doubt(t *testing.T) {
	now := time.Unix(0, 0)
	full, empty := registry.Counts{Services: 100, Instances: 1000}, registry.Counts{}
	judge := func(d *registry.Doubt, c registry.Counts, after time.Duration) bool {
		now = now.Add(after)
		whole, again := d.Judge(c, now)
		if !whole && !again.After(now) {
			t.Errorf("in doubt, and to be listed again at %s, now is %s", again, now)
		}
		return whole
	}
	t.Run("a process that starts has no doubts", func(t *testing.T) {
		var d registry.Doubt
		d.Suspect("a new connection")
		if !judge(&d, empty, 0) {
			t.Error("doubted")
		}
	})
	t.Run("nothing is doubted without a reason", func(t *testing.T) {
		var d registry.Doubt
		d.Published(full)
		if !judge(&d, empty, 0) {
			t.Error("doubted")
		}
	})
	t.Run("small losses", func(t *testing.T) {
		var d registry.Doubt
		for _, c := range []registry.Counts{{90, 900}, {85, 900}} {
			d.Published(registry.Counts{Services: 100, Instances: 1000})
			d.Suspect("an error")
			if got, want := judge(&d, c, 0), c.Services == 90; got != want {
				t.Errorf("%+v: whole is %t", c, got)
			}
		}
	})
	t.Run("a second listing agrees", func(t *testing.T) {
		var d registry.Doubt
		d.Published(full)
		d.Suspect("an error")
		if judge(&d, empty, 0) || judge(&d, empty, 29*time.Second) || d.Reason() != "an error" {
			t.Error("not doubted for 30 s")
		}
		if !judge(&d, empty, time.Second) || d.Reason() != "" {
			t.Error("still doubted")
		}
	})
	t.Run("it fills again", func(t *testing.T) {
		var d registry.Doubt
		d.Published(full)
		d.Suspect("an error")
		if judge(&d, empty, 0) || judge(&d, registry.Counts{Services: 50, Instances: 300}, 30*time.Second) || judge(&d, registry.Counts{Services: 80, Instances: 700}, 30*time.Second) {
			t.Error("a growing listing was believed")
		}
		if !judge(&d, full, 30*time.Second) {
			t.Error("still doubted")
		}
	})
	t.Run("an error between the two", func(t *testing.T) {
		var d registry.Doubt
		d.Published(full)
		d.Suspect("an error")
		if judge(&d, empty, 0) {
			t.Error("believed")
		}
		d.Suspect("another error")
		if judge(&d, empty, 31*time.Second) || !judge(&d, empty, 31*time.Second) {
			t.Error("the second listing is of a connection that broke")
		}
	})
}

func TestREG11Gather(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := make(chan int)
		send := func(n int, every time.Duration) {
			go func() {
				for i := range n {
					<-time.After(every)
					in <- i + 1
				}
			}()
		}
		start := time.Now()
		send(3, time.Millisecond)
		if got := registry.Gather(t.Context(), in, 0); len(got) != 4 || time.Since(start) != 5*time.Millisecond {
			t.Errorf("%v after %s", got, time.Since(start))
		}
		start = time.Now()
		send(100, time.Millisecond)
		if got := registry.Gather(t.Context(), in, 0); len(got) < 49 || time.Since(start) != 50*time.Millisecond {
			t.Errorf("%d after %s", len(got), time.Since(start))
		}
		for len(registry.Gather(t.Context(), in, 0)) > 1 {
		}
	})
}

// An invalid service keeps what was good of it.
func TestInvalidServiceStays(t *testing.T) {
	var catalog registry.Catalog
	var s registry.Settings
	v := service(instances(1, 80)...)
	objects, _ := s.Convert(v)
	catalog.Set(v, objects)
	v.Host = ""
	objects, _ = s.Convert(v)
	if got := catalog.Set(v, objects); len(got) > 0 || catalog.Counts().Services != 1 {
		t.Errorf("%v, %+v", got, catalog.Counts())
	}
}

// An instance at an impossible address is left out and reported: a ServiceEntry with it
// would be invalid, and would take the place of the Service. A service that has no other
// instances keeps its last good objects.
func TestImpossibleAddresses(t *testing.T) {
	v := service(append(instances(2, 80), registry.Instance{ID: "x", Address: "no host", Port: 80}, registry.Instance{ID: "y", Address: "my_host", Port: 80})...)
	all, ds := convert(t, registry.Settings{Protocol: "http"}, v)
	if len(all) != 2 || all["Service web"] == nil || len(ds) != 1 || ds[0].Severity != problem.Warning || !strings.Contains(ds[0].Reason, `2 of 4 instances have an address that is neither an IP address nor a DNS name: ["no host" "my_host"]; they are left out`) {
		t.Errorf("%v, %v", all, ds)
	}
	for _, address := range []string{"", "10.0.0.300", "a..b", "-a", "a/b", strings.Repeat("a", 64)} {
		v := service(registry.Instance{ID: "x", Address: address, Port: 80})
		if objects, ds := (&registry.Settings{}).Convert(v); len(objects) > 0 || len(ds) != 1 || ds[0].Severity != problem.Error {
			t.Errorf("%q: %v, %v", address, objects, ds)
		}
	}
	v = service(registry.Instance{ID: "x", Address: "vm-1.example.", Port: 80})
	if all, ds := convert(t, registry.Settings{Protocol: "http"}, v); all["ServiceEntry web"] == nil || len(ds) > 0 {
		t.Errorf("%v, %v", all, ds)
	}
}

// A text that is not UTF-8 makes its service invalid, and is no empty object.
func TestNoUTF8(t *testing.T) {
	v := service(instances(1, 80)...)
	v.Instances[0].Node = "\xff"
	if objects, ds := (&registry.Settings{}).Convert(v); len(objects) > 0 || len(ds) != 1 || ds[0].Severity != problem.Error {
		t.Errorf("%v, %v", objects, ds)
	}
}
