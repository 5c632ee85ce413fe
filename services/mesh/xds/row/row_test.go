package row_test

import (
	"slices"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/row"
	"meshlog.dev/services/suite/envoytest"
)

func encode(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func routes(hosts ...*routev3.VirtualHost) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{Name: "r", VirtualHosts: hosts}
}

func virtualHost(name string, settings map[string]*anypb.Any) *routev3.VirtualHost {
	return &routev3.VirtualHost{Name: name, Domains: []string{name}, Routes: []*routev3.Route{{
		Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
		Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 200}}, TypedPerFilterConfig: settings,
	}}}
}

func denying(user string) map[string]*anypb.Any {
	return map[string]*anypb.Any{"rbac": piece.Any(&rbacv3.RBACPerRoute{Rbac: &rbacv3.RBAC{Rules: &rbacconfigv3.RBAC{
		Policies: map[string]*rbacconfigv3.Policy{user: {}},
	}}})}
}

func faulty() map[string]*anypb.Any {
	return map[string]*anypb.Any{"fault": piece.Any(&faultv3.HTTPFault{UpstreamCluster: "x"})}
}

// A virtual host with security settings that the last good one lacks answers 503
// instead of falling back to what is more open (section 5, item 1).
func TestSecurityNeverFallsBack(t *testing.T) {
	for _, c := range []struct {
		name      string
		good, bad *routev3.VirtualHost
		closed    bool
	}{
		{"nothing is protected", virtualHost("a", nil), virtualHost("a", faulty()), false},
		{"a rule is new", virtualHost("a", nil), virtualHost("a", denying("u")), true},
		{"another rule", virtualHost("a", denying("u")), virtualHost("a", denying("v")), true},
		{"the same rule", virtualHost("a", denying("u")), virtualHost("a", denying("u")), false},
		{"the rule is gone", virtualHost("a", denying("u")), virtualHost("a", nil), false},
		{"TLS is required now", virtualHost("a", nil), &routev3.VirtualHost{Name: "a", Domains: []string{"a"}, RequireTls: routev3.VirtualHost_ALL}, true},
	} {
		c.bad.IncludeRequestAttemptCount = true // so that the pieces differ
		rejection := row.Case{Type: ident.RDS, Name: "r", Made: encode(t, routes(c.bad)), Good: encode(t, routes(c.good))}
		held := rejection.Blame()
		if len(held) != 1 || held[0].Closed != c.closed {
			t.Errorf("%s: held back is %+v, want closed: %t", c.name, held, c.closed)
		}
		if whole := row.Whole(ident.RDS, encode(t, routes(c.bad)), encode(t, routes(c.good))); whole.Closed != c.closed {
			t.Errorf("%s: the whole resource is closed: %t", c.name, whole.Closed)
		}
	}
	socket := &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: piece.Any(&tlsv3.UpstreamTlsContext{Sni: "a"})}}
	plain, secure := encode(t, &clusterv3.Cluster{Name: "c"}), encode(t, &clusterv3.Cluster{Name: "c", TransportSocket: socket})
	closed := encode(t, closedCluster("c"))
	if w := row.Whole(ident.CDS, secure, plain); !w.Closed || string(w.Value) != string(closed) {
		t.Error("a cluster with TLS that is rejected falls back to plaintext")
	}
	if w := row.Whole(ident.CDS, plain, secure); string(w.Value) != string(secure) {
		t.Error("a cluster without TLS does not get its last good content")
	}
}

