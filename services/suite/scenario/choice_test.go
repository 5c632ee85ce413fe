package scenario

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/wrapperspb"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/simulate"
	"meshlog.dev/services/mesh/xds"
)

// entrance is a listener that the test adds to a router: all connections arrive there, as at
// the virtual listener of a sidecar. It keeps those that no other listener takes.
const entrance = "entrance"

// chooser returns an Envoy with all listeners that a proxy is served, at the addresses that
// they have. One of them is on a Unix socket and passes each connection to the listener of its
// destination: that of a sidecar does, and a router gets an entrance. On a port, Envoy would
// prefer the destination that the kernel tells to the one of the PROXY protocol.
//
// The outcomes are those of the calls that it will get: destinations that are missing get a
// cluster, so that Envoy tells them.
func chooser(t *testing.T, sets [ident.ResourceTypes]*xds.Set, outcomes []simulate.Outcome) *router {
	t.Helper()
	var all []*listenerv3.Listener
	var names []string
	path := filepath.Join(t.TempDir(), "in")
	add := func(l *listenerv3.Listener) {
		own := observed(t, len(all), l)
		if l.GetUseOriginalDst().GetValue() {
			own.UseOriginalDst = l.GetUseOriginalDst()
			own.Address = &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
		} else {
			own.Address, own.AdditionalAddresses, own.BindToPort = l.GetAddress(), l.GetAdditionalAddresses(), wrapperspb.Bool(false)
			own.ListenerFilters = own.GetListenerFilters()[1:] // the other one has read the addresses
		}
		all, names = append(all, own), append(names, l.GetName())
	}
	clusters := map[string]*clusterv3.Cluster{"BlackHoleCluster": {Name: "BlackHoleCluster"}}
	for _, r := range sets[ident.LDS].Resources {
		add(hosted(t, listener(t, sets, r.Name)))
	}
	if !slices.ContainsFunc(all, func(l *listenerv3.Listener) bool { return l.GetUseOriginalDst().GetValue() }) {
		closes := &tcpv3.TcpProxy{StatPrefix: entrance, ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: "BlackHoleCluster"}}
		add(&listenerv3.Listener{Name: entrance, UseOriginalDst: wrapperspb.Bool(true), FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{
			{Name: "envoy.filters.network.tcp_proxy", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(t, closes)}},
		}}}})
	}
	for _, r := range sets[ident.CDS].Resources {
		clusters[r.Name] = &clusterv3.Cluster{Name: r.Name}
	}
	for _, o := range outcomes {
		for _, to := range o.To {
			clusters[to.Cluster] = &clusterv3.Cluster{Name: to.Cluster}
		}
	}
	r := routes(t, all, slices.Collect(maps.Values(clusters)))
	r.names, r.path = names, path
	return r
}

// hosted puts the names of virtual hosts before those of their routes, which Envoy tells.
func hosted(t *testing.T, l *listenerv3.Listener) *listenerv3.Listener {
	t.Helper()
	eachManager(t, l, func(m *hcmv3.HttpConnectionManager) {
		for _, h := range m.GetRouteConfig().GetVirtualHosts() {
			for _, r := range h.GetRoutes() {
				r.Name = m.GetRouteConfig().GetName() + " " + h.GetName() + " " + r.GetName()
			}
		}
	})
	return l
}

// chosen is expected with the listener and the virtual host.
func chosen(c simulate.Call, o simulate.Outcome, got answer) answer {
	if o.Listener == "" {
		return answer{Listener: entrance, Cluster: "BlackHoleCluster"}
	}
	want := expected(c, o, got)
	want.Listener = o.Listener
	switch full := o.RouteConfiguration + " " + o.VirtualHost + " " + o.Route; {
	case o.RouteConfiguration == "":
	case o.Route != "" || got.Route == full: // a 404 has no route
		want.Route = full
	}
	if c.TCP && want.Status == http.StatusBadRequest && slices.Contains(c.ALPN, "h2") && got.Status == 0 {
		want.Status, want.Answered = 0, false // HTTP/2 ends with a frame of its own
	}
	return want
}

