package frontend_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/store"
)

// namedHosts are a ServiceEntry whose endpoints calls name, and the policy for unknown
// hosts. Envoy resolves every name that ends with localhost without a server.
const namedHosts = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: named, namespace: shop}
spec:
  hosts: ["*.localhost"]
  ports: [{number: %[1]d, name: http, protocol: HTTP}, {number: %[2]d, name: tls, protocol: TLS, targetPort: %[3]d}]
  resolution: %[4]s
---
apiVersion: mesh.istio.io/v1alpha1
kind: MeshConfig
metadata: {name: default}
spec: {outboundTrafficPolicy: %[5]s}
`

// TestHostsThatCallsName runs a real Envoy as a sidecar that resolves the host of a request
// and the server name of a TLS connection (SE-8), and with ALLOW_ANY_DYNAMIC_DNS the hosts
// of all requests, in TLS if the policy says so (MC-3, VS-8). With resolution NONE and with
// ALLOW_ANY the calls do not get there.
func TestHostsThatCallsName(t *testing.T) {
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, map[bool]string{true: "in TLS", false: "in plain text"}[r.TLS != nil]) // Envoy may have gone
	})
	plain, encrypted := httptest.NewServer(answer), httptest.NewTLSServer(answer)
	defer plain.Close()
	defer encrypted.Close()
	mesh, xds, requests, connections := newMesh(t), freePort(t), freePort(t), freePort(t)
	rig := start(t, "one", mesh, onPort(t, xds))
	publish := func(resolution, policy string) {
		v := mesh.Publish(meshtest.YAML(t, fmt.Sprintf(namedHosts, requests, connections, portOf(t, encrypted.Listener), resolution, policy))...)
		rig.eventually(resolution+" "+policy, func(r *reportv1.FrontendReport) bool {
			return alone(r) != nil && len(r.GetApplied()) == 1 && store.VersionOf(r.GetApplied()[0].GetVersion()) == v
		})
	}
	bootstrap := fmt.Sprintf(staticClusters, apiTypes[true], "  cds_config: {ads: {}, resource_api_version: V3}\n", xds)
	envoy := runEnvoy(t, strings.Replace(bootstrap, "node: {id: static, cluster: static}",
		"node: {id: sidecar~127.0.0.1~app.shop~shop.svc.cluster.local, cluster: shop, metadata: {INTERCEPTION_MODE: NONE}}", 1))
	get := func(scheme, host string, port, to int) string {
		client := &http.Client{Transport: &http.Transport{
			DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // the test's own server
			DialContext: func(ctx context.Context, _, _ string) (c net.Conn, err error) {
				err = envoy.UntilAlive(ctx, "the listener's port", func(ctx context.Context) error {
					c, err = new(net.Dialer).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", to))
					return err
				})
				return c, err
			},
		}}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("%s://%s:%d/", scheme, host, port), nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(r)
		if err != nil {
			return "closed"
		}
		body, err := io.ReadAll(response.Body)
		if err != nil || response.Body.Close() != nil {
			t.Fatal(err)
		}
		if response.StatusCode != http.StatusOK {
			return "refused"
		}
		return string(body)
	}
	toPlain, toTLS := portOf(t, plain.Listener), portOf(t, encrypted.Listener)
	for _, step := range []struct{ resolution, policy, named, byName, unknown, unknownTLS string }{
		{"DYNAMIC_DNS", "{mode: ALLOW_ANY}", "in plain text", "in TLS", "refused", "refused"},
		{"DYNAMIC_DNS", "{mode: ALLOW_ANY_DYNAMIC_DNS}", "in plain text", "in TLS", "in plain text", "refused"},
		{"NONE", "{mode: ALLOW_ANY_DYNAMIC_DNS, tls: {mode: SIMPLE, insecureSkipVerify: true}}", "refused", "closed", "refused", "in TLS"},
	} {
		publish(step.resolution, step.policy)
		for _, call := range []struct{ what, got, want string }{
			{"a request to a host of the entry", get("http", "one.localhost", toPlain, requests), step.named},
			{"a TLS connection to a host of the entry", get("https", "two.localhost", toTLS, connections), step.byName},
			{"a request to an unknown host", get("http", "localhost", toPlain, requests), step.unknown},
			{"a request to an unknown host that speaks TLS", get("http", "localhost", toTLS, requests), step.unknownTLS},
		} {
			if call.got != call.want {
				t.Errorf("%s, %s: %s is %s, want %s", step.resolution, step.policy, call.what, call.got, call.want)
			}
		}
	}
}
