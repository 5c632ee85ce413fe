package patch_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/anytype"
	"meshlog.dev/services/mesh/gate"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds"
)

// mesh has services for requests and connections, a workload, and a router with servers for
// requests and for two server names.
const mesh = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: api, namespace: shop}
spec:
  hosts: [api.example]
  resolution: STATIC
  workloadSelector: {labels: {app: web}}
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}, {number: 90, name: tcp, protocol: TCP, targetPort: 9090}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gw, namespace: shop}
spec:
  selector: {istio: edge}
  servers:
  - {port: {number: 8443, name: tls, protocol: TLS}, hosts: [a.example, b.example], tls: {mode: PASSTHROUGH}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: gw, namespace: shop}
spec:
  hosts: [a.example, b.example]
  gateways: [gw]
  tls:
  - {match: [{sniHosts: [a.example]}], route: [{destination: {host: api.example, port: {number: 90}}}]}
  - {match: [{sniHosts: [b.example]}], route: [{destination: {host: api.example, port: {number: 90}}}]}
`

func web() *proxy.Proxy {
	return &proxy.Proxy{
		Type: proxy.Sidecar, Namespace: "shop", Labels: map[string]string{"app": "web"},
		Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"SDS_CLUSTER": structpb.NewStringValue(proxy.SDSCluster), "ISTIO_VERSION": structpb.NewStringValue("1.29.0")}},
	}
}

func edge() *proxy.Proxy {
	return &proxy.Proxy{Type: proxy.Router, Namespace: "shop", Labels: map[string]string{"istio": "edge"}}
}

// filter returns an EnvoyFilter of a namespace with these patches.
func filter(namespace, name, spec, patches string) string {
	return "---\napiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: " + name + ", namespace: " + namespace + "}\nspec:\n" + spec +
		"  configPatches:\n  - " + strings.ReplaceAll(strings.TrimSpace(patches), "\n", "\n  - ") + "\n"
}

// served returns what a proxy gets of a name, as JSON without spaces; "": nothing.
func served(t *testing.T, pc *index.PushContext, p *proxy.Proxy, rt ident.ResourceType, name string) string {
	t.Helper()
	r := xds.NewCatalog(pc).Set(index.Classify(pc, p).Only(rt), rt).Find(name)
	if r == nil {
		return ""
	}
	m, err := anytype.Unmarshal(&anypb.Any{TypeUrl: rt.URL(), Value: r.Value()})
	if err != nil {
		t.Fatal(err)
	}
	b, err := protojson.MarshalOptions{UseProtoNames: true, Resolver: anytype.Types}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(b), " ", "")
}

// problems returns what the gate says of EnvoyFilters.
func problems(t *testing.T, text string) (all []string) {
	t.Helper()
	w := meshtest.World(t, meshtest.YAML(t, text)...)
	var keys []ident.Key
	for _, kind := range []string{"ServiceEntry", "Gateway", "VirtualService", "EnvoyFilter", "MeshPolicy"} {
		for o := range w.Objects(kind) {
			keys = append(keys, o.Key)
		}
	}
	found, err := gate.New().Build(w, keys)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range found {
		if d.Key.Kind == "EnvoyFilter" {
			all = append(all, d.Code+" "+d.Field+": "+d.Reason)
		}
	}
	return all
}

const (
	buffer   = `typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer, max_request_bytes: 5}`
	limit    = `typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.connection_limit.v3.ConnectionLimit, stat_prefix: x, max_connections: 7}`
	hcm      = `envoy.filters.network.http_connection_manager`
	router   = `envoy.filters.http.router`
	tcpProxy = `envoy.filters.network.tcp_proxy`
	tcpType  = `"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy`
	httpMark = `{name: mark, ` + buffer + `}`
	netMark  = `{name: mark, ` + limit + `}`
)

