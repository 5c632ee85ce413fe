package cli

import (
	"path/filepath"
	"strings"
	"testing"

	"meshlog.dev/services/mesh/simulate"
	"meshlog.dev/services/operate/operatetest"
)

// guarded is a router's configuration with policies.
const guarded = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gw, namespace: edge}
spec:
  servers:
  - {port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}
  - {port: {number: 9000, name: tcp, protocol: TCP}, hosts: ["*"]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: shop, namespace: edge}
spec:
  hosts: [shop.example]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 9000, name: tcp, protocol: TCP}]
  endpoints: [{address: 192.0.2.1}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: edge}
spec:
  hosts: [shop.example]
  gateways: [gw]
  http: [{route: [{destination: {host: shop.example, port: {number: 80}}}]}]
  tcp: [{match: [{port: 9000}], route: [{destination: {host: shop.example, port: {number: 9000}}}]}]
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: edge}
spec:
  jwtRules:
  - issuer: https://issuer.example
    jwks: '{"keys":[{"kty":"OKP","crv":"Ed25519","alg":"EdDSA","kid":"stories","x":"QLyvpuwgkAlCr-Y90OQp891A3Qaht3Y3CrE7X6HWROE"}]}'
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: clients, namespace: edge}
spec:
  rules:
  - to: [{operation: {paths: [/items]}}]
  - from: [{source: {requestPrincipals: ["https://issuer.example/ann"]}}]
  - when: [{key: "request.headers[x-role]", values: [admin]}]
  - from: [{source: {ipBlocks: [192.0.2.0/24]}}]
    to: [{operation: {ports: ["9000"]}}]
`

// The command says what policies decide, by which rule, and fails for what they refuse
// (POL-16).
func TestSimulate(t *testing.T) {
	t.Parallel()
	m := start(t, map[string]string{"mesh.yaml": guarded})
	node := filepath.Join(t.TempDir(), "envoy.yaml")
	operatetest.WriteFiles(t, filepath.Dir(node), map[string]string{"envoy.yaml": "node: {id: router~10.0.0.1~edge.edge~edge.svc.cluster.local, cluster: edge}\n"})
	const at = "http://shop.example"
	for _, c := range []struct {
		args []string
		want string // in the output, or in the error of a wrong command line
		code int
	}{
		{[]string{"GET", at + "/items"}, "ALLOW ns[edge]-policy[clients]-rule[0]: allowed\noutbound|80||shop.example -> 192.0.2.1:80\n", 0},
		{[]string{"GET", at + "/", "--from-ip", "10.0.0.1"}, "ALLOW: 403, no rule matches", 1},
		{[]string{"GET", at + "/", "--claims", `{"iss": "https://issuer.example", "sub": "ann"}`}, "rule[1]: allowed", 0},
		{[]string{"GET", at + "/", "--forged-claims", `{"iss": "https://issuer.example", "sub": "ann"}`}, "JWT: 401, the token is invalid", 1},
		{[]string{"GET", at + "/", "--header", "X-Role: admin"}, "rule[2]: allowed", 0},
		{[]string{"tcp", "198.51.100.1:9000", "--from-ip", "192.0.2.7"}, "rule[3]: allowed\noutbound|9000||shop.example", 0},
		{[]string{"tcp", "198.51.100.1:9000", "--from-ip", "203.0.113.7"}, "ALLOW: connection closed, no rule matches", 1},
		{[]string{"tcp", "198.51.100.1:9000"}, "cannot simulate filter meshlog.authz.allow: policy ns[edge]-policy[clients]-rule[3]", 1},
		{[]string{"GET", "shop.example"}, "want http://HOST", 2},
		{[]string{"tcp", "shop.example"}, "want ADDRESS:PORT", 2},
		{[]string{"GET", at, "--claims", "ann"}, "want an object of JSON", 2},
		{[]string{"GET", at, "--from", "ann"}, "--from:", 2},
		{[]string{"GET", at, "--header", "x-role"}, "want NAME: VALUE", 2},
		{[]string{"tcp", "198.51.100.1:9000", "--header", "a: b"}, "has no headers", 2},
	} {
		out, _, err := m.meshlog(t, nil, append([]string{"simulate", "--node", node}, c.args...)...)
		if c.code == 2 && err != nil {
			out = err.Error()
		}
		if !strings.Contains(out, c.want) || err == nil && c.code != 0 || err != nil && exitCode(err) != c.code {
			t.Errorf("simulate %v: %v, want %q and exit code %d:\n%s", c.args, err, c.want, c.code, out)
		}
	}
	var view struct{ Outcome simulate.Outcome }
	m.must(t, &view, "simulate", "--node", node, "GET", at+"/items")
	if d := view.Outcome.Decisions; len(d) != 1 || d[0].Action != "ALLOW" || d[0].Filter != "meshlog.authz.allow" {
		t.Errorf("as JSON: %+v", view)
	}
}

// secured is a workload that only clients of the mesh may call.
const secured = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.example]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.1.0.7, serviceAccount: web, ports: {http: 8080}}]
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: clients, namespace: shop}
spec: {rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: admin, namespace: shop}
spec: {action: DENY, rules: [{to: [{operation: {paths: [/admin]}}]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.example]
  http:
  - {match: [{uri: {exact: /rewritten}}], rewrite: {uri: /admin}, route: [{destination: {host: web.example}}]}
  - {route: [{destination: {host: web.example}}]}
`

