package securemesh_test

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"meshlog.dev/services/roles/agent"
)

// documents are a service that a sidecar without redirection serves at 127.0.0.3, only to
// the namespace web: both Envoys of a test share the loopback interface.
const documents = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: cart, namespace: cart}
spec:
  hosts: [cart.mesh]
  addresses: [10.99.0.1]
  exportTo: [web]
  resolution: STATIC
  location: MESH_INTERNAL
  ports: [{number: %[1]d, name: http, protocol: HTTP, targetPort: %[2]d}]
  endpoints: [{address: 127.0.0.3, ports: {http: %[2]d}, serviceAccount: cart}]
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: all, namespace: cart}
spec: {mtls: {mode: STRICT}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: cart, namespace: cart}
spec:
  host: cart.mesh
  trafficPolicy: {connectionPool: {http: {maxRequestsPerConnection: 1}}}
`

// untilRemoved makes TestRootIsRotated two minutes longer.
var untilRemoved = flag.Bool("removed", false, "go on until the root before is removed")

// pair runs the service of documents and a client, each with an agent and an Envoy, and
// returns them when requests pass. set is for the settings of their agents.
func pair(t *testing.T, set func(m *mesh, name string, s *agent.Settings)) (m *mesh, cart, web *workload, service int, url string) {
	t.Helper()
	service, backend := port(t), port(t)
	m = start(t, fmt.Sprintf(documents, service, backend), nil)
	serveCart(t, backend)
	of := func(name, ip string) *workload {
		return m.workload(name, ip, m.xds, func(s *agent.Settings) { set(m, name, s) })
	}
	cart, web = of("cart", "127.0.0.3"), of("web", "127.0.0.2")
	for _, w := range []*workload{cart, web} {
		m.until(w.name+" is ready", time.Minute, w.ready)
	}
	url = "http://" + at("127.0.0.1", service)
	m.until("a request", time.Minute, func() error { return get(url, "cart.mesh") })
	if err := get("http://"+at("127.0.0.3", backend), "cart.mesh"); err == nil {
		t.Error("a port that is STRICT answers plaintext")
	}
	return m, cart, web, service, url
}

// serveCart serves the workload of documents.
func serveCart(t *testing.T, backend int) {
	t.Helper()
	serve(t, backend, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("x-forwarded-client-cert") == "" {
			http.Error(w, "the caller has shown no certificate", http.StatusForbidden)
		}
	})
}

func serve(t *testing.T, port int, answer http.HandlerFunc) {
	t.Helper()
	app := &http.Server{Handler: answer}
	l, err := net.Listen("tcp", at("127.0.0.1", port))
	must(t, err)
	go func() { _ = app.Serve(l) }()
	t.Cleanup(func() { _ = app.Close() })
}

// T-4, CA-10, CA-14, AGT-4: two agents join with tokens, their Envoys get certificates from
// the agents and listeners and clusters from the frontend, over mutual TLS, and one calls
// the other. Then the root of the mesh is rotated while requests flow, each over a TLS
// connection of its own: no request fails. The new root does not sign while one agent is
// asleep, and once both agents have applied it, both get certificates under it.
func TestRootIsRotated(t *testing.T) {
	t.Parallel()
	var way *relay
	m, cart, web, service, url := pair(t, func(m *mesh, name string, s *agent.Settings) {
		if name == "web" {
			way = newRelay(t, m.xds)
			s.XDS = []string{way.l.Addr().String()}
		}
	})
	both := []*workload{cart, web}
	before := map[string]string{}
	for _, w := range both {
		c, err := w.certificate()
		must(t, err)
		before[w.name] = string(c.AuthorityKeyId)
	}
	if said := m.meshlog("certs"); !strings.Contains(said, "/ns/cart/sa/cart ") || !strings.Contains(said, "join token") || !strings.Contains(said, "~cart-1.cart~") {
		t.Errorf("`meshlog certs` does not show the certificate of cart, or who has it:\n%s", said)
	}
	old := m.status()["active"].Root
	sent := m.load(url, "cart.mesh")

	// Connections end with their certificates, so those that fall asleep are new.
	way.cut()
	m.until("the streams of web", time.Minute, func() error {
		for _, id := range []string{"sidecar~127.0.0.2~web-1.web~web.svc.cluster.local", "sidecar~127.0.0.2~web-1.web~web.svc.cluster.local~agent"} {
			if !strings.Contains(m.meshlog("proxy-status", "-o", "json"), `"`+id+`"`) {
				return errors.New("no " + id)
			}
		}
		return nil
	})
	way.sleep()
	m.meshlog("ca", "rotate")
	m.until("the root waits for web only", time.Minute, func() error {
		next, ok := m.status()["announced"]
		if !ok || len(next.Waiting) != 1 || !strings.HasPrefix(next.Waiting[0], "1 of 2 proxies at frontend up") {
			return fmt.Errorf("%+v", m.status())
		}
		if len(next.Proxies) != 1 || !strings.Contains(next.Proxies[0].Proxy, "~web-1.web~") {
			return fmt.Errorf("it waits for %+v", next.Proxies)
		}
		return nil
	})
	if now := m.status()["active"].Root; now != old {
		t.Fatal("the new root signs before all proxies have it")
	}
	way.wake()
	m.until("the new root signs", time.Minute, func() error {
		if now := m.status()["active"].Root; now == old {
			return fmt.Errorf("%+v", m.status())
		}
		return nil
	})
	for _, w := range both {
		m.until("a certificate of "+w.name+" under the new root", time.Minute, func() error {
			c, err := w.certificate()
			if err == nil && string(c.AuthorityKeyId) == before[w.name] {
				err = errors.New("it is under the old root")
			}
			return err
		})
	}
	if *untilRemoved {
		m.until("the old root is removed", 5*time.Minute, func() error {
			if all := m.status(); len(all) != 1 {
				return fmt.Errorf("%+v", all)
			}
			return nil
		})
	}
	requests := sent()
	if made := web.connections(t, fmt.Sprintf("outbound|%d||cart.mesh", service)); made < requests {
		t.Errorf("%d connections were made for %d requests", made, requests)
	}
	t.Logf("%d requests, none failed", requests)
}

// T-4, CA-8: certificates last a minute, and the CA is away for longer than half of that,
// while they are to be renewed: no request fails, and each is over a TLS connection of its
// own. When the CA is back, both agents get new ones before theirs end.
func TestAuthorityIsAway(t *testing.T) {
	t.Parallel()
	var way *relay
	m, cart, web, service, url := pair(t, func(m *mesh, _ string, s *agent.Settings) {
		if way == nil {
			way = newRelay(t, m.ca)
		}
		s.CA = way.l.Addr().String()
	})
	both := []*workload{cart, web}
	way.sleep()
	way.cut()
	began := time.Now()
	before := map[string]*x509.Certificate{}
	for _, w := range both {
		c, err := w.certificate()
		must(t, err)
		before[w.name] = c
	}
	sent := m.load(url, "cart.mesh")
	m.until("more than half of the time", time.Minute, func() error {
		if away := time.Since(began); away < 31*time.Second {
			return fmt.Errorf("the CA is away for %s", away)
		}
		return nil
	})
	for _, w := range both {
		if c, err := w.certificate(); err != nil || !c.Equal(before[w.name]) {
			t.Errorf("%s has another certificate while the CA is away: %v", w.name, err)
		}
	}
	way.wake()
	for _, w := range both {
		m.until("another certificate of "+w.name, time.Until(before[w.name].NotAfter), func() error {
			c, err := w.certificate()
			if err == nil && c.Equal(before[w.name]) {
				err = errors.New("it is the one before")
			}
			return err
		})
	}
	m.until("the certificates from before have ended", time.Minute+time.Second, func() error {
		for _, c := range before {
			if left := time.Until(c.NotAfter); left > 0 {
				return fmt.Errorf("one lasts %s longer", left)
			}
		}
		return nil
	})
	must(t, get(url, "cart.mesh"))
	requests := sent()
	if made := web.connections(t, fmt.Sprintf("outbound|%d||cart.mesh", service)); made < requests {
		t.Errorf("%d connections were made for %d requests", made, requests)
	}
	t.Logf("%d requests, none failed", requests)
}

// connections returns how many connections Envoy has made to a cluster.
func (w *workload) connections(t *testing.T, cluster string) int64 {
	t.Helper()
	resp, err := http.Get("http://" + w.settings.EnvoyAdmin + "/stats?format=json&filter=upstream_cx_total$")
	must(t, err)
	defer resp.Body.Close()
	var all struct {
		Stats []struct {
			Name  string `json:"name"`
			Value int64  `json:"value"`
		} `json:"stats"`
	}
	must(t, json.NewDecoder(resp.Body).Decode(&all))
	for _, s := range all.Stats {
		if s.Name == "cluster."+cluster+".upstream_cx_total" {
			return s.Value
		}
	}
	t.Fatalf("Envoy does not know the cluster %s: %+v", cluster, all)
	return 0
}
