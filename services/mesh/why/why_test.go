package why_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/google/go-cmp/cmp"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/simulate"
	"meshlog.dev/services/mesh/why"
	"meshlog.dev/services/mesh/world"
)

const mesh = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: shop, namespace: demo}
spec:
  hosts: [shop.example]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints:
  - {address: 10.0.0.1, labels: {version: v1}, ports: {http: 8080}}
  - {address: 10.0.0.2, labels: {version: v2}, ports: {http: 8080}, weight: 3}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: shop, namespace: demo}
spec:
  host: shop.example
  trafficPolicy:
    connectionPool: {tcp: {connectTimeout: 2s}}
    loadBalancer: {simple: RANDOM}
  subsets:
  - {name: v1, labels: {version: v1}}
  - {name: v2, labels: {version: v2}, trafficPolicy: {connectionPool: {tcp: {connectTimeout: 10s}}}}
  - {name: v3, labels: {version: v3}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: demo}
spec:
  hosts: [shop.example]
  http:
  - match: [{uri: {prefix: /slow}}]
    timeout: 7s
    retries: {attempts: 4}
    route: [{destination: {host: shop.example, subset: v2}}]
  - match: [{uri: {prefix: /v3}}]
    route: [{destination: {host: shop.example, subset: v3}}]
  - route:
    - {destination: {host: shop.example, subset: v1}, weight: 90}
    - {destination: {host: shop.example, subset: v2}, weight: 10}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: other, namespace: demo}
spec:
  hosts: [other.example]
  exportTo: ["."]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 10.0.0.9}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gw, namespace: edge}
spec:
  servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge, namespace: edge}
