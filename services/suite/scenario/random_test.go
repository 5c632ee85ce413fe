package scenario

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"

	"meshlog.dev/services/mesh/simulate"
	"meshlog.dev/services/mesh/simulate/rbac"
)

// doors is a router's configuration: requests of clients with a certificate come by 443.
const doors = `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gw, namespace: edge}
spec:
  servers:
  - {port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}
  - {port: {number: 443, name: https, protocol: HTTPS}, hosts: ["*"], tls: {mode: MUTUAL, credentialName: edge}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: shop, namespace: edge}
spec: {hosts: [shop.internal], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 192.0.2.1}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: edge}
spec: {hosts: ["*.example"], gateways: [gw], http: [{route: [{destination: {host: shop.internal}}]}]}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: edge}
spec:
  jwtRules:
  - issuer: https://a.example
    jwks: '{"keys":[{"kty":"OKP","crv":"Ed25519","alg":"EdDSA","kid":"stories","x":"QLyvpuwgkAlCr-Y90OQp891A3Qaht3Y3CrE7X6HWROE"}]}'
`

// drawer draws policies and requests whose values often match each other.
type drawer struct{ *rand.Rand }

func (d drawer) one(of ...string) string { return of[d.IntN(len(of))] }

// some returns a list for YAML.
func (d drawer) some(of ...string) string {
	var all []string
	for range 1 + d.IntN(2) {
		all = append(all, fmt.Sprintf("%q", d.one(of...)))
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// fields returns an object for YAML with about half of fields.
func (d drawer) fields(of map[string][]string, names ...string) string {
	var all []string
	for _, name := range names {
		values := of[name]
		if d.IntN(3) == 0 {
			continue
		}
		if d.IntN(4) == 0 {
			name = "not" + strings.ToUpper(name[:1]) + name[1:]
		}
		all = append(all, name+": "+d.some(values...))
	}
	if len(all) == 0 {
		all = append(all, names[0]+": "+d.some(of[names[0]]...))
	}
	return "{" + strings.Join(all, ", ") + "}"
}

var sources = map[string][]string{
	"principals":        {"cluster.local/ns/shop/sa/web", "cluster.local/ns/shop/*", "*/sa/web", "*", "td/ns/a/sa/b"},
	"namespaces":        {"shop", "sho*", "a"},
	"ipBlocks":          {"127.0.0.1", "127.0.0.2/31", "10.0.0.0/8"},
	"remoteIpBlocks":    {"127.0.0.0/30", "192.0.2.0/24"},
	"requestPrincipals": {"https://a.example/ann", "https://a.example/*", "*", "*/bob"},
}

var operations = map[string][]string{
	"hosts":   {"shop.example", "*.example", "shop*", "SHOP.example:80"},
	"methods": {"GET", "P*", "PUT"},
	"paths":   {"/", "/admin", "/admin/*", "*/x", "/{*}/x", "/a/{**}", "/a/{*}/c"},
}

var attributes = map[string][]string{
	"request.headers[x-role]":     {"admin", "ad*", "*"},
	"request.auth.claims[groups]": {"staff", "s*"},
	"request.auth.audiences":      {"shop", "*op"},
	"source.trustDomain":          {"cluster.local", "td"},
}

// policy draws a policy for a router with this label.
func (d drawer) policy(name, label string) string {
	var rules []string
	for range 1 + d.IntN(3) {
		var rule []string
		if d.IntN(2) == 0 {
			names := []string{"principals", "namespaces", "ipBlocks", "remoteIpBlocks", "requestPrincipals"}
			i := d.IntN(len(names))
			rule = append(rule, "from: [{source: "+d.fields(sources, names[i])+"}]")
		}
		if d.IntN(3) > 0 {
			rule = append(rule, "to: [{operation: "+d.fields(operations, "hosts", "methods", "paths")+"}]")
		}
		if d.IntN(3) == 0 || len(rule) == 0 {
			key := d.one("request.headers[x-role]", "request.auth.claims[groups]", "request.auth.audiences", "source.trustDomain")
			rule = append(rule, fmt.Sprintf("when: [{key: %q, %s: %s}]", key, d.one("values", "values", "notValues"), d.some(attributes[key]...)))
		}
		rules = append(rules, "{"+strings.Join(rule, ", ")+"}")
	}
	return fmt.Sprintf(`---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: %s, namespace: edge}
spec: {selector: {matchLabels: {app: %s}}, action: %s, rules: [%s]}
`, name, label, d.one("ALLOW", "DENY", "AUDIT"), strings.Join(rules, ", "))
}

// call draws a request.
func (d drawer) call() simulate.Call {
	c := simulate.Call{
		Port: 80, Method: d.one("GET", "PUT", "POST"), Host: d.one("shop.example", "Shop.Example:80", "shop.example.", "a.shop.example", "other"),
		Path: d.one("/", "/admin", "/admin/", "/Admin", "/x/../admin", "/a/./x", "/%61dmin", "/a//x", "/b/x", "/a/b/c", "/a/b%2fc/c", "/admin?x", "/a/*/c"),
		From: netip.MustParseAddr(d.one("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")), Headers: map[string][]string{},
	}
	if d.IntN(3) == 0 {
		const marks = "!\"$&'()*+,;:@=<>[]^_`{|}~-.\\"
		c.Path = "/b" + string(marks[d.IntN(len(marks))]) + "b/x"
	}
	for range d.IntN(3) {
		c.Headers["x-role"] = append(c.Headers["x-role"], d.one("admin", "user", "admin,user"))
	}
	if d.IntN(4) == 0 {
		c.Headers["x-forwarded-for"] = []string{"192.0.2.9"}
	}
	if d.IntN(2) == 0 {
		c.TLS, c.Port, c.ServerName = true, 443, "shop.example"
		c.Certificate = rbac.CertificateOf(d.one("spiffe://cluster.local/ns/shop/sa/web", "spiffe://cluster.local/ns/shop/sa/web2", "spiffe://td/ns/a/sa/b", "spiffe://td/ns/evil/sa/x/ns/shop/sa/web"))
	}
	if d.IntN(2) == 0 {
		c.Token = &simulate.Token{Invalid: d.IntN(8) == 0, Claims: map[string]any{"iss": d.one("https://a.example", "https://a.example", "https://b.example"), "sub": d.one("ann", "bob")}}
		if d.IntN(2) == 0 {
			c.Token.Claims["groups"] = []any{d.one("staff", "all"), "more"}
		}
		if d.IntN(2) == 0 {
			c.Token.Claims["aud"] = d.one("shop", "other")
		}
	}
	return c
}

// With drawn policies, a real Envoy answers drawn requests as the simulation says (POL-16).
func TestRandomPoliciesAsEnvoy(t *testing.T) {
	const routers, requests = 60, 25
	d := drawer{rand.New(rand.NewPCG(16, 1))} //nolint:gosec // the same draw in each run
	var text strings.Builder
	text.WriteString(doors)
	for i := range routers {
		label := fmt.Sprintf("r%d", i)
		for p := range 1 + d.IntN(3) {
			text.WriteString(d.policy(fmt.Sprintf("%s-%d", label, p), label))
		}
	}
	s := newStage(t)
	if err := s.put(place{files, "mesh.yaml"}, text.String()); err != nil {
		t.Fatal(err)
	}
	q := &questions{T: t, clusters: map[string]*clusterv3.Cluster{}}
	refused := 0
	for i := range routers {
		name := fmt.Sprintf("r%d", i)
		if err := s.define(fmt.Sprintf("%s: router~10.0.0.1~%[1]s.edge~edge.svc.cluster.local app=%[1]s", name)); err != nil {
			t.Fatal(err)
		}
		sets := s.sets(s.pc, s.proxies[name])
		simulated, err := simulate.NewProxy(sets)
		if err != nil {
			t.Fatal(err)
		}
		for range requests {
			c := d.call()
			m := made{line: fmt.Sprintf("%+v, token %+v", c, c.Token), call: c, outcome: simulated.Call(c), sets: sets}
			if m.outcome.Refused {
				refused++
			}
			q.add(name, m)
		}
	}
	if len(q.asked) != routers*requests || refused < len(q.asked)/5 || refused > len(q.asked)*4/5 {
		t.Fatalf("%d of %d drawn requests are refused, of %d", refused, len(q.asked), routers*requests)
	}
	q.compare()
}
