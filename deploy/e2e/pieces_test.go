package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/program"
)

// stock is the node of an Envoy that takes no larger expressions than one without
// settings.
const stock = `
node: {id: %s, cluster: one, metadata: {RE2_MAX_PROGRAM_SIZE: 100}}
layered_runtime: {layers: [{name: stock, static_layer: {re2.max_program_size.error_level: 100}}]}
`

// pieceRows is a listener whose filter chains differ by the address of the client, and
// the routes of its first chain, with one virtual host for each word.
const pieceRows = `
apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: rows, namespace: istio-system}
spec:
  nodes: {cluster: one}
  resource:
    "@type": type.googleapis.com/envoy.config.listener.v3.Listener
    name: rows
    address: {socket_address: {address: 0.0.0.0, port_value: %d}}
    filter_chains:
      - name: routed
        filter_chain_match: {source_prefix_ranges: [{address_prefix: 127.0.0.1, prefix_len: 32}]}
        filters:
          - name: envoy.filters.network.http_connection_manager
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
              stat_prefix: rows
              rds: {route_config_name: rows, config_source: {ads: {}, resource_api_version: V3}}
              http_filters:
                - name: envoy.filters.http.router
                  typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
      - name: direct
        filter_chain_match: {source_prefix_ranges: [{address_prefix: 127.0.0.2, prefix_len: 32}]}
        filters:
          - name: envoy.filters.network.direct_response
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.network.direct_response.v3.Config
              response: {inline_string: "%s"}%s
    default_filter_chain:
      filters:
        - name: envoy.filters.network.direct_response
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.filters.network.direct_response.v3.Config
            response: {inline_string: "fell through"}
---
apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: row-routes, namespace: istio-system}
spec:
  nodes: {cluster: one}
  resource:
    "@type": type.googleapis.com/envoy.config.route.v3.RouteConfiguration
    name: rows
    virtual_hosts:
      - {name: all, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: "fell through"}}}]}
%s---
`

// certificate is TLS with a certificate that does not exist: Envoy rejects the
// filter chain.
const certificate = `
        transport_socket:
          name: tls
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
            common_tls_context: {tls_certificates: [{certificate_chain: {filename: /nowhere/a.pem}, private_key: {filename: /nowhere/a.key}}]}`

// locales is an expression that a stock Envoy rejects: a list of
// locales.
const locales = `/(en-US|en-GB|de-DE|de-AT|de-CH|fr-FR|fr-BE|fr-CH|it-IT|it-CH|es-ES|es-MX|pt-PT|pt-BR|nl-NL|nl-BE|sv-SE|da-DK|nb-NO|fi-FI|pl-PL|cs-CZ|sk-SK|hu-HU|ro-RO|bg-BG|el-GR|tr-TR|ru-RU|uk-UA)/.*`

func hostSaying(name, says string) string {
	return fmt.Sprintf("      - {name: %[1]s, domains: [%[1]s.example], routes: [{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: %[2]s}}}]}\n", name, says)
}

func largeHost(name string) string {
	return fmt.Sprintf("      - {name: %[1]s, domains: [%[1]s.example], routes: [{match: {safe_regex: {regex: '%[2]s'}}, direct_response: {status: 200, body: {inline_string: refused}}}]}\n", name, locales)
}

// Stock Envoys reject one virtual host and one filter chain. Each keeps its domains,
// or its match, and everything else flows: for Envoys that had something good
// before, and for one that starts (section 5, item 1).
func TestPieces(t *testing.T) {
	for name, delta := range modes {
		t.Run(name, func(t *testing.T) {
			envoy := func(id string) rig.EnvoyConfig {
				return rig.EnvoyConfig{Node: id, Cluster: "one", Delta: delta, Overlay: fmt.Sprintf(stock, id)}
			}
			f := startWith(t, apart(1, 1), envoy(node))
			port := f.freePort()
			save := func(direct, tls string, hosts ...string) {
				t.Helper()
				f.save("rows.yaml", fmt.Sprintf(pieceRows, port, direct, tls, strings.Join(hosts, "")))
			}
			save("first", "", hostSaying("a", "a1"), hostSaying("b", "b1"))
			f.says(port, "a.example", "200 a1")
			f.says(port, "b.example", "200 b1")
			f.hears(port, "first")
			save("first", "", hostSaying("a", "a1"), largeHost("b"), largeHost("d"))
			f.says(port, "d.example", "503 ")
			f.says(port, "b.example", "200 b1")
			f.during("others change", func() {
				save("second", "", hostSaying("a", "a2"), largeHost("b"), hostSaying("c", "c1"), largeHost("d"))
				f.says(port, "a.example", "200 a2")
				f.says(port, "c.example", "200 c1")
				f.says(port, "b.example", "200 b1")
				f.says(port, "d.example", "503 ")
				f.says(port, "other.example", "200 fell through")
				f.hears(port, "second")
			})
			f.during("a filter chain gets a certificate that does not exist", func() {
				save("third", certificate, hostSaying("a", "a3"), largeHost("b"), hostSaying("c", "c1"), largeHost("d"))
				f.says(port, "a.example", "200 a3")
				f.hears(port, "") // not the last good content: it had no TLS
			})
			f.during("everything is repaired", func() {
				save("fourth", "", hostSaying("a", "a4"), hostSaying("b", "b4"), hostSaying("c", "c1"), hostSaying("d", "d4"))
				f.says(port, "b.example", "200 b4")
				f.says(port, "d.example", "200 d4")
				f.hears(port, "fourth")
				f.quarantined()
			})
		})
	}
}

// says waits until a request for a host is answered with a status and a body.
func (f *fixture) says(port int, host, want string) {
	f.Helper()
	f.must(program.Until(f.ctx, host+" to say "+want, func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/de-DE/x", port), nil)
		if err != nil {
			return err
		}
		r.Host = host
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			return err
		}
		if got := fmt.Sprintf("%d %s", answer.StatusCode, body); got != want {
			return fmt.Errorf("it says %s", got)
		}
		return nil
	}))
}

// hears waits until a connection from another address is sent a text, or closed
// without one.
func (f *fixture) hears(port int, want string) {
	f.Helper()
	f.must(program.Until(f.ctx, fmt.Sprintf("a connection to hear %q", want), func(ctx context.Context) error {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
		c, err := d.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return err
		}
		defer c.Close()
		got, err := io.ReadAll(c)
		if err != nil && !errors.Is(err, syscall.ECONNRESET) {
			return err
		}
		if string(got) != want {
			return fmt.Errorf("it hears %q", got)
		}
		return nil
	}))
}