// world draws services, routes, Sidecars and Gateways whose addresses, ports and names meet.
func (d drawer) world() string {
	var all []string
	object := func(kind, name, namespace, spec string, args ...any) {
		all = append(all, fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: %s\nmetadata: {name: %s, namespace: %s}\nspec: {%s}\n", kind, name, namespace, fmt.Sprintf(spec, args...)))
	}
	for i := range 10 {
		name := fmt.Sprintf("s%d", i)
		var ports []string
		taken := map[string]bool{}
		for range 1 + d.IntN(3) {
			number, protocol, _ := strings.Cut(d.one("80 HTTP", "80 HTTP", "80 TCP", "443 TLS", "443 TLS", "443 HTTPS", "5432 TCP", "5432 TCP", "9000 HTTP", "9000 TCP", "8080 HTTP", "8080 GRPC", "443 TCP"), " ")
			if !taken[number] {
				taken[number] = true
				ports = append(ports, fmt.Sprintf("{number: %s, name: p%[1]s, protocol: %s}", number, protocol))
			}
		}
		addresses := d.one("", "", fmt.Sprintf("addresses: [10.9.0.%d], ", i), fmt.Sprintf("addresses: [10.9.0.%d], ", d.IntN(3)), "addresses: [10.9.0.0/28], ", "addresses: [10.9.0.0/24, 10.9.1.0/24], ")
		object("ServiceEntry", name, d.one("shop", "bank"), "hosts: [%s], %sports: [%s], resolution: STATIC, endpoints: [{address: 192.0.2.%d}]", d.one(name+".example", name+".example", "one.example"), addresses, strings.Join(ports, ", "), i+1)
	}
	for i := range 5 {
		to := func() string { return fmt.Sprintf("s%d.example", d.IntN(10)) }
		host := fmt.Sprintf("s%d.example", 2*i+d.IntN(2))
		object("VirtualService", fmt.Sprintf("v%d", i), "shop",
			"hosts: [%q], gateways: [mesh, edge], http: [{match: [{uri: {prefix: /a}}], route: [{destination: {host: %s}}]}, {route: [{destination: {host: %s, port: {number: 80}}}]}], tls: [{match: [{sniHosts: [%q], port: 443}], route: [{destination: {host: %s, port: {number: 443}}}]}], tcp: [{match: [{port: %s, destinationSubnets: [%s]}], route: [{destination: {host: %s, port: {number: 5432}}}]}, {route: [{destination: {host: %s, port: {number: 5432}}}]}]",
			d.one(host, host, "*.example"), to(), to(), host, to(), d.one("5432", "9000"), d.one("10.9.0.0/30", "10.9.0.1", "10.9.0.0/16"), to(), to())
	}
	if d.IntN(3) > 0 {
		object("Sidecar", "default", "shop", `outboundTrafficPolicy: {mode: %s}, egress: [{port: {number: %s, protocol: %s, name: p}, %shosts: [%q]}, {hosts: [%q]}]`,
			d.one("ALLOW_ANY", "REGISTRY_ONLY"), d.one("80", "9000", "5432"), d.one("HTTP", "TCP"), d.one("", "bind: 10.8.0.1, ", "bind: 0.0.0.0, "), d.one("*/*", "./*", "bank/*"), d.one("*/*", "./*"))
	}
	var servers []string
	for i := range 7 {
		port, mode, _ := strings.Cut(d.one("80 HTTP", "80 HTTP", "443 SIMPLE", "443 SIMPLE", "443 PASSTHROUGH", "443 PASSTHROUGH", "9000 TCP", "8080 HTTP", "5432 TCP"), " ")
		protocol, tls := mode, ""
		switch mode {
		case "SIMPLE":
			protocol, tls = "HTTPS", ", tls: {mode: SIMPLE, credentialName: edge}"
		case "PASSTHROUGH":
			protocol, tls = "TLS", ", tls: {mode: PASSTHROUGH}"
		}
		servers = append(servers, fmt.Sprintf("{port: {number: %s, name: p%d, protocol: %s}, %shosts: [%q]%s}", port, i, protocol, d.one("", "", "bind: 10.9.0.1, "), d.one("*", "*.example", "s1.example", "s2.example", "s3.example"), tls))
	}
	object("Gateway", "edge", "shop", "servers: [%s]", strings.Join(servers, ", "))
	return strings.Join(all, "---\n")
}

// connection draws a request or a bare connection to an address.
func (d drawer) connection() simulate.Call {
	host := fmt.Sprintf("s%d.example", d.IntN(10))
	c := simulate.Call{
		Address: netip.MustParseAddr(d.one("10.9.0.0", "10.9.0.1", "10.9.0.2", fmt.Sprintf("10.9.0.%d", d.IntN(18)), "10.9.1.7", "10.8.0.1", "192.0.2.77")),
		Port:    []uint32{80, 80, 443, 443, 443, 5432, 9000, 8080, 81, 15001}[d.IntN(10)], From: netip.MustParseAddr("127.0.0.1"), Headers: map[string][]string{},
	}
	if c.TLS = d.IntN(2) == 0; c.TLS {
		c.ServerName = d.one(host, host, "a.example", "S1.example", "other", "")
	}
	if c.TCP = d.IntN(3) == 0; c.TCP {
		if c.TLS && d.IntN(2) == 0 {
			c.ALPN = d.two("h2", "http/1.1", "istio", "x")
		}
		return c
	}
	c.Method, c.Host, c.Path = d.one("GET", "POST"), d.one(host, host, host+":80", "a.example", "other", c.Address.String()), d.one("/", "/a", "/b/a")
	if c.TLS && d.IntN(2) == 0 {
		c.ALPN = []string{"http/1.1"}
	}
	return c
}

func (d drawer) two(of ...string) []string {
	i := d.IntN(len(of))
	return []string{of[i], of[(i+1)%len(of)]}
}

// choices counts what connections of drawn worlds meet.
type choices struct {
	seen                   map[string]bool // listeners, chains and virtual hosts
	missed, closed, differ int
}

// A real Envoy with all listeners of a proxy takes drawn connections in drawn worlds as the
// simulation says: by the listener of their destination (LSN-1), its filter chain, by server
// name, protocol and address, the virtual host and route of a request, and the cluster.
//
// The destination of a connection comes by the PROXY protocol in place of a redirection of
// the kernel; from there on Envoy looks for the listener as it always does.
func TestRandomWorldsAsEnvoy(t *testing.T) {
	const worlds = 8
	n := choices{seen: map[string]bool{}}
	for seed := range uint64(worlds) {
		d := drawer{rand.New(rand.NewPCG(17, seed))} //nolint:gosec // the same draw in each run
		s := newStage(t)
		if err := s.put(place{files, "mesh.yaml"}, d.world()); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"sidecar.shop", "router.shop"} {
			p, err := s.proxy(name)
			if err != nil {
				t.Fatal(err)
			}
			n.compare(t, fmt.Sprintf("seed %d, %s", seed, name), d, s.sets(s.pc, p))
		}
	}
	t.Logf("%d listeners, chains and virtual hosts; %d connections that no listener takes, %d that no chain takes", len(n.seen), n.missed, n.closed)
	if len(n.seen) < 15*worlds || n.missed < worlds || n.closed < worlds {
		t.Error("too few different outcomes to compare")
	}
}