// Whether a cluster checks the name of who answers counts as security, and so does a
// filter of a listener that is disabled or found elsewhere.
func TestSecurityBesideFilters(t *testing.T) {
	cluster := func(validates bool) []byte {
		return encode(t, &clusterv3.Cluster{Name: "c", TypedExtensionProtocolOptions: map[string]*anypb.Any{"http": piece.Any(&httpv3.HttpProtocolOptions{
			UpstreamHttpProtocolOptions: &corev3.UpstreamHttpProtocolOptions{AutoSni: true, AutoSanValidation: validates},
		})}})
	}
	if w := row.Whole(ident.CDS, cluster(true), cluster(false)); !w.Closed {
		t.Error("a cluster that checks names falls back to one that does not")
	}
	with := func(filters ...*hcmv3.HttpFilter) []byte {
		return encode(t, listener(&listenerv3.FilterChain{Filters: []*listenerv3.Filter{{Name: "hcm", ConfigType: &listenerv3.Filter_TypedConfig{
			TypedConfig: piece.Any(&hcmv3.HttpConnectionManager{HttpFilters: filters}),
		}}}}))
	}
	rbac := func(disabled bool) *hcmv3.HttpFilter {
		return &hcmv3.HttpFilter{Name: "rbac", Disabled: disabled, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: piece.Any(&rbacv3.RBAC{})}}
	}
	found := func(name string) *hcmv3.HttpFilter {
		return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{ConfigDiscovery: &corev3.ExtensionConfigSource{TypeUrls: []string{"x"}}}}
	}
	for _, c := range []struct {
		name      string
		bad, good []byte
		closed    bool
	}{
		{"the filter was off", with(rbac(false)), with(rbac(true)), true},
		{"the filter was on", with(rbac(false)), with(rbac(false)), false},
		{"another filter was found elsewhere", with(found("a")), with(found("b")), true},
		{"the same filter was found elsewhere", with(found("a")), with(found("a")), false},
	} {
		if w := row.Whole(ident.LDS, c.bad, c.good); w.Closed != c.closed {
			t.Errorf("%s: closed is %t", c.name, w.Closed)
		}
	}
}

func listener(chains ...*listenerv3.FilterChain) *listenerv3.Listener {
	return &listenerv3.Listener{
		Name: "l", BindToPort: wrapperspb.Bool(false), FilterChains: chains,
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: "10.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 443},
		}}},
	}
}

func chain(name, server string, tls bool) *listenerv3.FilterChain {
	c := &listenerv3.FilterChain{Name: name, FilterChainMatch: &listenerv3.FilterChainMatch{ServerNames: []string{server}}}
	if tls {
		c.TransportSocket = &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: piece.Any(&tlsv3.DownstreamTlsContext{})}}
	}
	return c
}

// A rejected filter chain keeps its match: with its last good content, or closed.
func TestFilterChains(t *testing.T) {
	for _, c := range []struct {
		name      string
		good, bad *listenerv3.FilterChain
		closed    bool
	}{
		{"it changed", chain("one", "a", false), chain("two", "a", false), false},
		{"it has another match", chain("one", "a", false), chain("two", "b", false), true},
		{"it has TLS now", chain("one", "a", false), chain("two", "a", true), true},
	} {
		other := chain("other", "z", true)
		made := encode(t, listener(c.bad, other))
		rejection := row.Case{Type: ident.LDS, Name: "l", Made: made, Good: encode(t, listener(c.good, other)), Message: "error adding listener 'l': it is bad"}
		held := rejection.Blame()
		if len(held) != 1 || held[0].Closed != c.closed || held[0].Name != "filter chain two" {
			t.Fatalf("%s: held back is %+v", c.name, held)
		}
		value, replaced := row.Replace(ident.LDS, made, func(s row.Sum) ([]byte, bool) { return held[0].Value, s == held[0].Sum })
		is := new(listenerv3.Listener)
		if err := proto.Unmarshal(value, is); err != nil || !replaced {
			t.Fatalf("%s: %v", c.name, err)
		}
		if n := len(is.GetFilterChains()); n != 2 || !proto.Equal(is.GetFilterChains()[0].GetFilterChainMatch(), c.bad.GetFilterChainMatch()) || !proto.Equal(is.GetFilterChains()[1], other) {
			t.Errorf("%s: served is %v", c.name, is)
		}
		// If even that is rejected, the whole listener is held back.
		rejection.With = map[row.Sum]row.StandIn{held[0].Sum: held[0].StandIn}
		rejection.Good = nil
		if again := rejection.Blame(); c.closed && len(again) != 1 || !c.closed && len(again) == 0 {
			t.Errorf("%s: held back is %+v after another rejection", c.name, again)
		}
	}
	closed := row.Whole(ident.LDS, encode(t, listener(chain("one", "a", true))), nil)
	is := new(listenerv3.Listener)
	if err := proto.Unmarshal(closed.Value, is); err != nil || !closed.Closed || is.GetDefaultFilterChain() == nil || len(is.GetFilterChains()) > 0 || is.GetBindToPort().GetValue() {
		t.Errorf("a listener that never was good is %v (%v)", is, err)
	}
}

