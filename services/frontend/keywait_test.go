package frontend_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/frontend"
	"meshlog.dev/services/frontend/keys"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/store"
)

// identified is the bootstrap of a router that shows a certificate to the frontend.
const identified = `
node: {id: edge, cluster: edge, metadata: {NAMESPACE: edge, LABELS: {app: edge}}}
dynamic_resources:
  ads_config: {api_type: %s, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: meshlog}}]}
  cds_config: {ads: {}, resource_api_version: V3}
  lds_config: {ads: {}, resource_api_version: V3}
static_resources:
  clusters:
  - name: meshlog
    type: STATIC
    load_assignment:
      cluster_name: meshlog
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %d}}}}]}]
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        common_tls_context:
          tls_certificates: [{certificate_chain: {filename: %s}, private_key: {filename: %s}}]
          validation_context: {trusted_ca: {filename: %s}}
`

// servers returns a Gateway with a server for each name, whose credential has that name.
func servers(port int, names ...string) string {
	text := "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: gw, namespace: edge}\nspec:\n  selector: {app: edge}\n  servers:\n"
	for _, n := range names {
		text += fmt.Sprintf("  - {port: {number: %d, name: https-%[2]s, protocol: HTTPS}, hosts: [%[2]s.example], tls: {mode: SIMPLE, credentialName: %[2]s}}\n", port, n)
	}
	return text
}

// SDS-9: a running Envoy is to get a server whose key is coming. Its listener waits for the
// key, and the report names it. It is sent with the key; if the key does not come, it is sent
// after 4 s, when the key counts as gone. Other servers work all the time.
func TestListenerWaitsForKey(t *testing.T) {
	t.Parallel()
	for _, delta := range []bool{false, true} {
		t.Run(fmt.Sprintf("delta=%v", delta), func(t *testing.T) {
			t.Parallel()
			var server atomic.Pointer[frontend.Server]
			watcher := &keeper{keys: map[string][]byte{}}
			kept := keys.New(keys.Config{
				Ask: watcher.ask, Sums: hmacs.Key, Log: slog.New(slog.DiscardHandler),
				OnChange: func(k keys.Key) { server.Load().KeyChanged(k) },
			})
			p := startTLS(t, true, func(c *frontend.Config) { c.Keys = kept })
			server.Store(p.server)
			ctx, cancel := context.WithCancel(t.Context())
			var runs sync.WaitGroup
			runs.Go(func() { _ = kept.Run(ctx) })
			defer runs.Wait()
			defer cancel()

			port, dir := freePort(t), t.TempDir()
			first, firstPair := watcher.put(t, "edge", "first", true)
			p.serves(p.mesh.Publish(append(YAML(t, servers(port, "first")), first)...))
			cert, key := p.clientCA.Client("edge", "spiffe://cluster.local/ns/edge/sa/edge").Write(t, dir, "edge")
			runEnvoy(t, fmt.Sprintf(identified, apiTypes[delta], p.tls.(*net.TCPAddr).Port, cert, key, certtest.WriteFile(t, dir, "servers.pem", p.ca.PEM())))
			h := handshakes{T: t, port: port}
			h.until("first", firstPair)

			second, secondPair := watcher.put(t, "edge", "second", false)
			v := p.mesh.Publish(append(YAML(t, servers(port, "first", "second")), second)...)
			p.serves(v)
			p.eventually("the listener to wait for the key", waitsForKey("kubernetes://second"))
			if err := h.as("second", secondPair); err == nil {
				t.Error("the server works without its key")
			}
			if err := h.as("first", firstPair); err != nil {
				t.Errorf("while another server waits for its key: %v", err)
			}
			watcher.give(refOf(t, "second", secondPair), secondPair)
			h.until("second", secondPair)
			p.eventually("the version to be applied", func(r *reportv1.FrontendReport) bool {
				return len(r.GetApplied()) == 1 && store.VersionOf(r.GetApplied()[0].GetVersion()) == v
			})

			third, thirdPair := watcher.put(t, "edge", "third", false)
			began := time.Now()
			p.serves(p.mesh.Publish(append(YAML(t, servers(port, "first", "second", "third")), third)...))
			p.eventually("the listener to wait for the third key", waitsForKey("kubernetes://third"))
			p.eventually("the listener to be sent without the key", func(r *reportv1.FrontendReport) bool {
				e := alone(r)
				return e != nil && !waitsForKey("kubernetes://third")(r) && slices.ContainsFunc(e.GetTypes(), func(x *reportv1.TypeReport) bool {
					return slices.Equal(x.GetMissingKeys(), []string{"kubernetes://third"})
				})
			})
			if took := time.Since(began); took < 4*time.Second || took > 15*time.Second {
				t.Errorf("the listener waited %s for a key that does not come, want 4 s", took)
			}
			for name, pair := range map[string]certtest.Pair{"first": firstPair, "second": secondPair} {
				if err := h.as(name, pair); err != nil {
					t.Errorf("%s, while the key of another server does not come: %v", name, err)
				}
			}
			watcher.give(refOf(t, "third", thirdPair), thirdPair)
			h.until("third", thirdPair)
		})
	}
}

// waitsForKey reports whether the only proxy's listeners wait for the key of a secret.
func waitsForKey(secret string) func(*reportv1.FrontendReport) bool {
	return func(r *reportv1.FrontendReport) bool {
		p := alone(r)
		return p != nil && slices.ContainsFunc(p.GetTypes(), func(x *reportv1.TypeReport) bool {
			return x.GetTypeUrl() == ident.LDS.URL() && slices.Equal(x.GetWaitsForKeys(), []string{secret})
		})
	}
}

// handshakes connects to servers at a port of loopback.
type handshakes struct {
	*testing.T
	port int
}

// as returns nil if the server of a name has this certificate.
func (h *handshakes) as(name string, pair certtest.Pair) error {
	d := tls.Dialer{Config: &tls.Config{ServerName: name + ".example", InsecureSkipVerify: true}} //nolint:gosec // compared below
	ctx, cancel := context.WithTimeout(h.Context(), 5*time.Second)
	defer cancel()
	c, err := d.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", h.port))
	if err != nil {
		return err
	}
	defer c.Close()
	want, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		return err
	}
	if got := c.(*tls.Conn).ConnectionState().PeerCertificates[0]; !slices.Equal(got.Raw, want.Certificate[0]) {
		return fmt.Errorf("the certificate is that of %v", got.DNSNames)
	}
	return nil
}

func (h *handshakes) until(name string, pair certtest.Pair) {
	h.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		err := h.as(name, pair)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			h.Fatalf("%s: %v", name, err)
		}
	}
}
