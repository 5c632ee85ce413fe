package index_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networking "istio.io/api/networking/v1alpha3"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
)

// addresses returns the addresses of a service's port.
func addresses(pc *index.PushContext, id index.ServiceID, port uint32) string {
	var all []string
	for _, e := range pc.Read().Endpoints(id)[port] {
		all = append(all, fmt.Sprintf("%s:%d", e.Address, e.Port))
	}
	return strings.Join(all, " ")
}

func kubernetes(namespace, name string) index.ServiceID {
	return index.ServiceID{Namespace: namespace, Hostname: name + ".a.svc.cluster.local"}
}

func TestEPS3SlicesAreMerged(t *testing.T) {
	slice := func(name string, health registryv1.Health, ips ...string) Change {
		m := &registryv1.Endpoints{Service: "x", Ports: []*registryv1.EndpointPort{{Name: "http", Number: 8080}}}
		for _, ip := range ips {
			m.Endpoints = append(m.Endpoints, &registryv1.Endpoint{Addresses: []string{ip, "fd00::1"}, Health: health})
		}
		return Object("EndpointSlice", "a", name, m)
	}
	ready, unready := registryv1.Health_HEALTH_UNSPECIFIED, registryv1.Health_HEALTH_UNHEALTHY
	pc := PushContext(t,
		slice("x-1", unready, "10.0.0.3", "10.0.0.1"), slice("x-2", ready, "10.0.0.2", "10.0.0.1"),
		Service("a", "x", "80 http", "90 tcp"),
	)
	id := kubernetes("a", "x")
	if got := addresses(pc, id, 80); got != "10.0.0.1:8080 10.0.0.2:8080 10.0.0.3:8080" {
		t.Errorf("endpoints %s", got)
	}
	if got := addresses(pc, id, 90); got != "" {
		t.Errorf("endpoints of a port that no slice has: %s", got)
	}
	for i, want := range []index.Health{index.Healthy, index.Healthy, index.Unhealthy} {
		if e := pc.Read().Endpoints(id)[80][i]; e.Health != want || e.Weight != 1 {
			t.Errorf("%+v, want health %d", e, want)
		}
	}
}

func TestSVC12NotReadyAddresses(t *testing.T) {
	pc := PushContext(t,
		Object("Service", "a", "x", &registryv1.Service{
			Ports: []*registryv1.ServicePort{{Number: 80}}, PublishNotReadyAddresses: true,
		}),
		Object("EndpointSlice", "a", "x", &registryv1.Endpoints{
			Service: "x", Ports: []*registryv1.EndpointPort{{Number: 80}},
			Endpoints: []*registryv1.Endpoint{
				{Addresses: []string{"10.0.0.1"}, Health: registryv1.Health_HEALTH_UNHEALTHY},
				{Addresses: []string{"10.0.0.2"}, Health: registryv1.Health_HEALTH_DRAINING},
			},
		}),
	)
	list := pc.Read().Endpoints(kubernetes("a", "x"))[80]
	if list[0].Health != index.Healthy || list[1].Health != index.Draining {
		t.Errorf("%+v", list)
	}
}

// A service gets its endpoints even if they arrive before it.
func TestEndpointsArriveBeforeTheirService(t *testing.T) {
	service, slice := Service("a", "x", "80 http"), Slice("a", "x", "8080 http", "10.0.0.1")
	for _, order := range [][]Change{{service, slice}, {slice, service}, {slice, service, service.Gone(), service}} {
		w := world.NewWorld()
		pc := index.NewPushContext(w)
		for _, c := range order {
			next, keys, err := w.Apply(Rows(c))
			if err != nil {
				t.Fatal(err)
			}
			w = next
			pc, _ = pc.Next(w, keys)
			expectProblems(t, pc)
		}
		if got := addresses(pc, kubernetes("a", "x"), 80); got != "10.0.0.1:8080" {
			t.Errorf("%v: endpoints %q", order, got)
		}
	}
}