// What takes the place of a generated message that clients refuse: it closes as
// little as it can, and is nothing if clients refuse even that (PRO-7).
func TestClose(t *testing.T) {
	refuses := func(texts ...string) func(proto.Message) bool {
		return func(m proto.Message) bool {
			text := prototext.Format(m)
			return slices.ContainsFunc(texts, func(one string) bool { return strings.Contains(text, one) })
		}
	}
	bad, fine, last := chain("bad", "a", true), chain("fine", "b", true), chain("last", "", true)
	last.FilterChainMatch = nil
	router := listener(bad, fine)
	router.DefaultFilterChain = last
	bad.Filters = []*listenerv3.Filter{{Name: "broken"}}
	broken := &listenerv3.FilterChain{Name: "last", Filters: []*listenerv3.Filter{{Name: "broken"}}}
	faulty := virtualHost("a", nil)
	faulty.Routes[0].Name = "broken"
	for _, c := range []struct {
		name    string
		m       proto.Message
		partial bool
		refused func(proto.Message) bool
		pieces  string
		want    string // what is served: closed chains and hosts with a !
	}{
		{"one chain", router, false, refuses("broken"), "filter chain bad", "bad! fine last"},
		{"a default chain", &listenerv3.Listener{DefaultFilterChain: broken}, true, refuses("broken"), "default filter chain", "last!"},
		{"another field", router, false, refuses("fine", "bad", "last"), "", "!"},
		{"the address", router, false, refuses("10.0.0.1"), "", "nothing"},
		{"the match of a chain", &listenerv3.Listener{FilterChains: []*listenerv3.FilterChain{bad}}, true, refuses(`server_names`), "", "nothing"},
		{"a listener of a gRPC client", &listenerv3.Listener{Name: "broken", ApiListener: &listenerv3.ApiListener{}}, false, refuses("broken"), "", "nothing"},
		{"one host", routes(faulty, virtualHost("b", nil)), false, refuses("broken"), "virtual host a", "a! b"},
		{"a part without hosts", &routev3.RouteConfiguration{Name: "broken"}, true, refuses("broken"), "", "nothing"},
		{"a cluster", &clusterv3.Cluster{Name: "c", AltStatName: "broken"}, false, refuses("broken"), "", "c!"},
		{"the name of a cluster", &clusterv3.Cluster{Name: "broken"}, false, refuses("broken"), "", "nothing"},
		{"endpoints", &endpointv3.ClusterLoadAssignment{ClusterName: "broken"}, false, refuses("broken"), "", "nothing"},
	} {
		before := proto.Clone(c.m)
		closed, pieces := row.Close(c.m, c.partial, c.refused)
		if got := strings.Join(pieces, ", "); got != c.pieces {
			t.Errorf("%s: closed pieces are %q, want %q", c.name, got, c.pieces)
		}
		if got := shape(closed); got != c.want {
			t.Errorf("%s: served is %q, want %q", c.name, got, c.want)
		}
		if closed != nil && c.refused(closed) {
			t.Errorf("%s: clients refuse what is served", c.name)
		}
		if !proto.Equal(before, c.m) {
			t.Errorf("%s: the message changed", c.name)
		}
	}
}

