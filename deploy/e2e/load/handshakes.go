package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
)

// handshakesCommand compares a sidecar that accepts mutual TLS only with an Envoy
// whose listener is written by hand.
const handshakesCommand = "handshakes"

// maxHandshake is the most processor time of Envoy that a connection to the sidecar
// may take, as a multiple of what it takes with the listener written by hand.
const maxHandshake = 1.2

// handshakesResult holds the rounds of both.
type handshakesResult struct{ ours, byHand rounds }

func parseHandshakes(args []string) (turnsPlan, error) { return parseTurns(handshakesCommand, 4, args) }

// accepts is an Envoy that accepts mutual TLS at an address.
type accepts struct {
	pid     int
	address string
	client  *tls.Config
}

func runHandshakes(ctx context.Context, p turnsPlan) (_ *handshakesResult, err error) {
	dir, err := os.MkdirTemp("", "meshlog-handshakes-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	backend, err := rig.StartBackend("backend")
	if err != nil {
		return nil, err
	}
	defer backend.Stop()
	ca := certtest.NewCA("mesh")
	files := map[string][]byte{"ca.pem": ca.PEM()}
	server, client := ca.Peer("web", "spiffe://cluster.local/ns/shop/sa/web"), ca.Peer("client", "spiffe://cluster.local/ns/shop/sa/client")
	files["cert.pem"], files["key.pem"] = server.Cert, server.Key
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return nil, err
		}
	}
	// The client judges no certificate: a workload's names no host.
	config := &tls.Config{
		Certificates: []tls.Certificate{client.TLS()}, MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"},
		InsecureSkipVerify: true, //nolint:gosec // see above
	}
	ours, end, err := startSidecar(ctx, dir, backend.Port, config)
	if err != nil {
		return nil, err
	}
	defer end()
	byHand, end, err := startByHand(ctx, dir, backend.Port, config)
	if err != nil {
		return nil, err
	}
	defer end()
	r := &handshakesResult{}
	for range p.rounds {
		for _, of := range []struct {
			envoy *accepts
			into  *rounds
		}{{ours, &r.ours}, {byHand, &r.byHand}} {
			one, err := of.envoy.stretch(ctx, p)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", of.envoy.address, err)
			}
			*of.into = append(*of.into, one)
		}
	}
	return r, nil
}

// stretch makes requests, each on a new connection, for a while.
func (a *accepts) stretch(ctx context.Context, p turnsPlan) (stretch, error) {
	used := func() (time.Duration, error) { return cpuOf(a.pid) }
	return stretchOf(ctx, p.stretch, p.clients, used, a.request)
}

func (a *accepts) request(ctx context.Context) error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: a.client}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+a.address+"/", nil)
	if err != nil {
		return err
	}
	return doWith(&client, req)
}

// startSidecar starts a mesh and the sidecar of a workload with mutual TLS only.
func startSidecar(ctx context.Context, dir string, port int, client *tls.Config) (*accepts, func(), error) {
	config, err := rig.NewConfigDir(dir)
	if err != nil {
		return nil, nil, err
	}
	if _, err := config.Save("web.yaml", fmt.Sprintf(strictService, port)); err != nil {
		return nil, nil, err
	}
	mesh, err := rig.Up(ctx, dir, config.Path)
	if err != nil {
		return nil, nil, err
	}
	e, err := mesh.Envoy(ctx, rig.EnvoyConfig{Node: "web", Delta: true, Overlay: fmt.Sprintf(strictNode, dir)})
	if err != nil {
		mesh.End()
		return nil, nil, err
	}
	end := func() { e.Kill(); mesh.End() }
	a := &accepts{pid: e.PID(), address: fmt.Sprintf("127.0.0.2:%d", port), client: client}
	if err := e.UntilAlive(ctx, "the sidecar to answer", a.request); err != nil {
		end()
		return nil, nil, err
	}
	return a, end, nil
}

// startByHand starts an Envoy with a listener that does the same.
func startByHand(ctx context.Context, dir string, backend int, client *tls.Config) (*accepts, func(), error) {
	bin, err := program.Tool(ctx, "envoy")
	if err != nil {
		return nil, nil, err
	}
	port, err := testport.TCP()
	if err != nil {
		return nil, nil, err
	}
	path := filepath.Join(dir, "by-hand.yaml")
	if err := os.WriteFile(path, fmt.Appendf(nil, strictByHand, port, dir, backend), 0o600); err != nil {
		return nil, nil, err
	}
	p, err := program.Start("by-hand", dir, []string{bin, "-c", path, "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"})
	if err != nil {
		return nil, nil, err
	}
	a := &accepts{pid: p.PID(), address: address(port), client: client}
	if err := p.UntilAlive(ctx, "an Envoy to answer", a.request); err != nil {
		p.Kill()
		return nil, nil, err
	}
	return a, p.Kill, nil
}

func printHandshakes(w io.Writer, p turnsPlan, r *handshakesResult) {
	fmt.Fprintf(w, "\nHandshakes: requests on new connections with mutual TLS; medians of %d stretches of %s each, in turns\n\n", p.rounds, p.stretch)
	const line = "  %-52s %14s %14s %8s %9s  %s\n"
	fmt.Fprintf(w, line, "", "sidecar", "by hand", "ratio", "at most", "")
	ratio := quotient(r.ours.cpu(), r.byHand.cpu())
	fmt.Fprintf(w, line, "processor time of Envoy for each", ms(r.ours.cpu()), ms(r.byHand.cpu()), times(ratio), times(maxHandshake), verdict(ratio <= maxHandshake))
	fmt.Fprintf(w, line, "requests a second, the clients on the same machine", fmt.Sprintf("%.0f", r.ours.perSecond()), fmt.Sprintf("%.0f", r.byHand.perSecond()),
		times(r.ours.perSecond()/r.byHand.perSecond()), "", "")
}

// strictService is a workload whose sidecar listens at 127.0.0.2, in front of the
// workload at the same port of 127.0.0.1.
const strictService = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.shop.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  exportTo: ["."]
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.2, ports: {http: %d}}]
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
`

const strictNode = `node:
  id: sidecar~127.0.0.2~web-1.shop~shop.svc.cluster.local
  cluster: web
  metadata:
    INTERCEPTION_MODE: NONE
    INSTANCE_IPS: 127.0.0.2
    LABELS: {app: web}
    TLS_SERVER_CERT_CHAIN: %[1]s/cert.pem
    TLS_SERVER_KEY: %[1]s/key.pem
    TLS_SERVER_ROOT_CERT: %[1]s/ca.pem
`

const strictByHand = `static_resources:
  listeners:
  - address: {socket_address: {address: 127.0.0.1, port_value: %[1]d}}
    filter_chains:
    - transport_socket:
        name: tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          require_client_certificate: true
          disable_stateless_session_resumption: true
          disable_stateful_session_resumption: true
          common_tls_context:
            alpn_protocols: [h2, http/1.1]
            tls_certificates: [{certificate_chain: {filename: %[2]s/cert.pem}, private_key: {filename: %[2]s/key.pem}}]
            validation_context:
              trusted_ca: {filename: %[2]s/ca.pem}
              match_typed_subject_alt_names: [{san_type: URI, matcher: {prefix: "spiffe://cluster.local/"}}]
      filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: http
          http_filters: [{name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
          route_config:
            virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: backend}}]}]
  clusters:
  - name: backend
    load_assignment: {cluster_name: backend, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %[3]d}}}}]}]}
`
