package nacos

import (
	"encoding/json"
	"hash/maphash"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/testing/protocmp"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher/registry"
)

// NAC-13: what an instance becomes.
func TestNAC13Instance(t *testing.T) {
	plain := func(change func(*registry.Instance)) []registry.Instance {
		in := registry.Instance{ID: "10.0.0.1#8080", Address: "10.0.0.1", Port: 8080, Health: registryv1.Health_HEALTH_HEALTHY, Weight: 100, Metadata: map[string]string{"cluster": "DEFAULT"}}
		if change != nil {
			change(&in)
		}
		return []registry.Instance{in}
	}
	for name, c := range map[string]struct {
		hosts []any
		want  []registry.Instance
	}{
		"none":         {nil, nil},
		"plain":        {[]any{at("10.0.0.1")}, plain(nil)},
		"disabled":     {[]any{at("10.0.0.1", "enabled", false)}, nil},
		"unhealthy":    {[]any{at("10.0.0.1", "healthy", false)}, plain(func(in *registry.Instance) { in.Health = registryv1.Health_HEALTH_UNHEALTHY })},
		"weight 0.5":   {[]any{at("10.0.0.1", "weight", 0.5)}, plain(func(in *registry.Instance) { in.Weight = 50 })},
		"weight 0.001": {[]any{at("10.0.0.1", "weight", 0.001)}, plain(func(in *registry.Instance) { in.Weight = 1 })},
		"weight 0.125": {[]any{at("10.0.0.1", "weight", 0.125)}, plain(func(in *registry.Instance) { in.Weight = 13 })},
		"weight 1e30":  {[]any{at("10.0.0.1", "weight", 1e30)}, plain(func(in *registry.Instance) { in.Weight = 1000000 })},
		"weight 0": {[]any{at("10.0.0.1", "weight", 0)}, plain(func(in *registry.Instance) {
			in.Weight, in.Health = 1, registryv1.Health_HEALTH_DRAINING
		})},
		"unhealthy with weight 0": {[]any{at("10.0.0.1", "weight", 0, "healthy", false)}, plain(func(in *registry.Instance) {
			in.Weight, in.Health = 1, registryv1.Health_HEALTH_UNHEALTHY
		})},
		"cluster": {[]any{at("10.0.0.1", "clusterName", "hz", "metadata", map[string]string{"cluster": "x"})}, plain(func(in *registry.Instance) { in.Metadata["cluster"] = "hz" })},
		"locality": {[]any{at("10.0.0.1", "metadata", map[string]string{"region": "cn", "zone": "hz", "subzone": "b"})}, plain(func(in *registry.Instance) {
			in.Metadata["region"], in.Metadata["zone"], in.Metadata["subzone"] = "cn", "hz", "b"
			in.Locality = &registryv1.Locality{Region: "cn", Zone: "hz", SubZone: "b"}
		})},
		"second port": {[]any{at("10.0.0.1", "metadata", map[string]string{"gRPC_port": "9090"})}, plain(func(in *registry.Instance) {
			in.Metadata["gRPC_port"] = "9090"
			in.Named = []registry.NamedPort{{Name: "grpc", Number: 9090, Protocol: "grpc"}}
		})},
		"second port, broken": {[]any{at("10.0.0.1", "metadata", map[string]string{"gRPC_port": "x"})}, plain(func(in *registry.Instance) { in.Metadata["gRPC_port"] = "x" })},
		"preserved": {[]any{at("10.0.0.1", "metadata", map[string]string{"preserved.register.source": "SPRING_CLOUD", "version": "v1"})}, plain(func(in *registry.Instance) {
			in.Metadata["version"] = "v1"
		})},
		"the same address in two clusters": {[]any{at("10.0.0.1", "clusterName", "a", "healthy", false), at("10.0.0.1", "clusterName", "c"), at("10.0.0.1", "clusterName", "b")}, plain(func(in *registry.Instance) { in.Metadata["cluster"] = "b" })},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := json.Marshal(c.hosts)
			if err != nil {
				t.Fatal(err)
			}
			got, leftOut, err := instances(b)
			if err != nil || len(leftOut) > 0 {
				t.Fatalf("%v, left out %v", err, leftOut)
			}
			if diff := cmp.Diff(c.want, got, protocmp.Transform(), cmp.Transformer("none", func(all []registry.Instance) []registry.Instance {
				return slices.Clip(append([]registry.Instance{}, all...))
			})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	_, leftOut, err := instances(json.RawMessage(`[{"ip":"10.0.0.1","port":0},{"ip":"","port":80},{"ip":"10.0.0.1","port":70000}]`))
	if err != nil || len(leftOut) != 3 {
		t.Errorf("%v, left out %v", err, leftOut)
	}
	if _, _, err := instances(json.RawMessage(`[{"ip":1}]`)); err == nil {
		t.Error("an address that is no text was taken")
	}
}

// NAC-14: hosts and object names.
func TestNAC14Host(t *testing.T) {
	cfg, err := Config{Addresses: []string{"nacos.example"}, Namespace: "Team_A.dev"}.resolve()
	if err != nil {
		t.Fatal(err)
	}
	if cfg.ObjectNamespace != "team-a-dev" || cfg.Identity() != "namespace Team_A.dev, groups DEFAULT_GROUP" {
		t.Errorf("namespace %s, identity %s", cfg.ObjectNamespace, cfg.Identity())
	}
	for of, want := range map[serviceID][2]string{
		{DefaultGroup, "web"}: {"web", "web.DEFAULT-GROUP.Team-A.dev.nacos"},
		{"g", "web"}:          {"g@@web", "web.g.Team-A.dev.nacos"},
		{DefaultGroup, "providers:com.x.Hello:1.0:g"}:      {"providers:com.x.Hello:1.0:g", "providers-com.x.Hello-1.0-g.DEFAULT-GROUP.Team-A.dev.nacos"},
		{DefaultGroup, strings.Repeat("a", 64)}:            {strings.Repeat("a", 64), ""},
		{DefaultGroup, strings.Repeat("a.", 125) + "aaaa"}: {strings.Repeat("a.", 125) + "aaaa", ""},
	} {
		v := cfg.convert(of, nil)
		host, err := registry.Host(v.Host)
		if v.Name != want[0] || host != want[1] || (err != nil) != (want[1] == "") {
			t.Errorf("%v: %s, %s, %v", of, v.Name, host, err)
		}
	}
	if v := cfg.convert(id("a b"), nil); v.Origin != "http://nacos.example:8848/nacos/#/serviceDetail?groupName=DEFAULT_GROUP&name=a+b&namespaceId=Team_A.dev" {
		t.Errorf("origin %s", v.Origin)
	}
}

// NAC-15: a server's word about health counts; if it cannot be trusted, that is reported.
func TestNAC15ProtectThreshold(t *testing.T) {
	s := newScripted(t)
	s.set(id("web"), at("10.0.0.1"), at("10.0.0.2", "healthy", false))
	o := follow(t, Config{Addresses: []string{s.address()}}, quick())
	o.awaitEndpoints(t, "web", "10.0.0.1", "10.0.0.2 unhealthy")
	s.lose(id("web"), at("10.0.0.1"), at("10.0.0.2"))
	s.mu.Lock()
	i := s.services[id("web")]
	i.Protected = true
	s.services[id("web")] = i
	s.mu.Unlock()
	o.awaitEndpoints(t, "web", "10.0.0.1", "10.0.0.2")
	o.awaitTrue(t, "a warning", func() bool { return strings.Contains(o.told(), "health unknown") })
	s.set(id("web"), at("10.0.0.1"), at("10.0.0.2", "healthy", false))
	o.awaitEndpoints(t, "web", "10.0.0.1", "10.0.0.2 unhealthy")
	o.await(t, "problems", "", o.told)
}

// An instance without a valid port is left out and reported; the others are there. An
// answer that cannot be read changes nothing.
func TestBadInstances(t *testing.T) {
	s := newScripted(t)
	s.set(id("web"), at("10.0.0.1"), at("10.0.0.2", "port", 70000))
	o := follow(t, Config{Addresses: []string{s.address()}}, quick())
	o.awaitEndpoints(t, "web", "10.0.0.1")
	if got := o.told(); !strings.Contains(got, "1 instances without an address or a valid port are left out: 10.0.0.2:70000") {
		t.Errorf("problems: %s", got)
	}
	s.set(id("web"), at("10.0.0.3"), at("10.0.0.2", "metadata", map[string]any{"a": 1}))
	o.awaitTrue(t, "a report", func() bool {
		return strings.Contains(o.told(), "service web cannot be read: its instances cannot be read")
	})
	o.awaitEndpoints(t, "web", "10.0.0.1")
	for _, ds := range o.problems {
		if len(ds) > 0 && ds[0].Severity != problem.Error {
			t.Errorf("%v", ds)
		}
	}
	s.set(id("web"), at("10.0.0.3"))
	o.awaitEndpoints(t, "web", "10.0.0.3")
	o.await(t, "problems", "", o.told)
}

// NAC-4: messages are those of nacos_grpc_service.proto.
func TestNAC4Payload(t *testing.T) {
	p := payload{kind: "A", clientIP: "10.0.0.1", headers: map[string]string{"k": "v"}, body: []byte("{}")}
	want := []byte("\x12\x15\x1a\x01A\x3a\x06\x0a\x01k\x12\x01v\x42\x0810.0.0.1\x1a\x04\x12\x02{}")
	if got := p.encode(); string(got) != string(want) {
		t.Errorf("encoded %q, want %q", got, want)
	}
	// Fields that are not used are skipped.
	var got payload
	if err := got.decode(protowire.AppendVarint(protowire.AppendTag(want, 9, protowire.VarintType), 1)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(p, got, cmp.AllowUnexported(payload{})); diff != "" {
		t.Errorf("decoded (-want +got):\n%s", diff)
	}
	for _, broken := range []string{"\x12", "\x12\x05\x1a", "\x12\x03\x1a\x05A", "\xff", "\x48"} {
		if err := new(payload).decode([]byte(broken)); err == nil {
			t.Errorf("%q was decoded", broken)
		}
	}
}

// NAC-1: gRPC is on the port that is 1000 higher.
func TestNAC1Server(t *testing.T) {
	for address, want := range map[string]server{
		"nacos":               {"http://nacos:8848", "nacos:9848", false},
		"10.0.0.1:80":         {"http://10.0.0.1:80", "10.0.0.1:1080", false},
		"https://nacos:443":   {"https://nacos:443", "nacos:1443", false},
		"[::1]:8848":          {"http://[::1]:8848", "[::1]:9848", false},
		"[::1]":               {"http://[::1]:8848", "[::1]:9848", false},
		"":                    {},
		"nacos:65000":         {},
		"nacos:x":             {},
		"tcp://nacos":         {},
		"nacos/nacos":         {},
		"http://nacos:8848/x": {},
		"user@nacos:8848":     {},
	} {
		got, err := parseServer(address, false)
		if got != want || (err != nil) != (want == server{}) {
			t.Errorf("%s: %+v, %v", address, got, err)
		}
	}
}

// An answer whose instances are in another order is unchanged, and is found so without
// decoding them.
func TestElements(t *testing.T) {
	for array, want := range map[string][]string{
		`[]`: nil, `null`: nil, ``: nil, ` [ ] `: nil,
		`[1]`:         {`1`},
		"[\n 1 , 2 ]": {`1`, `2`},
		`[{"a":[1,{"b":2}],"c":"]},\\\"{"},{"d":"\\\\"},[3,4],"x,y"]`: {`{"a":[1,{"b":2}],"c":"]},\\\"{"}`, `{"d":"\\\\"}`, `[3,4]`, `"x,y"`},
	} {
		var got []string
		for e := range elements([]byte(array)) {
			got = append(got, string(e))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", array, got, want)
		}
	}
	r := &run{Watcher: &Watcher{seed: maphash.MakeSeed()}}
	a, b := r.sum(json.RawMessage(`[{"ip":"1"},{"ip":"2"}]`)), r.sum(json.RawMessage(`[{"ip":"2"},{"ip":"1"}]`))
	if a == 0 || a != b || a == r.sum(json.RawMessage(`[{"ip":"1"},{"ip":"3"}]`)) || r.sum(json.RawMessage(`[]`)) != 0 {
		t.Errorf("sums %d and %d", a, b)
	}
}
