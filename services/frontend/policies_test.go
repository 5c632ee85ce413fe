package frontend_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/mesh/jwks"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/store"
)

// edge is a router with one port, behind which a server answers.
const edge = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: shop, namespace: istio-system}
spec:
  hosts: [shop.example]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: %d}}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gw, namespace: istio-system}
spec: {servers: [{port: {number: %d, name: http, protocol: HTTP}, hosts: ["*"]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: istio-system}
spec: {hosts: [shop.example], gateways: [gw], http: [{route: [{destination: {host: shop.example, port: {number: 80}}}]}]}
`

// guarded is a mesh with a real Envoy as its router, and connections to it that stand.
type guarded struct {
	*testing.T
	mesh  *mesh
	rig   *rig
	conns []*standing
	admin int // the port of Envoy's admin interface
}

func newGuarded(t *testing.T, delta bool, conns int) *guarded {
	t.Helper()
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	t.Cleanup(backend.Close)
	mesh, xds, port := newMesh(t), freePort(t), freePort(t)
	v := mesh.Publish(meshtest.YAML(t, fmt.Sprintf(edge, portOf(t, backend.Listener), port))...)
	g := &guarded{T: t, mesh: mesh, rig: start(t, "one", mesh, onPort(t, xds)), admin: freePort(t)}
	bootstrap := fmt.Sprintf(staticClusters, apiTypes[delta], "  cds_config: {ads: {}, resource_api_version: V3}\n", xds)
	envoy := runEnvoy(t, fmt.Sprintf("%s\nadmin: {address: {socket_address: {address: 127.0.0.1, port_value: %d}}}\n", bootstrap, g.admin))
	g.applied(v)
	for range conns {
		var c net.Conn
		if err := envoy.UntilAlive(t.Context(), "the listener's port", func(ctx context.Context) (err error) {
			c, err = new(net.Dialer).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() }) // all is read
		g.conns = append(g.conns, &standing{c, bufio.NewReader(c)})
	}
	return g
}

// applied waits until Envoy has acknowledged a version.
func (g *guarded) applied(v ident.Position) {
	g.Helper()
	g.rig.eventually("the ACK of the version", func(r *reportv1.FrontendReport) bool {
		return alone(r) != nil && len(r.GetApplied()) == 1 && store.VersionOf(r.GetApplied()[0].GetVersion()) == v
	})
}

// publish publishes objects and waits for Envoy's ACK.
func (g *guarded) publish(all ...meshtest.Change) {
	g.Helper()
	g.applied(g.mesh.Publish(all...))
}

// statuses counts the answers to a request on every connection.
func (g *guarded) statuses(path string, headers ...string) map[int]int {
	g.Helper()
	text := "GET " + path + " HTTP/1.1\r\nHost: shop.example\r\n" + strings.Join(append(headers, ""), "\r\n") + "\r\n"
	for _, c := range g.conns {
		if _, err := io.WriteString(c, text); err != nil {
			g.Fatal(err)
		}
	}
	got := map[int]int{}
	for _, c := range g.conns {
		response, err := http.ReadResponse(c.responses, nil)
		if err != nil {
			g.Fatalf("a connection does not stand: %v", err)
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil || response.Body.Close() != nil {
			g.Fatal(err)
		}
		got[response.StatusCode]++
	}
	return got
}

func (g *guarded) expect(status int, path string, headers ...string) {
	g.Helper()
	if got := g.statuses(path, headers...); got[status] != len(g.conns) {
		g.Errorf("%s: the answers on %d connections are %v, want %d", path, len(g.conns), got, status)
	}
}

// counted returns the sum of Envoy's counters whose names end with a text.
func (g *guarded) counted(end string) (sum int) {
	g.Helper()
	r, err := http.NewRequestWithContext(g.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/stats", g.admin), nil)
	if err != nil {
		g.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		g.Fatal(err)
	}
	text, err := io.ReadAll(response.Body)
	if err != nil || response.Body.Close() != nil {
		g.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if !strings.HasSuffix(name, end) {
			continue
		}
		n, err := strconv.Atoi(value)
		if err != nil {
			g.Fatal(err)
		}
		sum += n
	}
	return sum
}

// A policy that is put while 1000 connections stand refuses the next request of each,
// once Envoy has acknowledged it, and cuts none (T-5, POL-1).
func TestPolicyOnStandingConnections(t *testing.T) {
	for _, delta := range []bool{false, true} {
		t.Run(fmt.Sprintf("delta=%v", delta), func(t *testing.T) {
			g := newGuarded(t, delta, 1000)
			g.expect(http.StatusOK, "/admin")
			deny := meshtest.YAML(t, `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: deny, namespace: istio-system}
spec: {action: DENY, rules: [{to: [{operation: {paths: [/admin]}}]}]}
`)[0]
			g.publish(deny)
			g.expect(http.StatusForbidden, "/admin")
			g.expect(http.StatusForbidden, "//admin") // POL-6
			g.expect(http.StatusOK, "/")
			g.publish(deny.Gone())
			g.expect(http.StatusOK, "/admin")
		})
	}
}

// A dry run refuses no request on connections that stand, also beside a policy that is
// enforced, and Envoy counts what it would do. Without its annotation it is enforced (AZ-8).
func TestDryRunOnStandingConnections(t *testing.T) {
	for _, delta := range []bool{false, true} {
		t.Run(fmt.Sprintf("delta=%v", delta), func(t *testing.T) {
			g := newGuarded(t, delta, 3)
			of := func(name, annotations, path string) meshtest.Change {
				return meshtest.YAML(t, fmt.Sprintf(`
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: %s, namespace: istio-system, annotations: {%s}}
spec: {action: DENY, rules: [{to: [{operation: {paths: [%s]}}]}]}
`, name, annotations, path))[0]
			}
			g.publish(of("tried", `istio.io/dry-run: "true"`, "/admin"))
			g.expect(http.StatusOK, "/admin")
			g.expect(http.StatusOK, "/other")
			g.publish(of("enforced", "", "/secret"))
			g.expect(http.StatusOK, "/admin")
			g.expect(http.StatusForbidden, "/secret")
			denied, allowed := g.counted(".istio_dry_run_deny_.shadow_denied"), g.counted(".istio_dry_run_deny_.shadow_allowed")
			if denied != 6 || allowed != 6 { // two requests each on three connections
				t.Errorf("the dry run counted %d requests as denied and %d as allowed, want 6 and 6", denied, allowed)
			}
			g.publish(of("tried", "", "/admin"))
			g.expect(http.StatusForbidden, "/admin")
		})
	}
}

// A token is judged by the keys of its issuer that are on the log: the next request on a
// standing connection by those that replaced them (POL-12). Without keys no token passes.
func TestTokensOnStandingConnections(t *testing.T) {
	const issuer = "https://issuer.example"
	g := newGuarded(t, true, 3)
	keys := func(private *ecdsa.PrivateKey) meshtest.Change {
		set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &private.PublicKey, KeyID: "k", Algorithm: "ES256"}}})
		if err != nil {
			t.Fatal(err)
		}
		public, err := jwks.Public(set)
		if err != nil {
			t.Fatal(err)
		}
		return meshtest.Object("Jwks", "", jwks.Issuer{Issuer: issuer}.ObjectName(), &registryv1.Jwks{Issuer: issuer, Keys: public}).From("jwks")
	}
	bearer := func(key *ecdsa.PrivateKey) string {
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "k"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		signed, err := signer.Sign(fmt.Appendf(nil, `{"iss":%q,"sub":"alice","exp":%d}`, issuer, time.Now().Add(time.Hour).Unix()))
		if err != nil {
			t.Fatal(err)
		}
		text, err := signed.CompactSerialize()
		if err != nil {
			t.Fatal(err)
		}
		return "Authorization: Bearer " + text
	}
	var all [2]*ecdsa.PrivateKey
	for i := range all {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		all[i] = key
	}
	g.publish(meshtest.YAML(t, `
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: istio-system}
spec: {jwtRules: [{issuer: "https://issuer.example"}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: tokens, namespace: istio-system}
spec:
  rules:
  - to: [{operation: {paths: [/public]}}]
  - from: [{source: {requestPrincipals: ["https://issuer.example/alice"]}}]
`)...)
	g.expect(http.StatusOK, "/public")
	g.expect(http.StatusForbidden, "/")
	g.expect(http.StatusUnauthorized, "/", bearer(all[0]))
	g.publish(keys(all[0]))
	g.expect(http.StatusOK, "/", bearer(all[0]))
	g.expect(http.StatusUnauthorized, "/", bearer(all[1]))
	g.publish(keys(all[1]))
	g.expect(http.StatusUnauthorized, "/", bearer(all[0]))
	g.expect(http.StatusOK, "/", bearer(all[1]))
	g.publish(keys(all[1]).Gone())
	g.expect(http.StatusUnauthorized, "/", bearer(all[1]))
}
