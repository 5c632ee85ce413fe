package securemesh_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/services/roles/up"
	"meshlog.dev/services/suite/envoytest"
)

// guarded has a service of cart with policies: one is in dry run, and no proxy enforces
// another one. Its Gateway names two certificates, and one is missing.
const guarded = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: cart, namespace: cart}
spec:
  hosts: [cart.mesh]
  addresses: [10.99.0.1]
  resolution: STATIC
  location: MESH_INTERNAL
  ports: [{number: %[1]d, name: http, protocol: HTTP, targetPort: %[2]d}]
  endpoints: [{address: 127.0.0.3, ports: {http: %[2]d}, serviceAccount: cart}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: web, namespace: cart}
spec: {rules: [{from: [{source: {namespaces: [web]}}]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: tried, namespace: cart, annotations: {istio.io/dry-run: "true"}}
spec: {action: DENY, rules: [{to: [{operation: {paths: [/admin]}}]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: waypoint, namespace: cart}
spec: {targetRefs: [{kind: Service, group: "", name: cart}], rules: [{}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: web}
spec:
  selector: {app: edge}
  servers:
  - {port: {number: 8443, name: https, protocol: HTTPS}, hosts: [shop.example], tls: {mode: SIMPLE, credentialName: shop}}
  - {port: {number: 8443, name: https-lost, protocol: HTTPS}, hosts: [lost.example], tls: {mode: SIMPLE, credentialName: lost}}
`

const strict = `---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: all, namespace: cart}
spec: {mtls: {mode: STRICT}}
`

// bare is the bootstrap of an Envoy without an agent, and so without a certificate.
const bare = `
node: {id: %q, cluster: old, metadata: {NAMESPACE: web}}
dynamic_resources:
  ads_config: {api_type: DELTA_GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: xds}}]}
  cds_config: {ads: {}, resource_api_version: V3}
  lds_config: {ads: {}, resource_api_version: V3}
static_resources:
  clusters:
  - name: xds
    type: STATIC
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment:
      cluster_name: xds
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %d}}}}]}]
`

// The proxies of TestPeople.
const (
	cartID = "sidecar~127.0.0.3~cart-1.cart~cart.svc.cluster.local"
	webID  = "sidecar~127.0.0.2~web-1.web~web.svc.cluster.local"
	oldID  = "router~127.0.0.4~old-1.web~web.svc.cluster.local"
)

// CA-9, MTLS-16, AZ-8, POL-1: on a mesh with real Envoys, two with agents and one without a
// certificate, the commands say which workload has which certificate, until when and how it
// was issued; which client loses a port that becomes STRICT; which certificates a Gateway
// names; which policies hold, in which slot, and which do not.
func TestPeople(t *testing.T) {
	t.Parallel()
	service, backend, plain := port(t), port(t), port(t)
	m := start(t, fmt.Sprintf(guarded, service, backend), func(m *mesh, s *up.Settings) {
		s.Frontend.Listen = at("127.0.0.1", plain)
		s.Certificates = filepath.Join(m.dir, "certificates")
		pair := filepath.Join(s.Certificates, "web", "shop")
		must(t, os.MkdirAll(pair, 0o700))
		shop := certtest.NewCA("shop CA").Server("shop.example", time.Now().Add(24*time.Hour))
		certtest.WriteFile(t, pair, "tls.crt", shop.Cert)
		certtest.WriteFile(t, pair, "tls.key", shop.Key)
		s.Kube.Secrets.KeyFile = certtest.WriteFile(t, m.dir, "hmac", []byte("a key of sixteen bytes\n"))
		must(t, os.Chmod(s.Kube.Secrets.KeyFile, 0o600))
	})
	serveCart(t, backend)
	cart, web := m.workload("cart", "127.0.0.3", m.xds, nil), m.workload("web", "127.0.0.2", m.xds, nil)
	old := certtest.WriteFile(t, m.dir, "old.yaml", fmt.Appendf(nil, bare, oldID, plain))
	p, err := program.Start("envoy-old", m.dir, []string{envoytest.Envoy(t), "-c", old, "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning"})
	must(t, err)
	t.Cleanup(p.Kill)
	for _, w := range []*workload{cart, web} {
		m.until(w.name+" is ready", time.Minute, w.ready)
	}
	m.until("the streams of all", time.Minute, func() error {
		said := m.meshlog("proxy-status", "-o", "json")
		for _, id := range []string{cartID, webID, oldID} {
			if !strings.Contains(said, `"`+id+`"`) {
				return fmt.Errorf("no %s in %s", id, said)
			}
		}
		return nil
	})
	m.showsCertificates()
	m.showsLostClients("--namespace", "cart")
	m.showsGatewayCertificates()
	certtest.WriteFile(t, m.config, "strict.yaml", []byte(strict))
	m.showsPolicies()
	m.showsLostClients()
	m.showsStatus()
}

// says demands that a text has these parts.
func (m *mesh) says(command, text string, parts ...string) {
	m.Helper()
	for _, p := range parts {
		if !regexp.MustCompile(p).MatchString(text) {
			m.Errorf("`meshlog %s` does not say %q:\n%s", command, p, text)
		}
	}
}

// decoded runs a command, and decodes its JSON. fails says whether it ends with an error.
func (m *mesh) decoded(fails bool, into any, args ...string) {
	m.Helper()
	said, err := m.try(append(args, "-o", "json")...)
	if (err != nil) != fails {
		m.Errorf("`meshlog %s` ends with the error %v", strings.Join(args, " "), err)
	}
	must(m.T, json.Unmarshal([]byte(said), into))
}

func (m *mesh) showsCertificates() {
	m.Helper()
	const identity = "spiffe://cluster.local/ns/cart/sa/cart"
	m.says("certs", m.meshlog("certs"), "IDENTITY +SERIAL +STATE +ENDS +ISSUED +PROOF", identity+" +[0-9a-f]+ +[A-Z ]+ +in [0-9]+s (just now|.*ago) +join token .*"+cartID)
	var certs []struct {
		Identity, Serial, State, Proof string
		Issued, Ends                   time.Time
		Proxies                        []string
	}
	m.decoded(false, &certs, "certs")
	for _, c := range certs {
		if c.Identity == identity && c.Proof == "join token" && slices.Contains(c.Proxies, cartID) {
			if left := time.Until(c.Ends); c.Serial == "" || c.Issued.IsZero() || left <= 0 || left > time.Minute {
				m.Errorf("the certificate of cart is %+v", c)
			}
			return
		}
	}
	m.Errorf("`meshlog certs -o json` does not have the certificate of cart by a join token: %+v", certs)
}

// showsLostClients demands that the client without a certificate is the only one that
// loses the port of cart.
func (m *mesh) showsLostClients(args ...string) {
	m.Helper()
	args = append([]string{"certs", "check"}, args...)
	said, err := m.try(args...)
	if err == nil || !strings.Contains(err.Error(), "1 port refuses clients of the mesh") {
		m.Errorf("`meshlog %s`: %v", strings.Join(args, " "), err)
	}
	m.says("certs check", said, `cart\.mesh:\d+ .*`+oldID+" +router +its node names no agent")
	var check struct {
		Ports []struct {
			Service   string
			Workloads []string
			Clients   []struct{ Proxy, Type, Why string }
		}
	}
	m.decoded(true, &check, args...)
	if len(check.Ports) != 1 || !strings.HasPrefix(check.Ports[0].Service, "cart.mesh:") || !slices.Equal(check.Ports[0].Workloads, []string{cartID}) ||
		len(check.Ports[0].Clients) != 1 || check.Ports[0].Clients[0].Proxy != oldID {
		m.Errorf("`meshlog %s -o json` says %+v, want that %s loses the port of %s", strings.Join(args, " "), check, oldID, cartID)
	}
}

func (m *mesh) showsGatewayCertificates() {
	m.Helper()
	said, err := m.try("certs", "gateways")
	if err == nil {
		m.Error("`meshlog certs gateways` succeeds though a certificate is missing")
	}
	m.says("certs gateways", said, `web/lost +MISSING .*web/edge +lost\.example`, `web/shop +VALID +in (23h|1d) .*CN=shop CA +web/edge +shop\.example`)
	var certs []struct {
		Secret, State   string
		Ends            time.Time
		Gateways, Hosts []string
	}
	m.decoded(true, &certs, "certs", "gateways")
	if len(certs) != 2 || certs[0].State != "MISSING" || certs[1].State != "VALID" || certs[1].Ends.IsZero() || !slices.Equal(certs[1].Hosts, []string{"shop.example"}) {
		m.Errorf("`meshlog certs gateways -o json` says %+v", certs)
	}
}

// showsPolicies waits until cart is STRICT, and demands its mode and its slots.
func (m *mesh) showsPolicies() {
	m.Helper()
	var views []struct {
		ID, Identity, CertificateSerial string
		CertificateEnds                 time.Time
		Security                        struct {
			Inbound  []struct{ Mode, By, Service string }
			Policies []struct {
				Slot     string
				Policies []struct {
					Object string
					DryRun bool
				}
			}
		}
	}
	m.until("the port of cart is STRICT", time.Minute, func() error {
		m.decoded(false, &views, "proxy-status", cartID)
		if in := views[0].Security.Inbound; len(in) != 1 || in[0].Mode != "STRICT" || in[0].By != "cart/all" || !strings.HasPrefix(in[0].Service, "cart.mesh:") {
			return fmt.Errorf("%+v", views)
		}
		return nil
	})
	v := views[0]
	if v.Identity != "spiffe://cluster.local/ns/cart/sa/cart" || v.CertificateSerial == "" || v.CertificateEnds.IsZero() {
		m.Errorf("cart has the identity %q, by the certificate %s until %s", v.Identity, v.CertificateSerial, v.CertificateEnds)
	}
	got := map[string]string{}
	for _, s := range v.Security.Policies {
		for _, p := range s.Policies {
			got[p.Object] = fmt.Sprint(s.Slot, " ", p.DryRun)
		}
	}
	if len(got) != 2 || got["cart/web"] != "allow false" || got["cart/tried"] != "deny true" {
		m.Errorf("the policies of cart are %v", got)
	}
	m.says("proxy-status", m.meshlog("proxy-status", cartID),
		"identity +spiffe://cluster.local/ns/cart/sa/cart", "certificate +serial [0-9a-f]+, ends in", `STRICT +PeerAuthentication cart/all +cart\.mesh:`,
		"allow +cart/web +enforced", "deny +cart/tried +dry run")
}

func (m *mesh) showsStatus() {
	m.Helper()
	m.until("the status", time.Minute, func() error { // a connection that ends with its certificate is renewed
		said, err := m.try("status")
		if err == nil || !regexp.MustCompile(`identities +2 proxies with a certificate, 1 without`).MatchString(said) {
			return fmt.Errorf("%w\n%s", err, said)
		}
		m.says("status", said, `policies +2 enforced, 1 not enforced, 1 in dry run \(cart/tried\)`, "(?m)^1 security policy is not enforced by any proxy")
		return nil
	})
	var status struct {
		Identities struct{ With, Without, EndsSoon, Ended int }
		Policies   struct {
			Enforced            int
			NotEnforced, DryRun []string
		}
	}
	m.decoded(true, &status, "status")
	if i, p := status.Identities, status.Policies; i.With+i.Without != 3 || i.EndsSoon+i.Ended != 0 || p.Enforced != 2 || len(p.NotEnforced) != 1 || !slices.Equal(p.DryRun, []string{"cart/tried"}) {
		m.Errorf("`meshlog status -o json` says %+v", status)
	}
}