// Envoy takes routes with validate_clusters that name a closed cluster: a rejected
// cluster must not freeze them (section 5, item 1).
func TestRoutesToAClosedCluster(t *testing.T) {
	h := virtualHost("a", nil)
	h.Routes[0].Action = &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: "c"}}}
	r := routes(h)
	r.ValidateClusters = wrapperspb.Bool(true)
	is := new(clusterv3.Cluster)
	if err := proto.Unmarshal(row.Whole(ident.CDS, encode(t, &clusterv3.Cluster{Name: "c", AltStatName: "bad"}), nil).Value, is); err != nil {
		t.Fatal(err)
	}
	envoytest.Validate(t, envoytest.Config{Clusters: []*clusterv3.Cluster{is}, Routes: []*routev3.RouteConfiguration{r}})
}

func closedCluster(name string) *clusterv3.Cluster {
	return &clusterv3.Cluster{Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}}
}

// A closed listener keeps what Envoy refuses to change in an update: whether workers
// share the port, and without that the options of the socket.
func TestClosedListenerKeepsItsSocket(t *testing.T) {
	for _, reuse := range []*wrapperspb.BoolValue{nil, wrapperspb.Bool(true), wrapperspb.Bool(false)} {
		l := listener(chain("one", "a", true))
		l.EnableReusePort, l.Freebind, l.Transparent = reuse, wrapperspb.Bool(true), wrapperspb.Bool(true)
		l.SocketOptions, l.TcpFastOpenQueueLength = []*corev3.SocketOption{{Level: 1, Name: 9}}, wrapperspb.UInt32(5)
		is := new(listenerv3.Listener)
		if err := proto.Unmarshal(row.Whole(ident.LDS, encode(t, l), nil).Value, is); err != nil {
			t.Fatal(err)
		}
		want := &listenerv3.Listener{Name: l.Name, Address: l.Address, BindToPort: l.BindToPort, EnableReusePort: reuse, DefaultFilterChain: is.GetDefaultFilterChain()}
		if reuse != nil && !reuse.GetValue() {
			want.Freebind, want.Transparent, want.SocketOptions, want.TcpFastOpenQueueLength = l.Freebind, l.Transparent, l.SocketOptions, l.TcpFastOpenQueueLength
		}
		if !proto.Equal(want, is) {
			t.Errorf("reuse %v: served is %v, want %v", reuse, is, want)
		}
	}
}

// shape names the pieces of a resource, the closed ones with a !.
func shape(m proto.Message) string {
	var all []string
	add := func(name string, closed bool) {
		if closed {
			name += "!"
		}
		all = append(all, name)
	}
	switch m := m.(type) {
	case nil:
		return "nothing"
	case *clusterv3.Cluster:
		add(m.GetName(), proto.Equal(m, closedCluster(m.GetName())))
	case *routev3.RouteConfiguration:
		for _, h := range m.GetVirtualHosts() {
			add(h.GetName(), h.GetRoutes()[0].GetDirectResponse().GetStatus() == 503)
		}
	case *listenerv3.Listener:
		for _, c := range append(slices.Clone(m.GetFilterChains()), m.GetDefaultFilterChain()) {
			if c != nil {
				add(c.GetName(), c.GetTransportSocket() == nil && c.GetFilters()[0].GetName() == "envoy.filters.network.tcp_proxy")
			}
		}
	}
	return strings.Join(all, " ")
}

// Bytes that are no message, and resources without pieces, are left alone.
func TestReplaceNothing(t *testing.T) {
	always := func(row.Sum) ([]byte, bool) { return []byte("x"), true }
	for _, value := range []string{"", "\xff\xff", "\x0a\x01r", strings.Repeat("\x0a", 3)} {
		if got, replaced := row.Replace(ident.RDS, []byte(value), always); replaced || string(got) != value {
			t.Errorf("%q becomes %q", value, got)
		}
	}
	if _, replaced := row.Replace(ident.CDS, []byte("\x12\x01r"), always); replaced {
		t.Error("a piece of a cluster is replaced")
	}
}