// A call of a client's sidecar is followed to the sidecar of the workload, which decides by
// the identity of the client, and by what the client's routes make of the request (POL-16).
func TestSimulateFollowsToServers(t *testing.T) {
	t.Parallel()
	m := start(t, map[string]string{"mesh.yaml": secured})
	dir := t.TempDir()
	node := func(name, ip, account string) string {
		file := name + ".yaml"
		operatetest.WriteFiles(t, dir, map[string]string{file: "node: {id: sidecar~" + ip + "~" + name + ".shop~shop.svc.cluster.local, cluster: x, metadata: {SDS_CLUSTER: sds-grpc, SERVICE_ACCOUNT: " + account + "}}\n"})
		return filepath.Join(dir, file)
	}
	client, stranger, nobody := node("client", "10.1.0.8", "client"), node("stranger", "10.1.0.9", "stranger"), node("nobody", "10.1.0.10", `""`)
	web, impostor := node("web", "10.1.0.7", "web"), node("impostor", "10.1.0.7", "impostor")
	for _, c := range []struct {
		from, server, path, want string
		passes                   bool
	}{
		{client, web, "/", "by mutual TLS as spiffe://cluster.local/ns/shop/sa/client:\n  by virtualInbound / 0.0.0.0_8080", true},
		{client, web, "/", "  ALLOW ns[shop]-policy[clients]-rule[0]: allowed\n", true},
		{client, web, "/admin", "  DENY ns[shop]-policy[admin]-rule[0]: 403", false},
		{client, web, "/rewritten", "  DENY ns[shop]-policy[admin]-rule[0]: 403", false},
		{stranger, web, "/", "  ALLOW: 403, no rule matches", false},
		{nobody, web, "/", "at 10.1.0.7:8080: the identity of the client is not known", false},
		{client, impostor, "/", "the client refuses the certificate of spiffe://cluster.local/ns/shop/sa/impostor", false},
		{client, stranger, "/", "at 10.1.0.7:8080: no sidecar with that address is known", true},
	} {
		out, _, err := m.meshlog(t, nil, "simulate", "--node", c.from, "--server-node", c.server, "GET", "http://web.example"+c.path)
		if !strings.Contains(out, c.want) || (err == nil) != c.passes {
			t.Errorf("%s of %s at %s: %v, want it to pass: %v, with %q:\n%s", c.path, c.from, c.server, err, c.passes, c.want, out)
		}
	}
}
