package frontend_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

// pinBootstrap is that of an Envoy that gets all by ADS.
const pinBootstrap = `
node: {id: %[1]s, cluster: %[1]s}
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
dynamic_resources:
  ads_config:
    api_type: GRPC
    transport_api_version: V3
    grpc_services: [{envoy_grpc: {cluster_name: meshlog}}]
  lds_config: {ads: {}, resource_api_version: V3}
  cds_config: {ads: {}, resource_api_version: V3}
static_resources:
  clusters:
  - name: meshlog
    type: STATIC
    connect_timeout: 1s
    load_assignment:
      cluster_name: meshlog
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %[2]d}}}}]}]
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
`

// backend answers every request with its name, until the test ends.
func backend(t *testing.T, name string) uint32 {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) }))
	t.Cleanup(s.Close)
	_, text, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(port)
}

// routing adds the filter that forwards requests to an HTTP listener.
func routing(t *testing.T, l *listenerv3.Listener) {
	var hcm hcmv3.HttpConnectionManager
	config := l.GetFilterChains()[0].GetFilters()[0].GetTypedConfig()
	if err := config.UnmarshalTo(&hcm); err != nil {
		t.Fatal(err)
	}
	router, err := anypb.New(&routerv3.Router{})
	if err != nil {
		t.Fatal(err)
	}
	hcm.HttpFilters = []*hcmv3.HttpFilter{{Name: "envoy.filters.http.router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: router}}}
	if err := config.MarshalFrom(&hcm); err != nil {
		t.Fatal(err)
	}
}

// TestPinnedEnvoys runs two real Envoys, one of them pinned: it stays on the routes of the
// version before and gets new endpoints, also after the frontend restarts without the
// chain. The other one has the new routes. When the pin ends, both have them.
func TestPinnedEnvoys(t *testing.T) {
	routes := func(version string) meshtest.Change {
		r := meshtest.Routes("routes", meshtest.To("c", 1))
		r.ResponseHeadersToAdd = []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "version", Value: version}}}
		return meshtest.Put("r", r)
	}
	a, b := backend(t, "a"), backend(t, "b")
	ports := map[string]int{"pinned": freePort(t), "other": freePort(t)}
	mesh, xds, file := newMesh(t), freePort(t), &memstore.File{}
	for name, port := range ports {
		l := meshtest.Listener("l", uint32(port), "routes")
		routing(t, l)
		mesh.Publish(meshtest.PutFor("l-"+name, &configv1.NodeSelector{Cluster: name}, l))
	}
	mesh.Publish(meshtest.Put("c", meshtest.Cluster("c", 1)), meshtest.Put("e", meshtest.Endpoints("c", a)), routes("one"))
	first := start(t, "first", mesh, onPort(t, xds), withStore(file))
	for name := range ports {
		runEnvoy(t, fmt.Sprintf(pinBootstrap, name, xds))
	}
	applied := func(v ident.Position) func(*reportv1.FrontendReport) bool {
		return func(r *reportv1.FrontendReport) bool {
			return len(r.GetProxies()) == 2 && len(r.GetApplied()) == 1 && store.VersionOf(r.GetApplied()[0].GetVersion()) == v
		}
	}
	answer := func(port int) string {
		resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.Header.Get("version") + " " + string(body)
	}
	// An Envoy acknowledges routes before its workers have them, so each has some time.
	answers := func(step string, want map[string]string) {
		t.Helper()
		tick, limit := time.NewTicker(10*time.Millisecond), time.After(waitLimit)
		defer tick.Stop()
		for _, name := range []string{"other", "pinned"} {
			for got := answer(ports[name]); got != want[name]; got = answer(ports[name]) {
				select {
				case <-tick.C:
				case <-limit:
					t.Fatalf("%s: %s answers %q, want %q", step, name, got, want[name])
				}
			}
		}
	}
	first.eventually("the first version", applied(mesh.Last().Version()))
	answers("at first", map[string]string{"pinned": "one a", "other": "one a"})

	pin := meshtest.Pin("pin-1", time.Unix(1, 0), ident.Proxies{Cluster: "pinned"}, routes("one"))
	first.eventually("the pin", applied(mesh.Publish(routes("two"), pin)))
	answers("pinned", map[string]string{"pinned": "one a", "other": "two a"})
	first.eventually("new endpoints", applied(mesh.Publish(meshtest.Put("e", meshtest.Endpoints("c", b)))))
	answers("new endpoints", map[string]string{"pinned": "one b", "other": "two b"})
	first.persisted()
	first.end()

	second := start(t, "second", mesh, onPort(t, xds), withStore(file), withoutChain)
	second.eventually("the restart", applied(mesh.Last().Version()))
	answers("restarted without the chain", map[string]string{"pinned": "one b", "other": "two b"})
	second.end()

	third := start(t, "third", mesh, onPort(t, xds), withStore(file))
	third.eventually("the end of the pin", applied(mesh.Publish(pin.Gone())))
	answers("unpinned", map[string]string{"pinned": "two b", "other": "two b"})
}