spec:
  hosts: [shop.example]
  gateways: [gw]
  http: [{route: [{destination: {host: shop.example}}]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: admin, namespace: edge}
spec:
  action: DENY
  rules:
  - to: [{operation: {paths: [/admin]}}]
  - when: [{key: "request.headers[x-role]", values: [user]}]
`

const config = `apiVersion: mesh.istio.io/v1alpha1
kind: MeshConfig
metadata: {name: default}
spec: {connectTimeout: 4s}
`

func client(t testing.TB, id string) *proxy.Proxy {
	t.Helper()
	p, err := proxy.New(&corev3.Node{Id: id, Cluster: "x"})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func sidecar(t testing.TB, ns string) *proxy.Proxy {
	return client(t, "sidecar~10.99.0.1~app."+ns+"~"+ns+".svc.cluster.local")
}

// Each field was set by the field of an object that gives it its value (WHY-1 to WHY-3), also if
// the value is the default.
func TestSet(t *testing.T) {
	const (
		v1, v2 = "outbound|80|v1|shop.example", "outbound|80|v2|shop.example"
		routes = "virtual_hosts[shop.example:80].routes"
		rule   = "DestinationRule demo/shop (file/default) spec."
		entry  = "ServiceEntry demo/shop (file/default) spec."
		host   = "VirtualService demo/shop (file/default) spec."
		lb     = "endpoints[0].lb_endpoints[0]"
	)
	w := meshtest.World(t, meshtest.YAML(t, mesh)...)
	for _, c := range []struct {
		w        *world.World
		t        ident.ResourceType
		resource string
		field    string
		value    string
		set      []string
	}{
		{w, ident.CDS, v1, "connect_timeout", `"2s"`, []string{rule + `trafficPolicy.connectionPool.tcp.connectTimeout: "2s"`}},
		{w, ident.CDS, v2, "connect_timeout", `"10s"`, []string{rule + `subsets[1].trafficPolicy.connectionPool.tcp.connectTimeout: "10s"`}},
		{w, ident.CDS, "outbound|80||other.example", "connect_timeout", `"10s"`, []string{`default of MeshConfig spec.connectTimeout: "10s"`}},
		{meshtest.World(t, meshtest.YAML(t, mesh+"---\n"+config)...), ident.CDS, "outbound|80||other.example", "connect_timeout", `"4s"`, []string{`MeshConfig default (file/default) spec.connectTimeout: "4s"`}},
		{w, ident.CDS, v1, "lb_policy", `"RANDOM"`, []string{rule + "trafficPolicy.loadBalancer.simple: RANDOM"}},
		{w, ident.EDS, v2, lb + ".endpoint.address.socket_address.address", `"10.0.0.2"`, []string{entry + `endpoints[1].address: "10.0.0.2"`}},
		{w, ident.EDS, v2, lb + ".endpoint.address.socket_address.port_value", "8080", []string{entry + "endpoints[1].ports.http: 8080"}},
		{w, ident.EDS, v2, lb + ".load_balancing_weight", "3", []string{entry + "endpoints[1].weight: 3"}},
		{w, ident.RDS, "80", routes + "[0].match.prefix", `"/slow"`, []string{host + `http[0].match[0].uri.prefix: "/slow"`}},
		{w, ident.RDS, "80", routes + "[0].route.timeout", `"7s"`, []string{host + `http[0].timeout: "7s"`}},
		{w, ident.RDS, "80", routes + "[0].route.retry_policy.num_retries", "4", []string{host + "http[0].retries.attempts: 4"}},
		{w, ident.RDS, "80", routes + "[2].route.weighted_clusters.clusters[1].weight", "10", []string{host + "http[2].route[1].weight: 10"}},
		{w, ident.RDS, "80", routes + "[0].route.cluster", `"` + v2 + `"`, []string{
			host + `http[0].route[0].destination.host: "shop.example"`, host + `http[0].route[0].destination.subset: "v2"`,
		}},
	} {
		a, err := why.Why(why.Question{World: c.w, Proxy: sidecar(t, "demo"), Type: c.t, Resource: c.resource, Field: c.field})
		if err != nil {
			t.Errorf("%s %s: %v", c.resource, c.field, err)
			continue
		}
		var set []string
		for _, s := range a.Causes[0].Set {
			set = append(set, s.String())
		}
		slices.Sort(set)
		if diff := cmp.Diff(c.set, set); diff != "" || a.Value != c.value || len(a.Causes) != 1 {
			t.Errorf("%s %s is %s, want %s, set by (-want +got, %d worlds):\n%s", c.resource, c.field, a.Value, c.value, a.Tried, diff)
		}
		t.Logf("%s %s: %d worlds, %d objects read besides", c.resource, c.field, a.Tried, a.Read)
	}
}

// strangers are many objects that are about other hosts, each with a route.
func strangers(t testing.TB) (rows []world.RowChange) {
	t.Helper()
	var changes []meshtest.Change
	for i := range 100 {
		name := fmt.Sprintf("s%d", i)
		changes = append(changes, meshtest.Service("demo", name, "80 http"), meshtest.Slice("demo", name, "80 http", fmt.Sprintf("10.1.%d.1", i)))
		changes = append(changes, meshtest.YAML(t, fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: %[1]s, namespace: demo}\nspec:\n  hosts: [%[1]s.demo.svc.cluster.local]\n  http: [{timeout: 7s, route: [{destination: {host: %[1]s.demo.svc.cluster.local}}]}]\n", name))...)
	}
	for _, c := range changes {
		rows = append(rows, c.Row())
	}
	return rows
}

// Objects about other hosts change no answer, and are not tried (WHY-11).
func TestStrangers(t *testing.T) {
	few := meshtest.World(t, meshtest.YAML(t, mesh)...)
	many, _, err := few.Apply(world.Change{Rows: strangers(t)})
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range []why.Question{
		{Type: ident.CDS, Resource: "outbound|80|v2|shop.example"},
		{Type: ident.CDS, Resource: "outbound|80|v2|shop.example", Field: "connect_timeout"},
		{Type: ident.EDS, Resource: "outbound|80|v2|shop.example", Field: "endpoints[0].lb_endpoints[0]"},
		{Type: ident.RDS, Resource: "80", Field: "virtual_hosts[shop.example:80]"},
		{Type: ident.RDS, Resource: "80", Field: "virtual_hosts[shop.example:80].routes[0].route.timeout"},
	} {
		q.Proxy = sidecar(t, "demo")
		var answers [2]*why.Answer
		for i, w := range []*world.World{few, many} {
			q.World = w
			if answers[i], err = why.Why(q); err != nil {
				t.Fatalf("%s %s: %v", q.Resource, q.Field, err)
			}
		}
		want, got := answers[0], answers[1]
		if got.Tried > want.Tried*3/2 || got.Read > want.Read {
			t.Errorf("%s %s: %d worlds and %d objects read, want %d and %d", q.Resource, q.Field, got.Tried, got.Read, want.Tried, want.Read)
		}
		for i := range got.Causes { // in the RouteConfiguration of many hosts they have another place
			if !strings.HasPrefix(got.Causes[i].Path, got.Field) {
				t.Errorf("%s %s: the path %s is not in %s", q.Resource, q.Field, got.Causes[i].Path, got.Field)
			}
			got.Causes[i].Path = want.Field + strings.TrimPrefix(got.Causes[i].Path, got.Field)
			if c := &got.Causes[i]; strings.HasPrefix(c.Within, got.Field) {
				c.Within = want.Field + strings.TrimPrefix(c.Within, got.Field)
			}
		}
		if diff := cmp.Diff(want.Causes, got.Causes); diff != "" || len(want.Objects) != len(got.Objects) {
			t.Errorf("%s %s among many others (-few +many):\n%s\n%v", q.Resource, q.Field, diff, got.Objects)
		}
	}
	var calls [2]*why.CallAnswer
	for i, w := range []*world.World{few, many} {
		call := simulate.Call{Method: "GET", Host: "shop.example", Path: "/v3/x", Port: 80, Headers: map[string][]string{}}
		if calls[i], err = why.WhyNot(why.CallQuestion{World: w, Proxy: sidecar(t, "demo"), Call: call}); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(calls[0].Changes, calls[1].Changes); diff != "" || calls[1].Tried > calls[0].Tried || calls[0].End != calls[1].End {
		t.Errorf("a call among many others: %d worlds, want %d (-few +many):\n%s", calls[1].Tried, calls[0].Tried, diff)
	}
}

// An answer without a field has every object that made the resource, and what would differ
// without it (WHY-4).
func TestObjects(t *testing.T) {
	w := meshtest.World(t, meshtest.YAML(t, mesh)...)
	a, err := why.Why(why.Question{World: w, Proxy: sidecar(t, "demo"), Type: ident.CDS, Resource: "outbound|80||shop.example"})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, o := range a.Objects {
		if got[o.Key.Kind+" "+o.Key.Name] = strings.Join(o.Fields, " "); o.Whole {
			got[o.Key.Kind+" "+o.Key.Name] = "whole"
		}
	}
	if got["ServiceEntry shop"] != "whole" || !strings.Contains(got["DestinationRule shop"], "connect_timeout") || len(got) != 2 {
		t.Errorf("objects: %v", got)
	}
}

// What is not there is an error that says so (WHY-5).
func TestMissing(t *testing.T) {
	w := meshtest.World(t, meshtest.YAML(t, mesh)...)
	q := why.Question{World: w, Proxy: sidecar(t, "demo"), Type: ident.CDS, Resource: "nothing"}
	if _, err := why.Why(q); !errors.Is(err, why.ErrNoResource) {
		t.Errorf("no such resource: %v", err)
	}
	q.Resource = "outbound|80||shop.example"
	for _, field := range []string{"nothing", "name[0]", "connect_timeout.x", "a[", "load_assignment.endpoints[7]"} {
		if q.Field = field; true {
			if _, err := why.Why(q); !errors.Is(err, why.ErrNoField) {
				t.Errorf("%s: %v", field, err)
			}
		}
	}
}

// A call that does not pass has its end in a word, and the field without which it would
// (WHY-8, WHY-9).
func TestWhyNot(t *testing.T) {
	w := meshtest.World(t, meshtest.YAML(t, mesh)...)
	edge := client(t, "router~10.0.0.1~edge.edge~edge.svc.cluster.local")
	for _, c := range []struct {
		p          *proxy.Proxy
		host, path string
		role       string
		end        why.End
		without    []string
	}{
		{sidecar(t, "demo"), "shop.example", "/", "", why.Passes, nil},
		{sidecar(t, "demo"), "shop.example", "/v3/x", "", why.NoEndpoint, []string{"DestinationRule spec.subsets[2].labels.version", "VirtualService spec.http[1].route[0].destination.subset"}},
		{sidecar(t, "demo"), "other.example", "/", "", why.Passes, nil},
		{sidecar(t, "away"), "other.example", "/", "", why.NotVisible, []string{"ServiceEntry spec.exportTo[0]"}},
		{sidecar(t, "away"), "nowhere.example", "/", "", why.NoSuchHost, nil},
		{edge, "shop.example", "/", "", why.Passes, nil},
		{edge, "shop.example", "/admin", "", why.Denied, []string{"AuthorizationPolicy spec.rules[0]"}},
		{edge, "shop.example", "/", "user", why.Denied, []string{"AuthorizationPolicy spec.rules[1]"}},
		{edge, "nowhere.example", "/", "", why.NoRoute, nil},
	} {
		call := simulate.Call{Method: "GET", Host: c.host, Path: c.path, Port: 80, Headers: map[string][]string{}}
		if c.role != "" {
			call.Headers["x-role"] = []string{c.role}
		}
		a, err := why.WhyNot(why.CallQuestion{World: w, Proxy: c.p, Call: call})
		if err != nil {
			t.Fatal(err)
		}
		var without []string
		for _, x := range a.Changes {
			without = append(without, strings.TrimSpace(x.Key.Kind+" "+x.Field))
		}
		for _, want := range c.without {
			if !slices.Contains(without, want) {
				t.Errorf("%s%s by %s would pass without %q, want %q", c.host, c.path, c.p.ID, without, want)
			}
		}
		if a.End != c.end || a.Says == "" || (a.End == why.Passes) != (len(without) == 0) && c.without != nil {
			t.Errorf("%s%s by %s ends with %q (%s), want %q:\n%s", c.host, c.path, c.p.ID, a.End, a.Says, c.end, strings.Join(a.Outcome.Lines(), "\n"))
		}
		t.Logf("%s%s by %s: %s %q, %d worlds", c.host, c.path, c.p.ID, a.Says, without, a.Tried)
	}
}
