//go:build istioagent

package securemesh_test

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/services/roles/agent"
	"meshlog.dev/services/roles/up"
	"meshlog.dev/services/suite/envoytest"
)

// byIstioAgent is the bootstrap of an Envoy whose certificates and xDS come over the sockets
// of Istio's agent, in the directory DIR.
const byIstioAgent = `
node:
  id: sidecar~127.0.0.2~web-1.web~web.svc.cluster.local
  cluster: web
  metadata: {NAMESPACE: web, LABELS: {app: web}, INSTANCE_IPS: 127.0.0.2, INTERCEPTION_MODE: NONE, SDS_CLUSTER: sds-grpc}
dynamic_resources:
  ads_config:
    api_type: DELTA_GRPC
    transport_api_version: V3
    set_node_on_first_message_only: true
    grpc_services: [{envoy_grpc: {cluster_name: xds-grpc}}]
  cds_config: {ads: {}, resource_api_version: V3, initial_fetch_timeout: 0s}
  lds_config: {ads: {}, resource_api_version: V3, initial_fetch_timeout: 0s}
static_resources:
  clusters:
  - name: sds-grpc
    type: STATIC
    load_assignment: {cluster_name: sds-grpc, endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: DIR/var/run/secrets/workload-spiffe-uds/socket}}}}]}]}
    typed_extension_protocol_options: &http2
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
  - name: xds-grpc
    type: STATIC
    load_assignment: {cluster_name: xds-grpc, endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: DIR/etc/istio/proxy/XDS}}}}]}]}
    typed_extension_protocol_options: *http2
`

// istiodName is the name that Istio's agent demands of a server that it calls on localhost,
// unless it is told another one; for a CA it cannot be told.
const istiodName = "istiod.istio-system.svc"

// istioAgent starts Istio's agent for workload web as on a machine without Kubernetes: its
// token is a join token, and it writes its certificate to files, with which it renews itself
// and connects to frontends. It starts the Envoy of byIstioAgent.
func istioAgent(m *mesh) (dir string, agent *program.Process) {
	m.Helper()
	binary, err := program.Tool(m.Context(), "istio-agent")
	must(m.T, err)
	dir, err = os.MkdirTemp("", "istio") //nolint:usetesting // sockets have short names
	must(m.T, err)
	m.Cleanup(func() { _ = os.RemoveAll(dir) })
	tokens, certificates := filepath.Join(dir, "var/run/secrets/tokens"), filepath.Join(dir, "certs")
	must(m.T, os.MkdirAll(tokens, 0o700), os.MkdirAll(certificates, 0o700))
	certtest.WriteFile(m.T, tokens, "istio-token", []byte(m.meshlog("ca", "token", "--namespace", "web", "--account", "web")))
	bootstrap := certtest.WriteFile(m.T, dir, "envoy.yaml", []byte(strings.ReplaceAll(byIstioAgent, "DIR", dir)))
	_, xds, err := net.SplitHostPort(m.xds)
	must(m.T, err)
	_, ca, err := net.SplitHostPort(m.ca)
	must(m.T, err)
	agent, err = program.Start("istio-agent", dir, []string{"env", "--chdir", dir, binary, "proxy", "sidecar"},
		"POD_NAME=web-1", "POD_NAMESPACE=web", "SERVICE_ACCOUNT=web", "INSTANCE_IP=127.0.0.2", "TRUST_DOMAIN=cluster.local",
		"CLOUD_PLATFORM=none", "SECRET_TTL=1m", "CA_ADDR=localhost:"+ca, "CA_ROOT_CA="+m.roots, "XDS_ROOT_CA="+m.servers, "ISTIOD_SAN=localhost",
		"PROV_CERT="+certificates, "OUTPUT_CERTS="+certificates,
		fmt.Sprintf("PROXY_CONFIG={discoveryAddress: 'localhost:%s', statusPort: %d, binaryPath: %s, customConfigFile: %s, terminationDrainDuration: 1s}",
			xds, port(m), envoytest.Envoy(m.T), bootstrap),
	)
	must(m.T, err)
	m.Cleanup(func() {
		_ = agent.Stop()
		_ = syscall.Kill(-agent.PID(), syscall.SIGKILL) // its Envoy, if it has not ended it
		if m.Failed() {
			m.Logf("istio-agent:\n%s", agent.Tail(60))
		}
	})
	return dir, agent
}

// leafIn returns the certificate that Istio's agent wrote.
func leafIn(dir string) (*x509.Certificate, error) {
	content, err := os.ReadFile(filepath.Join(dir, "certs", "cert-chain.pem"))
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(content)
	if block == nil {
		return nil, errors.New("there is no certificate yet")
	}
	return x509.ParseCertificate(block.Bytes)
}

// T-6, CA-2, CA-12: the binary of Istio's agent, without Kubernetes, gets a certificate from
// our CA by a join token, serves it to a real Envoy over its socket, and relays the Envoy's
// xDS to a frontend under that identity. The Envoy calls a workload with an agent of ours in
// STRICT mutual TLS. The agent renews with its certificate alone, because the token is spent.
func TestRealIstioAgent(t *testing.T) {
	service, backend := port(t), port(t)
	m := start(t, fmt.Sprintf(documents, service, backend), func(_ *mesh, s *up.Settings) {
		s.Authority.DNSNames = append(s.Authority.DNSNames, istiodName)
	})
	serveCart(t, backend)
	cart := m.workload("cart", "127.0.0.3", m.xds, func(*agent.Settings) {})
	dir, istio := istioAgent(m)
	var first *x509.Certificate
	m.until("Istio's agent has a certificate", time.Minute, func() (err error) {
		must(t, istio.Running())
		first, err = leafIn(dir)
		return err
	})
	if len(first.URIs) != 1 || first.URIs[0].String() != "spiffe://cluster.local/ns/web/sa/web" {
		t.Errorf("the certificate is for %v", first.URIs)
	}
	must(t, os.Remove(filepath.Join(dir, "var/run/secrets/tokens/istio-token")))

	m.until("cart is ready", time.Minute, cart.ready)
	url := "http://" + at("127.0.0.1", service)
	m.until("a request in mutual TLS", time.Minute, func() error { return get(url, "cart.mesh") })
	if err := get("http://"+at("127.0.0.3", backend), "cart.mesh"); err == nil {
		t.Error("a port that is STRICT answers plaintext")
	}
	if said := m.meshlog("proxy-status", "-o", "json"); !strings.Contains(said, "spiffe://cluster.local/ns/web/sa/web") {
		t.Errorf("the frontend does not know the identity of web:\n%s", said)
	}
	m.until("a renewal", 2*time.Minute, func() error {
		must(t, istio.Running())
		now, err := leafIn(dir)
		if err == nil && now.SerialNumber.Cmp(first.SerialNumber) == 0 {
			err = errors.New("it is the first certificate still")
		}
		return err
	})
	must(t, get(url, "cart.mesh"))
}
