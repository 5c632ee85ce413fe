package securemesh_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/services/roles/up"
)

// ofMesh are the documents of a mesh with a workload, and with that of another mesh which it
// calls. Each takes calls of the other only.
const ofMesh = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s, namespace: %[1]s}
spec:
  hosts: [%[1]s.mesh]
  exportTo: [nobody]
  resolution: STATIC
  location: MESH_INTERNAL
  ports: [{number: %[3]d, name: http, protocol: HTTP}]
  endpoints: [{address: %[2]s, serviceAccount: %[1]s}]
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: all, namespace: %[1]s}
spec: {mtls: {mode: STRICT}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: other, namespace: %[1]s}
spec: {rules: [{from: [{source: {principals: [%[8]s/ns/%[4]s/sa/%[4]s]}}]}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[4]s, namespace: %[4]s}
spec:
  hosts: [%[4]s.mesh]
  addresses: [10.99.0.1]
  exportTo: [%[1]s]
  resolution: STATIC
  location: MESH_INTERNAL
  subjectAltNames: ["spiffe://%[8]s/ns/%[4]s/sa/%[4]s"]
  ports: [{number: %[7]d, name: http, protocol: HTTP, targetPort: %[6]d}]
  endpoints: [{address: %[5]s, ports: {http: %[6]d}, labels: {security.istio.io/tlsMode: istio}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: %[4]s, namespace: %[4]s}
spec:
  host: %[4]s.mesh
  trafficPolicy: {connectionPool: {http: {maxRequestsPerConnection: 1}}}
`

// CA-13, CA-10: two meshes, each with an authority, a frontend and an agent with its Envoy of
// its own, call each other, because the MeshConfig of each has the roots of the other.
// Policies know the callers by their own trust domain. A root of a mesh is rotated although
// its proxies get it among those of the other mesh, and a mesh that no longer trusts the
// other refuses its calls.
func TestTwoMeshes(t *testing.T) {
	t.Parallel()
	const one, two = "cluster.local", "two.example"
	webPort, cartPort, toCart, toWeb := port(t), port(t), port(t), port(t)
	of := func(domain string) func(*mesh, *up.Settings) {
		return func(_ *mesh, s *up.Settings) { s.Authority.TrustDomain = domain }
	}
	a := start(t, fmt.Sprintf(ofMesh, "web", "127.0.0.2", webPort, "cart", "127.0.0.3", cartPort, toCart, two), of(one))
	b := start(t, fmt.Sprintf(ofMesh, "cart", "127.0.0.3", cartPort, "web", "127.0.0.2", webPort, toWeb, one), of(two))
	says := func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(r.Header.Get("x-forwarded-client-cert"))) // the client looks at the status
	}
	serve(t, webPort, says)
	serve(t, cartPort, says)
	trusts := func(m *mesh, own, other, roots string) {
		cas := ""
		if roots != "" {
			cas = fmt.Sprintf("{trustDomains: [%s], pem: %q}", other, roots)
		}
		certtest.WriteFile(t, m.config, "trust.yaml", fmt.Appendf(nil, `
apiVersion: mesh.istio.io/v1alpha1
kind: MeshConfig
metadata: {name: default}
spec: {trustDomain: %s, caCertificates: [%s]}
`, own, cas))
	}
	trusts(a, one, two, "")
	trusts(b, two, one, "")
	web, cart := a.workload("web", "127.0.0.2", a.xds, nil), b.workload("cart", "127.0.0.3", b.xds, nil)
	for _, w := range []*workload{web, cart} {
		w.until(w.name+" is ready", time.Minute, w.ready)
	}
	callCart := func() error { return get("http://"+at("127.0.0.1", toCart), "cart.mesh") }
	callWeb := func() error { return get("http://"+at("127.0.0.1", toWeb), "web.mesh") }
	fails := func(call func() error) func() error {
		return func() error {
			if call() == nil {
				return errors.New("it is answered")
			}
			return nil
		}
	}
	a.until("a listener for cart", time.Minute, func() error {
		err := callCart()
		switch {
		case err == nil:
			return errors.New("cart, whose mesh is not trusted, answers")
		case strings.Contains(err.Error(), "refused"): // nothing listens
			return err
		}
		return nil
	})
	trusts(a, one, two, b.meshlog("ca", "roots"))
	trusts(b, two, one, a.meshlog("ca", "roots"))
	a.until("a call of cart", time.Minute, callCart)
	b.until("a call of web", time.Minute, callWeb)

	old := b.status()["active"].Root
	before, err := cart.certificate()
	must(t, err)
	b.meshlog("ca", "rotate")
	b.until("the new root signs", time.Minute, func() error {
		if now := b.status()["active"].Root; now == old {
			return fmt.Errorf("%+v", b.status())
		}
		return nil
	})
	trusts(a, one, two, b.meshlog("ca", "roots"))
	b.until("a certificate of cart under the new root", time.Minute, func() error {
		c, err := cart.certificate()
		if err == nil && string(c.AuthorityKeyId) == string(before.AuthorityKeyId) {
			err = errors.New("it is under the old root")
		}
		return err
	})
	a.until("a call of cart under the new root", time.Minute, callCart)
	b.until("a call of web under the new root", time.Minute, callWeb)

	trusts(b, two, one, "")
	a.until("cart refuses web", time.Minute, fails(callCart))
	must(t, fails(callCart)())
}
