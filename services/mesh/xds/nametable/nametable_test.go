package nametable_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"google.golang.org/protobuf/types/known/structpb"
	ndsv1 "meshlog.dev/proto/istio/networking/nds/v1"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/nametable"
)

const services = `
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec: {clusterIP: 10.9.0.1, clusterIPs: [10.9.0.1, "fd00::1"], selector: {app: cart}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {clusterIP: None, selector: {app: db}, ports: [{name: tcp, port: 5432}, {name: http, port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: out, namespace: shop}
spec:
  hosts: [api.example.com, "*.example.org", "*"]
  addresses: [192.0.2.1, 198.51.100.0/24]
  ports: [{number: 443, name: tls, protocol: TLS}]
  resolution: STATIC
  endpoints: [{address: 203.0.113.1}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: unaddressed, namespace: shop}
spec:
  hosts: [plain.example.com]
  ports: [{number: 443, name: tls, protocol: TLS}]
  resolution: DNS
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: private, namespace: bank}
spec:
  hosts: [vault.bank]
  addresses: [192.0.2.9]
  exportTo: ["."]
  ports: [{number: 443, name: tls, protocol: TLS}]
`

// slice is an EndpointSlice of the service db.
func slice(endpoints ...*registryv1.Endpoint) Change {
	return Object("EndpointSlice", "shop", "db", &registryv1.Endpoints{
		Service: "db", Ports: []*registryv1.EndpointPort{{Name: "tcp", Number: 5432}, {Name: "http", Number: 8080}}, Endpoints: endpoints,
	})
}

// class returns the class of an agent beside a workload.
func class(pc *index.PushContext, namespace string, fields map[string]string) index.ProxyClass {
	m := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for k, v := range fields {
		m.Fields[k] = structpb.NewStringValue(v)
	}
	return index.Classify(pc, &proxy.Proxy{ID: "sidecar~10.0.0.9~web-1." + namespace + "~x", Type: proxy.Sidecar, Namespace: namespace, Metadata: m, ClusterID: fields["CLUSTER_ID"]})
}

func table(t *testing.T, pc *index.PushContext, c index.NDSClass) []string {
	t.Helper()
	var lines []string
	for _, part := range nametable.Parts(pc.Read(), c) {
		pieces, problems := part.Make(pc.Read())
		if len(problems) > 0 {
			t.Error(problems)
		}
		for _, p := range pieces {
			hosts := p.Message.(*ndsv1.NameTable).GetTable()
			for _, host := range slices.Sorted(maps.Keys(hosts)) {
				i := hosts[host]
				lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s: %s %s %s %s %s", p.Name, host, strings.Join(i.GetIps(), ","), i.GetRegistry(), i.GetNamespace(), i.GetShortname())))
			}
		}
	}
	return lines
}

var agent = map[string]string{proxy.NamesField: "true"}

// NDS-1: services have their virtual IPs, headless ones the addresses of their healthy
// endpoints, with a name for each that has a hostname; wildcards are hosts like others. A
// service without an address, a range and the host "*" are in no table, nor is what the
// namespace does not see. Clients that are no agents have no table, and pay for none.
func TestTable(t *testing.T) {
	pc := PushContext(t, append(YAML(t, services), slice(
		&registryv1.Endpoint{Addresses: []string{"10.1.0.2"}, Hostname: "db-1"},
		&registryv1.Endpoint{Addresses: []string{"10.1.0.1"}, Hostname: "db-0"},
		&registryv1.Endpoint{Addresses: []string{"10.1.0.3"}},
		&registryv1.Endpoint{Addresses: []string{"10.1.0.4"}, Hostname: "db-2", Health: registryv1.Health_HEALTH_UNHEALTHY},
	))...)
	want := []string{
		"*.example.org: *.example.org 192.0.2.1 External",
		"api.example.com: api.example.com 192.0.2.1 External",
		"cart.shop.svc.cluster.local: cart.shop.svc.cluster.local 10.9.0.1,fd00::1 Kubernetes shop cart",
		"db.shop.svc.cluster.local: db-0.db.shop.svc.cluster.local 10.1.0.1 Kubernetes shop db-0.db",
		"db.shop.svc.cluster.local: db-1.db.shop.svc.cluster.local 10.1.0.2 Kubernetes shop db-1.db",
		"db.shop.svc.cluster.local: db.shop.svc.cluster.local 10.1.0.1,10.1.0.2,10.1.0.3 Kubernetes shop db",
	}
	if diff := cmp.Diff(want, table(t, pc, class(pc, "web", agent).NDS)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := table(t, pc, class(pc, "bank", agent).NDS); !slices.Contains(got, "vault.bank: vault.bank 192.0.2.9 External") {
		t.Errorf("its own namespace sees %q", got)
	}
	for name, fields := range map[string]map[string]string{"an Envoy": nil, "another value": {proxy.NamesField: "yes"}} {
		if c := class(pc, "bank", fields).NDS; c != (index.NDSClass{}) || table(t, pc, c) != nil {
			t.Errorf("%s has the class %+v", name, c)
		}
	}
	if c := index.Classify(pc, &proxy.Proxy{GRPC: true, Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{proxy.NamesField: structpb.NewStringValue("true")}}}); c.NDS != (index.NDSClass{}) {
		t.Errorf("a gRPC client has the class %+v", c.NDS)
	}
}

// In several clusters an agent gets the virtual IP of its own, and of two endpoints of one
// name that of its own; endpoints of all clusters that it reaches are those of the service.
func TestClusters(t *testing.T) {
	var all []Change
	for i, cluster := range []string{"east", "west"} {
		in := func(c Change) Change { return c.From("kubernetes").In(cluster) }
		all = append(all,
			in(Object("Service", "shop", "cart", &registryv1.Service{Addresses: []string{fmt.Sprintf("10.9.%d.1", i)}, Ports: []*registryv1.ServicePort{{Number: 80, Name: "http"}}})),
			in(Object("Service", "shop", "db", &registryv1.Service{Headless: true, Ports: []*registryv1.ServicePort{{Number: 5432, Name: "tcp"}}})),
			in(slice(&registryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.1.%d.1", i)}, Hostname: "db-0"})),
		)
	}
	pc := PushContext(t, all...)
	for cluster, want := range map[string][]string{
		"west": {"10.9.1.1", "10.1.1.1", "10.1.0.1,10.1.1.1"},
		"east": {"10.9.0.1", "10.1.0.1", "10.1.0.1,10.1.1.1"},
		"":     {"10.9.0.1", "10.1.0.1", "10.1.0.1,10.1.1.1"},
	} {
		fields := maps.Clone(agent)
		fields["CLUSTER_ID"] = cluster
		var got []string
		for _, line := range table(t, pc, class(pc, "web", fields).NDS) {
			got = append(got, strings.Fields(line)[2])
		}
		if !slices.Equal(got, want) {
			t.Errorf("in cluster %q the addresses are %q, want %q", cluster, got, want)
		}
	}
}

// Only a headless service is made again when endpoints change.
func TestInputs(t *testing.T) {
	pc := PushContext(t, YAML(t, services)...)
	for _, part := range nametable.Parts(pc.Read(), class(pc, "web", agent).NDS) {
		r := pc.Read()
		part.Make(r)
		reads := slices.ContainsFunc(r.Inputs(), func(in index.Input) bool { return in.Kind == index.InputEndpoints })
		if headless := strings.Contains(fmt.Sprintf("%T", part), "headless"); reads != headless {
			t.Errorf("%+v reads %v", part, r.Inputs())
		}
	}
}