// Each operation does to each thing what EF-2 says, as in Istio.
func TestOperations(t *testing.T) {
	of := func(sub string) string {
		return `filterChain: {filter: {name: ` + hcm + `, subFilter: {name: ` + sub + `}}}`
	}
	named := func(name string) string { return `filterChain: {filter: {name: ` + name + `}}` }
	http := func(match, operation, value string) string {
		return `{applyTo: HTTP_FILTER, match: {context: SIDECAR_OUTBOUND, listener: {name: 0.0.0.0_80, ` + match + `}}, patch: {operation: ` + operation + `, value: ` + value + `}}`
	}
	for name, test := range map[string]struct {
		patches   string
		proxy     *proxy.Proxy
		rt        ident.ResourceType
		resource  string
		want, not []string
	}{
		"HTTP_FILTER INSERT_FIRST":                   {http(named(hcm), "INSERT_FIRST", httpMark), web(), ident.LDS, "0.0.0.0_80", []string{`"http_filters":[{"name":"mark"`}, nil},
		"HTTP_FILTER INSERT_BEFORE without a filter": {http(named(hcm), "INSERT_BEFORE", httpMark), web(), ident.LDS, "0.0.0.0_80", []string{`"http_filters":[{"name":"mark"`}, nil},
		"HTTP_FILTER INSERT_BEFORE":                  {http(of(router), "INSERT_BEFORE", httpMark), web(), ident.LDS, "0.0.0.0_80", []string{`"max_request_bytes":5}},{"name":"envoy.filters.http.router"`}, nil},
		"HTTP_FILTER INSERT_AFTER":                   {http(of("envoy.filters.http.fault"), "INSERT_AFTER", httpMark), web(), ident.LDS, "0.0.0.0_80", []string{`HTTPFault"}},{"name":"mark"`}, nil},
		"HTTP_FILTER REPLACE":                        {http(of("envoy.filters.http.fault"), "REPLACE", httpMark), web(), ident.LDS, "0.0.0.0_80", []string{`"http_filters":[{"name":"mark"`}, []string{"HTTPFault"}},
		"HTTP_FILTER REMOVE": {
			`{applyTo: HTTP_FILTER, match: {listener: {` + of("envoy.filters.http.cors") + `}}, patch: {operation: REMOVE}}`,
			web(), ident.LDS, "0.0.0.0_80", []string{"HTTPFault"}, []string{"cors"},
		},
		"HTTP_FILTER MERGE of what another patch inserts": {
			http(of("mark"), "MERGE", `{typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer, max_request_bytes: 9}}`) + "\n" + http(named(hcm), "INSERT_FIRST", httpMark),
			web(), ident.LDS, "0.0.0.0_80", []string{`"max_request_bytes":9`}, []string{`"max_request_bytes":5`},
		},
		"NETWORK_FILTER MERGE": {
			`{applyTo: NETWORK_FILTER, match: {context: SIDECAR_OUTBOUND, listener: {` + named(hcm) + `}}, patch: {operation: MERGE, value: {typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, stream_idle_timeout: 5s, upgrade_configs: [{upgrade_type: h2c}]}}}}`,
			web(), ident.LDS, "0.0.0.0_80", []string{`"stream_idle_timeout":"5s"`, `"upgrade_configs":[{"upgrade_type":"websocket"},{"upgrade_type":"h2c"}]`}, []string{`"stream_idle_timeout":"0s"`},
		},
		"NETWORK_FILTER MERGE_AND_REPLACE_LIST": {
			`{applyTo: NETWORK_FILTER, match: {context: SIDECAR_OUTBOUND, listener: {` + named(hcm) + `}}, patch: {operation: MERGE_AND_REPLACE_LIST, value: {typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, upgrade_configs: [{upgrade_type: h2c}]}}}}`,
			web(), ident.LDS, "0.0.0.0_80", []string{`"upgrade_configs":[{"upgrade_type":"h2c"}]`, "HTTPFault"}, nil,
		},
		"NETWORK_FILTER INSERT_BEFORE": {
			`{applyTo: NETWORK_FILTER, match: {context: SIDECAR_OUTBOUND, listener: {name: 0.0.0.0_80, ` + named(hcm) + `}}, patch: {operation: INSERT_BEFORE, value: ` + netMark + `}}`,
			web(), ident.LDS, "0.0.0.0_80", []string{`"filters":[{"name":"mark"`}, nil,
		},
		"NETWORK_FILTER by port of the workload": {
			`{applyTo: NETWORK_FILTER, match: {context: SIDECAR_INBOUND, listener: {portNumber: 9090, ` + named(tcpProxy) + `}}, patch: {operation: INSERT_BEFORE, value: ` + netMark + `}}`,
			web(), ident.LDS, "virtualInbound", []string{`"destination_port":9090,"transport_protocol":"raw_buffer"},"filters":[{"name":"mark"`}, nil,
		},
		"NETWORK_FILTER by protocols": {
			`{applyTo: NETWORK_FILTER, match: {context: SIDECAR_INBOUND, listener: {filterChain: {transport_protocol: tls, application_protocols: "istio,istio-peer-exchange", destination_port: 9090, filter: {name: ` + tcpProxy + `}}}}, patch: {operation: MERGE, value: {typed_config: {` + tcpType + `, max_connect_attempts: 4}}}}`,
			web(), ident.LDS, "virtualInbound", []string{`"max_connect_attempts":4`}, []string{`"transport_protocol":"raw_buffer"},"filters":[{"name":"envoy.filters.network.tcp_proxy","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy","stat_prefix":"inbound|9090||","cluster":"inbound|9090||","max_connect_attempts"`},
		},
		"FILTER_CHAIN REMOVE by server name": {
			`{applyTo: FILTER_CHAIN, match: {context: GATEWAY, listener: {portNumber: 8443, filterChain: {sni: a.example}}}, patch: {operation: REMOVE}}`,
			edge(), ident.LDS, "0.0.0.0_8443", []string{"b.example"}, []string{"a.example"},
		},
		"FILTER_CHAIN ADD and MERGE by name": {
			`{applyTo: FILTER_CHAIN, match: {context: SIDECAR_OUTBOUND, listener: {name: virtualOutbound}}, patch: {operation: ADD, value: {name: mine, filter_chain_match: {destination_port: 7}, filters: [{name: x, typed_config: {` + tcpType + `, stat_prefix: x, cluster: BlackHoleCluster}}]}}}` + "\n" +
				`{applyTo: FILTER_CHAIN, match: {listener: {filterChain: {name: virtualOutbound-catchall-tcp}}}, patch: {operation: MERGE, value: {transport_socket_connect_timeout: 3s}}}`,
			web(), ident.LDS, "virtualOutbound", []string{`"name":"mine"`, `"transport_socket_connect_timeout":"3s"`}, nil,
		},
		"LISTENER_FILTER": {
			`{applyTo: LISTENER_FILTER, match: {context: SIDECAR_OUTBOUND, listener: {name: virtualOutbound}}, patch: {operation: ADD, value: {name: last, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector}}}}` + "\n" +
				`{applyTo: LISTENER_FILTER, match: {context: SIDECAR_OUTBOUND, listener: {name: virtualOutbound, listenerFilter: last}}, patch: {operation: INSERT_BEFORE, value: {name: first, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.listener.http_inspector.v3.HttpInspector}}}}`,
			web(), ident.LDS, "virtualOutbound", []string{`"listener_filters":[{"name":"first"`, `{"name":"last"`}, nil,
		},
		"LISTENER MERGE": {
			`{applyTo: LISTENER, match: {context: SIDECAR_OUTBOUND, listener: {portNumber: 80}}, patch: {operation: MERGE, value: {name: other, tcp_backlog_size: 9}}}`,
			web(), ident.LDS, "0.0.0.0_80", []string{`"name":"0.0.0.0_80"`, `"tcp_backlog_size":9`}, nil,
		},
		"LISTENER REMOVE": {`{applyTo: LISTENER, match: {listener: {name: 0.0.0.0_80}}, patch: {operation: REMOVE}}`, web(), ident.LDS, "0.0.0.0_80", nil, nil},
		"CLUSTER of the workload": {
			`{applyTo: CLUSTER, match: {context: SIDECAR_INBOUND, cluster: {portNumber: 8080}}, patch: {operation: MERGE, value: {connect_timeout: 77s}}}`,
			web(), ident.CDS, "inbound|8080||", []string{`"connect_timeout":"77s"`}, nil,
		},
		"CLUSTER of a subset that is not there": {
			`{applyTo: CLUSTER, match: {cluster: {service: api.example, subset: v1}}, patch: {operation: MERGE, value: {connect_timeout: 77s}}}`,
			web(), ident.CDS, "outbound|80||api.example", []string{`"connect_timeout"`}, []string{"77s"},
		},
		"HTTP_ROUTE of the workload": {
			`{applyTo: HTTP_ROUTE, match: {context: SIDECAR_INBOUND, routeConfiguration: {name: "inbound|8080||", vhost: {name: inbound, route: {name: default}}}}, patch: {operation: MERGE, value: {route: {timeout: 9s}}}}`,
			web(), ident.LDS, "virtualInbound", []string{`"cluster":"inbound|8080||","timeout":"9s"`}, []string{`"cluster":"InboundPassthroughCluster","timeout":"9s"`},
		},
		"HTTP_ROUTE REMOVE, INSERT_AFTER": {
			`{applyTo: HTTP_ROUTE, match: {context: SIDECAR_OUTBOUND, routeConfiguration: {name: "80", vhost: {name: "api.example:80", route: {name: default}}}}, patch: {operation: INSERT_AFTER, value: {name: last, match: {prefix: /}, redirect: {path_redirect: /x}}}}` + "\n" +
				`{applyTo: HTTP_ROUTE, match: {context: SIDECAR_OUTBOUND, routeConfiguration: {vhost: {name: allow_any, route: {action: ROUTE}}}}, patch: {operation: REMOVE}}`,
			web(), ident.RDS, "80", []string{`{"name":"last"`, `{"name":"allow_any","domains":["*"],"include_request_attempt_count":true}`}, nil,
		},
		"VIRTUAL_HOST REPLACE": {
			`{applyTo: VIRTUAL_HOST, match: {context: SIDECAR_OUTBOUND, routeConfiguration: {vhost: {name: "api.example:80"}}}, patch: {operation: REPLACE, value: {name: mine, domains: [api.example]}}}`,
			web(), ident.RDS, "80", []string{`{"name":"mine","domains":["api.example"]}`}, []string{`"api.example:80"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			text := mesh + filter("istio-system", "f", "", test.patches)
			pc := meshtest.PushContext(t, meshtest.YAML(t, text)...)
			got := served(t, pc, test.proxy, test.rt, test.resource)
			if (got == "") != (test.want == nil) {
				t.Errorf("%s: %q", test.resource, got)
			}
			for _, s := range test.want {
				if !strings.Contains(got, strings.ReplaceAll(s, " ", "")) {
					t.Errorf("no %s in\n%s", s, got)
				}
			}
			for _, s := range test.not {
				if strings.Contains(got, strings.ReplaceAll(s, " ", "")) {
					t.Errorf("%s in\n%s", s, got)
				}
			}
			without := served(t, meshtest.PushContext(t, meshtest.YAML(t, mesh)...), test.proxy, test.rt, test.resource)
			if (without == got) != (name == "CLUSTER of a subset that is not there") {
				t.Error("the patch makes no difference, or one that it should not make")
			}
		})
	}
}

// EF-7: patches count by priority, those of the root namespace first, then by the age and the
// names of their objects. EF-8, EF-4, EF-3: only patches that match the proxy count.
func TestOrderAndSelection(t *testing.T) {
	in := func(namespace, name, spec, match, prefix string) string {
		return filter(namespace, name, spec, `{applyTo: LISTENER, match: {`+match+`}, patch: {operation: MERGE, value: {stat_prefix: `+prefix+`}}}`)
	}
	first := in("shop", "a", "", "", "a")
	for name, test := range map[string]struct{ other, want string }{
		"the later name counts last":           {in("shop", "b", "", "", "b"), "b"},
		"the earlier name does not":            {in("shop", "0a", "", "", "b"), "a"},
		"a lower priority counts before":       {in("shop", "b", "  priority: -1\n", "", "b"), "a"},
		"a higher one last":                    {in("shop", "0a", "  priority: 1\n", "", "b"), "b"},
		"the root namespace counts before":     {in("istio-system", "b", "", "", "b"), "a"},
		"unless its priority is higher":        {in("istio-system", "b", "  priority: 1\n", "", "b"), "b"},
		"another namespace":                    {in("other", "b", "", "", "b"), "a"},
		"labels":                               {in("shop", "b", "  workloadSelector: {labels: {app: web}}\n", "", "b"), "b"},
		"other labels":                         {in("shop", "b", "  workloadSelector: {labels: {app: api}}\n", "", "b"), "a"},
		"labels in the root namespace":         {in("istio-system", "b", "  priority: 1\n  workloadSelector: {labels: {app: web}}\n", "", "b"), "b"},
		"a Gateway":                            {in("shop", "b", "  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gw}]\n", "", "b"), "a"},
		"its context":                          {in("shop", "b", "", "context: SIDECAR_OUTBOUND", "b"), "b"},
		"another context":                      {in("shop", "b", "", "context: SIDECAR_INBOUND", "b"), "a"},
		"that of gateways":                     {in("shop", "b", "", "context: GATEWAY", "b"), "a"},
		"that of waypoints":                    {in("shop", "b", "", "context: WAYPOINT", "b"), "a"},
		"its version":                          {in("shop", "b", "", `proxy: {proxyVersion: '^1\.29'}`, "b"), "b"},
		"another version":                      {in("shop", "b", "", `proxy: {proxyVersion: '^1\.30'}`, "b"), "a"},
		"an expression that is too long":       {in("shop", "b", "", `proxy: {proxyVersion: '`+strings.Repeat(".*", 600)+`'}`, "b"), "a"},
		"its metadata":                         {in("shop", "b", "", `proxy: {metadata: {ISTIO_VERSION: 1.29.0}}`, "b"), "b"},
		"other metadata":                       {in("shop", "b", "", `proxy: {metadata: {ISTIO_VERSION: 1.29.0, TIER: x}}`, "b"), "a"},
		"a name that the listener has":         {in("shop", "b", "", `listener: {name: virtualOutbound}`, "b"), "b"},
		"a name that the listener has not":     {in("shop", "b", "", `listener: {name: other}`, "b"), "a"},
		"a port of another listener":           {in("shop", "b", "", `listener: {portNumber: 80}`, "b"), "a"},
		"the port of the listener":             {in("shop", "b", "", `listener: {portNumber: 15001}`, "b"), "b"},
		"a class of Gateways":                  {in("istio-system", "b", "  priority: 1\n  targetRefs: [{group: gateway.networking.k8s.io, kind: GatewayClass, name: c}]\n", "", "b"), "a"},
		"the port of what is called elsewhere": {in("shop", "b", "", `listener: {portNumber: 8080}`, "b"), "a"},
	} {
		t.Run(name, func(t *testing.T) {
			pc := meshtest.PushContext(t, meshtest.YAML(t, mesh+first+test.other)...)
			if got := served(t, pc, web(), ident.LDS, "virtualOutbound"); !strings.Contains(got, `"stat_prefix":"`+test.want+`"`) {
				t.Errorf("want stat_prefix %s in %s", test.want, got)
			}
		})
	}
	older := in("shop", "z", "", "", "z")
	changes := meshtest.YAML(t, mesh+first)
	for _, c := range meshtest.YAML(t, strings.TrimPrefix(older, "---\n")) {
		changes = append(changes, c.At(time.Unix(1, 0).UTC()))
	}
	if got := served(t, meshtest.PushContext(t, changes...), web(), ident.LDS, "virtualOutbound"); !strings.Contains(got, `"stat_prefix":"a"`) {
		t.Errorf("the oldest object counts first: %s", got)
	}
}

// EF-10: a patch that changes concerns the parts that it can match, and no others.
func TestPushes(t *testing.T) {
	patch := func(timeout string) string {
		return filter("shop", "f", "", `{applyTo: CLUSTER, match: {context: SIDECAR_OUTBOUND, cluster: {service: api.example, portNumber: 80}}, patch: {operation: MERGE, value: {connect_timeout: `+timeout+`}}}
{applyTo: HTTP_FILTER, match: {context: SIDECAR_OUTBOUND, listener: {name: 0.0.0.0_80, filterChain: {filter: {name: `+hcm+`}}}}, patch: {operation: INSERT_FIRST, value: `+httpMark+`}}`)
	}
	other := strings.NewReplacer("api.example", "db.example", "name: api", "name: db").Replace(mesh[:strings.Index(mesh, "---")])
	w := meshtest.World(t, meshtest.YAML(t, mesh+"---\n"+other+patch("2s"))...)
	pc := index.NewPushContext(w)
	catalog := xds.NewCatalog(pc)
	class := index.Classify(pc, web())
	for rt := range ident.ResourceTypes {
		catalog.Set(class.Only(rt), rt)
	}
	var keys []ident.Key
	for o := range w.Objects("EnvoyFilter") {
		keys = append(keys, o.Key)
	}
	changed := meshtest.YAML(t, strings.TrimPrefix(patch("3s"), "---\n"))
	after, _, err := w.Apply(meshtest.Rows(changed...))
	if err != nil {
		t.Fatal(err)
	}
	next, inputs := pc.Next(after, keys)
	reads := func(rt ident.ResourceType, name string) bool {
		parts, search := catalog.Inputs(class, rt, name)
		return slices.ContainsFunc(inputs, func(in index.Input) bool { return slices.Contains(parts, in) || slices.Contains(search, in) })
	}
	for _, name := range []string{"outbound|80||db.example", "outbound|90||db.example", "inbound|8080||", "BlackHoleCluster"} {
		if reads(ident.CDS, name) {
			t.Errorf("cluster %s is made again", name)
		}
	}
	for _, name := range []string{"0.0.0.0_80", "virtualInbound", "virtualOutbound"} {
		if reads(ident.LDS, name) {
			t.Errorf("listener %s is made again", name)
		}
	}
	if !reads(ident.CDS, "outbound|80||api.example") {
		t.Error("the cluster that the patch matches is not made again")
	}
	if changes := catalog.Update(next, inputs); len(changes) != 1 || changes[0].Type != ident.CDS || !slices.Equal(changes[0].Names, []string{"outbound|80||api.example"}) {
		t.Errorf("changes: %+v", changes)
	}
	if !next.SameClasses(pc) {
		t.Error("proxies are in other classes")
	}
}

// EF-9: what Envoy would refuse, and what matches nothing, is reported with the object and its
// field, and stops no other patch.
func TestReported(t *testing.T) {
	good := `{applyTo: CLUSTER, match: {context: SIDECAR_OUTBOUND, cluster: {service: api.example}}, patch: {operation: MERGE, value: {connect_timeout: 77s}}}`
	for name, test := range map[string]struct{ patch, want string }{
		"a ring": {
			`{applyTo: CLUSTER, match: {cluster: {name: outbound|80||api.example}}, patch: {operation: MERGE, value: {lb_policy: RING_HASH, ring_hash_lb_config: {minimum_ring_size: 9, maximum_ring_size: 3}}}}`,
			"refused spec.configPatches[1].patch: Envoy would refuse the result: Cluster.ring_hash_lb_config.minimum_ring_size: 9 is above the maximum of 3",
		},
		"an added cluster": {
			`{applyTo: CLUSTER, patch: {operation: ADD, value: {name: x, connect_timeout: -1s}}}`,
			"refused spec.configPatches[1].patch: Envoy would refuse the result: Cluster.connect_timeout",
		},
		"a filter behind the last one": {
			`{applyTo: HTTP_FILTER, match: {context: SIDECAR_OUTBOUND}, patch: {operation: ADD, value: ` + httpMark + `}}`,
			"refused spec.configPatches[1].patch: Envoy would refuse the result: Listener.filter_chains[].filters[].typed_config.http_filters[]: envoy.filters.http.router must be the last HTTP filter",
		},
		"a listener without chains": {
			`{applyTo: FILTER_CHAIN, match: {context: GATEWAY}, patch: {operation: REMOVE}}`,
			"refused spec.configPatches[1].patch: Envoy would refuse the result: Listener.filter_chains: a listener needs a filter chain",
		},
		"no such cluster": {
			`{applyTo: CLUSTER, match: {cluster: {service: none.example}}, patch: {operation: MERGE, value: {connect_timeout: 1s}}}`,
			"unmatched spec.configPatches[1].match: it matches nothing that is made for the proxies that the object selects",
		},
		"no such virtual host": {
			`{applyTo: VIRTUAL_HOST, match: {routeConfiguration: {vhost: {domainName: none.example}}}, patch: {operation: REMOVE}}`,
			"unmatched spec.configPatches[1].match",
		},
		"another type": {
			`{applyTo: HTTP_FILTER, match: {context: SIDECAR_OUTBOUND, listener: {filterChain: {filter: {name: ` + hcm + `, subFilter: {name: envoy.filters.http.fault}}}}}, patch: {operation: MERGE, value: {` + buffer + `}}}`,
			"patch spec.configPatches[1].patch.value.typed_config: the filter has a configuration of type type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault",
		},
		"another name": {
			`{applyTo: CLUSTER, match: {cluster: {service: api.example}}, patch: {operation: MERGE, value: {name: x}}}`,
			"patch spec.configPatches[1].patch.value.name: a cluster keeps its name",
		},
		"a name twice": {
			`{applyTo: CLUSTER, patch: {operation: ADD, value: {name: x, connect_timeout: 1s}}}
{applyTo: CLUSTER, patch: {operation: ADD, value: {name: x, connect_timeout: 2s}}}`,
			"conflict spec.configPatches[2].patch.value.name",
		},
		"a port of the workload that any may have": {
			`{applyTo: HTTP_FILTER, match: {context: SIDECAR_INBOUND, listener: {portNumber: 7777, filterChain: {filter: {name: ` + hcm + `, subFilter: {name: ` + router + `}}}}}, patch: {operation: INSERT_BEFORE, value: ` + httpMark + `}}`, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			text := mesh + filter("shop", "f", "", good+"\n"+test.patch)
			all := problems(t, text)
			if test.want == "" && len(all) > 0 || test.want != "" && (len(all) != 1 || !strings.HasPrefix(all[0], test.want)) {
				t.Errorf("%q, want one that begins with %q", all, test.want)
			}
			if got := served(t, meshtest.PushContext(t, meshtest.YAML(t, text)...), web(), ident.CDS, "outbound|80||api.example"); !strings.Contains(got, `"connect_timeout":"77s"`) {
				t.Errorf("the good patch does not count: %s", got)
			}
		})
	}
}

// POL-17: no EnvoyFilter of a namespace that may not changes what policies decide; one of the
// root namespace does, and that is said.
func TestPolicies(t *testing.T) {
	manager := `"@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager`
	inbound := func(applyTo, match, patch string) string {
		return `{applyTo: ` + applyTo + `, match: {context: SIDECAR_INBOUND, ` + match + `}, patch: {` + patch + `}}`
	}
	slot := `listener: {filterChain: {filter: {name: ` + hcm + `, subFilter: {name: meshlog.authz.deny}}}}`
	all := `listener: {filterChain: {filter: {name: ` + hcm + `}}}`
	off := `typed_per_filter_config: {meshlog.authz.deny: {"@type": type.googleapis.com/envoy.config.route.v3.FilterConfig, disabled: true}}`
	for name, patch := range map[string]string{
		"a slot removed":             inbound("HTTP_FILTER", slot, `operation: REMOVE`),
		"a slot replaced":            inbound("HTTP_FILTER", slot, `operation: REPLACE, value: `+httpMark),
		"a slot disabled":            inbound("HTTP_FILTER", slot, `operation: MERGE, value: {disabled: true}`),
		"a slot renamed":             inbound("HTTP_FILTER", slot, `operation: MERGE, value: {name: x}`),
		"a filter before":            inbound("HTTP_FILTER", slot, `operation: INSERT_BEFORE, value: `+httpMark),
		"a filter first":             inbound("HTTP_FILTER", all, `operation: INSERT_FIRST, value: `+httpMark),
		"all filters replaced":       inbound("NETWORK_FILTER", all, `operation: MERGE_AND_REPLACE_LIST, value: {typed_config: {`+manager+`, http_filters: [{name: `+router+`, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]}}`),
		"paths as they are":          inbound("NETWORK_FILTER", all, `operation: MERGE, value: {typed_config: {`+manager+`, path_with_escaped_slashes_action: KEEP_UNCHANGED, normalize_path: false}}`),
		"a header of the client":     inbound("NETWORK_FILTER", all, `operation: MERGE, value: {typed_config: {`+manager+`, forward_client_cert_details: ALWAYS_FORWARD_ONLY}}`),
		"another address":            inbound("NETWORK_FILTER", all, `operation: MERGE, value: {typed_config: {`+manager+`, use_remote_address: false, xff_num_trusted_hops: 3}}`),
		"filters of an upgrade":      inbound("NETWORK_FILTER", all, `operation: MERGE, value: {typed_config: {`+manager+`, upgrade_configs: [{upgrade_type: x, filters: [{name: `+router+`, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]}]}}`),
		"the manager replaced":       inbound("NETWORK_FILTER", all, `operation: REPLACE, value: {name: x, typed_config: {`+tcpType+`, stat_prefix: x, cluster: BlackHoleCluster}}`),
		"the manager removed":        inbound("NETWORK_FILTER", all, `operation: REMOVE`),
		"a slot off for the routes":  inbound("ROUTE_CONFIGURATION", ``, `operation: MERGE, value: {`+off+`}`),
		"a slot off for a host":      inbound("VIRTUAL_HOST", ``, `operation: MERGE, value: {`+off+`}`),
		"a slot off for a route":     inbound("HTTP_ROUTE", ``, `operation: MERGE, value: {`+off+`}`),
		"a chain":                    inbound("FILTER_CHAIN", `listener: {portNumber: 8080}`, `operation: REMOVE`),
		"a more exact chain":         inbound("FILTER_CHAIN", `listener: {name: virtualInbound}`, `operation: ADD, value: {filter_chain_match: {destination_port: 8080, source_ports: [7]}, filters: [{name: x, typed_config: {`+tcpType+`, stat_prefix: x, cluster: BlackHoleCluster}}]}`),
		"the match of a chain":       inbound("FILTER_CHAIN", `listener: {portNumber: 8080}`, `operation: MERGE, value: {filter_chain_match: {source_ports: [7]}}`),
		"the TLS of a chain":         inbound("FILTER_CHAIN", `listener: {portNumber: 8080}`, `operation: MERGE, value: {transport_socket: {name: envoy.transport_sockets.raw_buffer, typed_config: {"@type": type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer}}}`),
		"a default chain":            inbound("LISTENER", `listener: {name: virtualInbound}`, `operation: MERGE, value: {default_filter_chain: {filters: [{name: x, typed_config: {`+tcpType+`, stat_prefix: x, cluster: BlackHoleCluster}}]}}`),
		"the listener removed":       inbound("LISTENER", `listener: {name: virtualInbound}`, `operation: REMOVE`),
		"listener filters":           inbound("LISTENER_FILTER", `listener: {name: virtualInbound, listenerFilter: envoy.filters.listener.tls_inspector}`, `operation: REMOVE`),
		"the listener of an upgrade": inbound("LISTENER", ``, `operation: ADD, value: {name: inbound_10.0.0.1_80, address: {socket_address: {address: 10.0.0.1, port_value: 80}}, filter_chains: [{filters: []}]}`),
		"the content of a slot":      inbound("EXTENSION_CONFIG", ``, `operation: ADD, value: {name: meshlog.authz.deny, `+buffer+`}`),
	} {
		t.Run(name, func(t *testing.T) {
			before := meshtest.PushContext(t, meshtest.YAML(t, mesh)...)
			for _, namespace := range []string{"shop", "istio-system"} {
				text := mesh + filter(namespace, "f", "", strings.ReplaceAll(patch, ", }", "}"))
				pc := meshtest.PushContext(t, meshtest.YAML(t, text)...)
				changes := 0
				for rt, names := range map[ident.ResourceType][]string{ident.LDS: {"virtualInbound", "inbound_10.0.0.1_80"}, ident.ECDS: {"meshlog.authz.deny"}} {
					for _, resource := range names {
						was, is := served(t, before, web(), rt, resource), served(t, pc, web(), rt, resource)
						if was != is {
							changes++
						}
						if slots := strings.Index(is, `"name":"mark"`); namespace == "shop" && slots >= 0 && slots < strings.Index(is, "meshlog.authz.allow") {
							t.Errorf("a filter comes before policies: %s", is)
						}
					}
				}
				if behind := name == "a filter first" || name == "a filter before"; namespace == "shop" && !behind && changes > 0 || namespace != "shop" && changes == 0 {
					t.Errorf("%s: %d resources change", namespace, changes)
				}
				all := problems(t, text)
				if !slices.ContainsFunc(all, func(s string) bool { return strings.HasPrefix(s, "touches-policies spec.configPatches[0].patch") }) {
					t.Errorf("%s: %q: it is not said", namespace, all)
				}
			}
		})
	}
}

// POL-17 protects what policies depend on and nothing else.
func TestWhatANamespaceMayDo(t *testing.T) {
	manager := `"@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager`
	text := mesh + filter("shop", "f", "", `{applyTo: NETWORK_FILTER, match: {context: SIDECAR_INBOUND, listener: {filterChain: {filter: {name: `+hcm+`}}}}, patch: {operation: MERGE, value: {typed_config: {`+manager+`, max_request_headers_kb: 96}}}}
{applyTo: HTTP_FILTER, match: {context: SIDECAR_INBOUND, listener: {filterChain: {filter: {name: `+hcm+`, subFilter: {name: meshlog.authz.allow}}}}}, patch: {operation: INSERT_AFTER, value: `+httpMark+`}}
{applyTo: NETWORK_FILTER, match: {context: SIDECAR_INBOUND, listener: {filterChain: {filter: {name: `+hcm+`}}}}, patch: {operation: INSERT_BEFORE, value: `+netMark+`}}
{applyTo: LISTENER, match: {context: SIDECAR_INBOUND, listener: {name: virtualInbound}}, patch: {operation: MERGE, value: {tcp_backlog_size: 99}}}
{applyTo: HTTP_ROUTE, match: {context: SIDECAR_INBOUND}, patch: {operation: MERGE, value: {route: {timeout: 33s}}}}`)
	if all := problems(t, text); len(all) > 0 {
		t.Errorf("%q", all)
	}
	got := served(t, meshtest.PushContext(t, meshtest.YAML(t, text)...), web(), ident.LDS, "virtualInbound")
	for _, want := range []string{`"max_request_headers_kb":96`, `"name":"mark"`, `"max_connections":"7"`, `"tcp_backlog_size":99`, `"timeout":"33s"`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
}