// A changed endpoint changes only the input of its service's endpoints.
func TestEndpointChangeNamesOneInput(t *testing.T) {
	w := publicMesh(t, 2)
	pc := index.NewPushContext(w)
	next, keys, err := w.Apply(Rows(endpoints("ns001", "svc3", "another")))
	if err != nil {
		t.Fatal(err)
	}
	_, inputs := pc.Next(next, keys)
	want := []index.Input{{Kind: index.InputEndpoints, A: "ns001", B: "svc3.ns001.svc.cluster.local"}}
	if diff := cmp.Diff(want, inputs); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestSE9InlineEndpoints(t *testing.T) {
	pc := PushContext(t, YAML(t, entry+`
metadata: {name: e, namespace: a}
spec:
  hosts: [x.example]
  ports:
  - {number: 80, name: http, protocol: HTTP}
  - {number: 443, name: tls, protocol: TLS, targetPort: 8443}
  resolution: STATIC
  endpoints:
  - address: 10.0.0.2
    ports: {http: 8080}
    labels: {version: v1}
    network: n
    locality: region/zone/sub
    weight: 7
    serviceAccount: sa
  - address: 10.0.0.1
    labels: {security.istio.io/tlsMode: istio}
  - address: unix:///run/x.sock
`)...)
	id := index.ServiceID{Namespace: "a", Hostname: "x.example"}
	want := []index.Endpoint{
		{Address: "10.0.0.1", Port: 80, Labels: map[string]string{"security.istio.io/tlsMode": "istio"}, Weight: 1, ClusterID: "default", MutualTLS: true},
		{
			Address: "10.0.0.2", Port: 8080, Labels: map[string]string{"version": "v1"}, Weight: 7, Network: "n", ClusterID: "default",
			Locality: proxy.Locality{Region: "region", Zone: "zone", SubZone: "sub"}, MutualTLS: true, ServiceAccount: "sa",
		},
		{Address: "unix:///run/x.sock", Weight: 1, ClusterID: "default"},
	}
	if diff := cmp.Diff(want, pc.Read().Endpoints(id)[80]); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := addresses(pc, id, 443); got != "10.0.0.1:8443 10.0.0.2:8443 unix:///run/x.sock:0" {
		t.Errorf("endpoints %s", got)
	}
}

func TestSE6HostIsTheEndpoint(t *testing.T) {
	for resolution, want := range map[networking.ServiceEntry_Resolution]string{
		networking.ServiceEntry_DNS:             "x.example:8080",
		networking.ServiceEntry_DNS_ROUND_ROBIN: "x.example:8080",
		networking.ServiceEntry_STATIC:          "",
		networking.ServiceEntry_NONE:            "",
	} {
		pc := PushContext(t, Object("ServiceEntry", "a", "e", &networking.ServiceEntry{
			Hosts: []string{"x.example"}, Resolution: resolution, Ports: []*networking.ServicePort{{Number: 80, TargetPort: 8080, Protocol: "HTTP"}},
		}))
		if got := addresses(pc, index.ServiceID{Namespace: "a", Hostname: "x.example"}, 80); got != want {
			t.Errorf("%s: endpoints %q, want %q", resolution, got, want)
		}
	}
}

func TestSE10SelectedWorkloads(t *testing.T) {
	workload := func(namespace, name, ip string, labels map[string]string) Change {
		return Object("WorkloadEntry", namespace, name, &networking.WorkloadEntry{Address: ip, Labels: labels, Ports: map[string]uint32{"http": 8080}})
	}
	x := map[string]string{"app": "x"}
	pc := PushContext(t, append(YAML(t, entry+`
metadata: {name: e, namespace: a}
spec:
  hosts: [x.example]
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8000}]
  resolution: STATIC
  workloadSelector: {labels: {app: x}}
`),
		workload("a", "vm", "10.0.0.1", map[string]string{"app": "x", "more": "y"}),
		workload("a", "named", "vm.example", x), // no IP, which STATIC needs
		workload("a", "other", "10.0.0.2", map[string]string{"app": "y"}),
		workload("b", "elsewhere", "10.0.0.3", x),
		Object("Pod", "a", "pod", &registryv1.Workload{Addresses: []string{"10.0.0.4"}, Labels: x, Node: "n"}),
	)...)
	id := index.ServiceID{Namespace: "a", Hostname: "x.example"}
	if got := addresses(pc, id, 80); got != "10.0.0.1:8080 10.0.0.4:8000" {
		t.Errorf("endpoints %s", got)
	}
	if e := pc.Read().Endpoints(id)[80][0]; e.Workload != "vm" || e.WorkloadNamespace != "a" {
		t.Errorf("%+v", e)
	}
	expectProblems(t, pc, "other (spec.labels): unused", "elsewhere (spec.labels): unused")
}

func TestSVC16WorkloadEntriesOfAService(t *testing.T) {
	pc := PushContext(t,
		Object("Service", "a", "x", &registryv1.Service{
			Selector: map[string]string{"app": "x"},
			Ports:    []*registryv1.ServicePort{{Number: 80, Name: "http", TargetPortName: "web"}, {Number: 90, Name: "tcp", TargetPort: 9000}},
		}),
		Slice("a", "x", "8080 http", "10.0.0.1"),
		Object("WorkloadEntry", "a", "vm", &networking.WorkloadEntry{
			Address: "10.0.0.2", Labels: map[string]string{"app": "x"}, Ports: map[string]uint32{"web": 8081},
		}),
		Object("Pod", "a", "pod", &registryv1.Workload{Addresses: []string{"10.0.0.3"}, Labels: map[string]string{"app": "x"}}),
	)
	id := kubernetes("a", "x")
	if got := addresses(pc, id, 80); got != "10.0.0.1:8080 10.0.0.2:8081" {
		t.Errorf("endpoints %s", got)
	}
	if got := addresses(pc, id, 90); got != "10.0.0.2:9000" {
		t.Errorf("endpoints %s", got)
	}
}

func TestWE1PortPriority(t *testing.T) {
	for name, test := range map[string]struct {
		target uint32
		ports  map[string]uint32
		want   string
	}{
		"port of the entry":    {8000, map[string]uint32{"http": 8080}, "10.0.0.1:8080"},
		"target port":          {8000, map[string]uint32{"other": 8080}, "10.0.0.1:8000"},
		"port of the service":  {0, nil, "10.0.0.1:80"},
		"entry before service": {0, map[string]uint32{"http": 8080}, "10.0.0.1:8080"},
	} {
		pc := PushContext(t, Object("ServiceEntry", "a", "e", &networking.ServiceEntry{
			Hosts: []string{"x.example"}, Resolution: networking.ServiceEntry_STATIC,
			Ports:     []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP", TargetPort: test.target}},
			Endpoints: []*networking.WorkloadEntry{{Address: "10.0.0.1", Ports: test.ports}},
		}))
		if got := addresses(pc, index.ServiceID{Namespace: "a", Hostname: "x.example"}, 80); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}
