// Package envoytest asks a real Envoy whether it takes what is generated.
package envoytest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"meshlog.dev/deploy/testkit/program"
)

// Config is what one Envoy is to take.
type Config struct {
	Clusters  []*clusterv3.Cluster
	Endpoints []*endpointv3.ClusterLoadAssignment
	Listeners []*listenerv3.Listener
	Routes    []*routev3.RouteConfiguration
	Filters   []*corev3.TypedExtensionConfig
}

// patience is how long Envoy may look at a configuration.
const patience = 30 * time.Second

// Validate fails the test with what Envoy says if it does not take c as a
// static configuration. What would come by EDS, RDS and ECDS is put into the
// clusters and listeners that ask for it, so that Envoy looks at it too; routes
// that no listener asks for get a listener of their own. Secrets are in it as static
// ones, all with one certificate.
func Validate(t testing.TB, c Config) {
	t.Helper()
	b := c.Bootstrap(t)
	InlineSecrets(t, b, selfSigned(t))
	path := Write(t, t.TempDir(), b)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, Envoy(t), "--mode", "validate", "-l", "warning", "-c", path).CombinedOutput()
	if err != nil {
		t.Errorf("Envoy does not take it (%v):\n%s", err, out)
	}
}

// Envoy returns the path of the Envoy that all tests use: that in the variable
// ENVOY, or the pinned one.
func Envoy(t testing.TB) string {
	t.Helper()
	path, err := program.Tool(t.Context(), "envoy")
	if err != nil {
		t.Fatalf("no Envoy (%v), or set ENVOY to an envoy binary from 1.34 on", err)
	}
	return path
}

// Write writes a bootstrap into dir and returns its path.
func Write(t testing.TB, dir string, b *bootstrapv3.Bootstrap) string {
	t.Helper()
	text, err := protojson.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "envoy.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Bootstrap returns c as the static resources of a bootstrap.
func (c Config) Bootstrap(t testing.TB) *bootstrapv3.Bootstrap {
	static := &bootstrapv3.Bootstrap_StaticResources{}
	for _, cl := range c.Clusters {
		cl = proto.Clone(cl).(*clusterv3.Cluster)
		if cl.GetType() == clusterv3.Cluster_EDS {
			c.inlineEndpoints(cl)
		}
		static.Clusters = append(static.Clusters, cl)
	}
	asked := map[string]bool{}
	for i, l := range c.Listeners {
		l = proto.Clone(l).(*listenerv3.Listener)
		if l.GetApiListener() != nil {
			continue // gRPC's, not Envoy's
		}
		for _, chain := range append(l.GetFilterChains(), l.GetDefaultFilterChain()) {
			for _, f := range chain.GetFilters() {
				c.inlineRequests(t, f, asked)
			}
		}
		if s := l.GetAddress().GetSocketAddress(); s != nil && s.GetPortValue() < 1024 {
			s.PortSpecifier = &corev3.SocketAddress_PortValue{PortValue: uint32(20000 + i)}
		}
		static.Listeners = append(static.Listeners, l)
	}
	for i, r := range c.Routes {
		if !asked[r.GetName()] {
			static.Listeners = append(static.Listeners, listenerFor(t, r, uint32(30000+i)))
		}
	}
	return &bootstrapv3.Bootstrap{
		Node:            &corev3.Node{Id: "validate", Cluster: "validate"},
		StaticResources: static,
	}
}

func (c Config) inlineEndpoints(cl *clusterv3.Cluster) {
	name := cl.GetEdsClusterConfig().GetServiceName()
	if name == "" {
		name = cl.GetName()
	}
	cl.EdsClusterConfig = nil
	cl.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
	cl.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: name}
	for _, l := range c.Endpoints {
		if l.GetClusterName() == name {
			cl.LoadAssignment = l
		}
	}
}

// InlineFilters puts filters into a manager that would ask for them by ECDS.
func InlineFilters(m *hcmv3.HttpConnectionManager, all []*corev3.TypedExtensionConfig) {
	for _, slot := range m.GetHttpFilters() {
		for _, f := range all {
			if slot.GetConfigDiscovery() != nil && slot.GetName() == f.GetName() {
				slot.ConfigType = &hcmv3.HttpFilter_TypedConfig{TypedConfig: f.GetTypedConfig()}
			}
		}
	}
}

// inlineRequests puts routes and filters into a manager that asks for them.
func (c Config) inlineRequests(t testing.TB, f *listenerv3.Filter, asked map[string]bool) {
	m := new(hcmv3.HttpConnectionManager)
	if f.GetTypedConfig() == nil || !f.GetTypedConfig().MessageIs(m) {
		return
	}
	if err := f.GetTypedConfig().UnmarshalTo(m); err != nil {
		t.Fatal(err)
	}
	InlineFilters(m, c.Filters)
	if name := m.GetRds().GetRouteConfigName(); name != "" {
		routes := &routev3.RouteConfiguration{Name: name}
		for _, r := range c.Routes {
			if r.GetName() == name {
				routes = r
			}
		}
		asked[name] = true
		m.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: routes}
	}
	f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: packed(t, m)}
}

// listenerFor returns a listener that serves routes on a port of loopback.
func listenerFor(t testing.TB, r *routev3.RouteConfiguration, port uint32) *listenerv3.Listener {
	return Listener(t, "routes "+r.GetName(), port, &hcmv3.HttpConnectionManager{
		StatPrefix:     "routes",
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: r},
		HttpFilters:    []*hcmv3.HttpFilter{router(t)},
	})
}

// Listener returns a listener with one manager on a port of loopback; 0 is any
// free port.
func Listener(t testing.TB, name string, port uint32, m *hcmv3.HttpConnectionManager) *listenerv3.Listener {
	return &listenerv3.Listener{
		Name: name, Address: Loopback(port),
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name: "http", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(t, m)},
		}}}},
	}
}

// Loopback returns an address on loopback; port 0 is any free port.
func Loopback(port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

func router(t testing.TB) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{Name: "envoy.filters.http.router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: packed(t, &routerv3.Router{})}}
}

func packed(t testing.TB, m proto.Message) *anypb.Any {
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}