// compare draws connections to a proxy, and compares what Envoy does with the simulation.
func (n *choices) compare(t *testing.T, where string, d drawer, sets [ident.ResourceTypes]*xds.Set) {
	t.Helper()
	simulated, err := simulate.NewProxy(sets)
	if err != nil {
		t.Fatal(err)
	}
	calls := make([]simulate.Call, 150)
	outcomes := make([]simulate.Outcome, len(calls))
	for i := range calls {
		calls[i] = d.connection()
		outcomes[i] = simulated.Call(calls[i])
	}
	envoy := chooser(t, sets, outcomes)
	for i, c := range calls {
		o := outcomes[i]
		if o.Unknown != "" {
			t.Fatalf("%s: %+v: %s", where, c, o.Unknown)
		}
		got, err := envoy.ask(c, 0)
		if err != nil {
			t.Fatalf("%s: %+v: %v", where, c, err)
		}
		if diff := cmp.Diff(chosen(c, o, got), got); diff != "" {
			t.Errorf("%s: %+v\n%s\n(-simulated +Envoy):\n%s", where, c, strings.Join(o.Lines(), "\n"), diff)
			if n.differ++; n.differ == 20 {
				t.FailNow()
			}
		}
		n.seen[fmt.Sprint(where, o.Listener, o.FilterChain, o.VirtualHost)] = true
		switch {
		case o.Listener == "":
			n.missed++
		case o.Closed:
			n.closed++
		}
	}
}
