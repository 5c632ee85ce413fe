package frontend_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/store"
)

// TestSessions runs a real Envoy whose clients stay with one endpoint of a service, by a
// cookie or a header, also while the endpoint drains; new clients do not get it then, and
// old ones get another one when it is gone (SVC-15, VSA-18). Without the label there is no
// session.
func TestSessions(t *testing.T) {
	backend := func(name string) *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) })) // Envoy may have gone
		t.Cleanup(s.Close)
		return s
	}
	ports := map[string]uint32{}
	for _, name := range []string{"one", "two"} {
		ports[name] = uint32(portOf(t, backend(name).Listener))
	}
	mesh, xds, port := newMesh(t), freePort(t), freePort(t)
	rig := start(t, "one", mesh, onPort(t, xds))
	publish := func(label string, health map[string]registryv1.Health) {
		service := meshtest.YAML(t, fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop, labels: {%s}}
spec: {clusterIP: 10.96.0.1, ports: [{name: http, port: %d}]}
`, label, port))
		changes := service
		for _, name := range []string{"one", "two"} {
			h, there := health[name]
			slice := meshtest.Object("EndpointSlice", "shop", "cart-"+name, &registryv1.Endpoints{
				Service: "cart", Ports: []*registryv1.EndpointPort{{Name: "http", Number: ports[name]}},
				Endpoints: []*registryv1.Endpoint{{Addresses: []string{"127.0.0.1"}, Health: h}},
			})
			if !there {
				slice = slice.Gone()
			}
			changes = append(changes, slice)
		}
		v := mesh.Publish(changes...)
		rig.eventually(label, func(r *reportv1.FrontendReport) bool {
			return alone(r) != nil && len(r.GetApplied()) == 1 && store.VersionOf(r.GetApplied()[0].GetVersion()) == v
		})
	}
	bootstrap := fmt.Sprintf(staticClusters, apiTypes[true], "  cds_config: {ads: {}, resource_api_version: V3}\n", xds)
	envoy := runEnvoy(t, strings.Replace(bootstrap, "node: {id: static, cluster: static}",
		"node: {id: sidecar~127.0.0.1~app.shop~shop.svc.cluster.local, cluster: shop, metadata: {INTERCEPTION_MODE: NONE}}", 1))
	// A listener that has changed lets its old connections go on, without the new filter.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (c net.Conn, err error) {
		err = envoy.UntilAlive(ctx, "the listener's port", func(ctx context.Context) error {
			c, err = new(net.Dialer).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
			return err
		})
		return c, err
	}}}
	call := func(headers http.Header) (by string, h http.Header) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://cart.shop:%d/", port), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header = headers
		response, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if err != nil || response.Body.Close() != nil {
			t.Fatal(err)
		}
		return string(body), response.Header
	}
	always := func(what, want string, headers http.Header) {
		t.Helper()
		for range 20 {
			if by, _ := call(headers.Clone()); by != want {
				t.Fatalf("%s: answered by %q, want %q", what, by, want)
			}
		}
	}
	healthy, draining := registryv1.Health_HEALTH_HEALTHY, registryv1.Health_HEALTH_DRAINING
	other := map[string]string{"one": "two", "two": "one"}
	for _, how := range []struct{ label, set, header string }{
		{`istio.io/persistent-session: cart`, "Set-Cookie", "Cookie"},
		{`istio.io/persistent-session-header: x-cart`, "X-Cart", "X-Cart"},
	} {
		publish("", map[string]registryv1.Health{"one": healthy, "two": healthy})
		if _, h := call(http.Header{}); h.Get(how.set) != "" {
			t.Errorf("without the label there is a session: %v", h)
		}
		publish(how.label, map[string]registryv1.Health{"one": healthy, "two": healthy})
		first, h := call(http.Header{})
		session, _, _ := strings.Cut(h.Get(how.set), ";")
		if session == "" {
			t.Fatalf("%s: no session in %v", how.label, h)
		}
		mine := http.Header{how.header: {session}}
		always("a session", first, mine)
		publish(how.label, map[string]registryv1.Health{first: draining, other[first]: healthy})
		always("a session while its endpoint drains", first, mine)
		always("a new client while an endpoint drains", other[first], http.Header{})
		publish(how.label, map[string]registryv1.Health{other[first]: healthy})
		always("a session whose endpoint is gone", other[first], mine)
	}
}
