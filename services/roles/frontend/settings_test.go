package frontend

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"meshlog.dev/deploy/testkit/certtest"
)

// With a certificate, the port without TLS is open only if it is asked for (XDS-6).
func TestPlainPortWithTLS(t *testing.T) {
	cert, key := certtest.NewCA("servers").Server("xds", time.Now().Add(time.Hour)).Write(t, t.TempDir(), "xds")
	tls := []string{"--tls-cert", cert, "--tls-key", key, "--tls-listen", "127.0.0.1:0"}
	for _, c := range []struct {
		name       string
		args       []string
		plain, tls int
	}{
		{"without a certificate", []string{"--listen", "127.0.0.1:0"}, 1, 0},
		{"with a certificate", tls, 0, 1},
		{"with a certificate and no address", append(tls, "--listen", ""), 0, 1},
		{"with a certificate and an address", append(tls, "--listen", "127.0.0.1:0"), 1, 1},
	} {
		s := DefaultSettings()
		fs := pflag.NewFlagSet("frontend", pflag.ContinueOnError)
		s.Flags(fs)
		s.Flags(pflag.NewFlagSet("health", pflag.ContinueOnError)) // a command beside it
		if err := fs.Parse(c.args); err != nil {
			t.Fatal(err)
		}
		if err := s.Check(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		ports, err := s.Open()
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if len(ports.Plain) != c.plain || len(ports.TLS) != c.tls {
			t.Errorf("%s: %d ports without TLS and %d with, want %d and %d", c.name, len(ports.Plain), len(ports.TLS), c.plain, c.tls)
		}
		ports.Close()
	}
}

// MCP-6: the port for MCP-over-xDS is off by default, has the certificate of the xDS port, and a
// client CA counts for it alone.
func TestPortOfSinks(t *testing.T) {
	ca := certtest.NewCA("servers")
	cert, key := ca.Server("xds", time.Now().Add(time.Hour)).Write(t, t.TempDir(), "xds")
	clients := certtest.WriteFile(t, t.TempDir(), "ca.pem", ca.PEM())
	tls := []string{"--tls-cert", cert, "--tls-key", key, "--tls-listen", "127.0.0.1:0"}
	plain := []string{"--listen", "127.0.0.1:0"}
	sinks := []string{"--mcp-listen", "127.0.0.1:0"}
	for _, c := range []struct {
		name    string
		args    []string
		sinks   int
		tls     bool
		refused string
	}{
		{"without a setting", plain, 0, false, ""},
		{"without a certificate", slices.Concat(plain, sinks), 1, false, ""},
		{"with a certificate", slices.Concat(tls, sinks), 1, true, ""},
		{"with a client CA", slices.Concat(tls, sinks, []string{"--mcp-client-ca", clients}), 1, true, ""},
		{"a client CA without a certificate", slices.Concat(plain, sinks, []string{"--mcp-client-ca", clients}), 0, false, "tls-cert"},
		{"a client CA alone", slices.Concat(tls, []string{"--mcp-client-ca", clients}), 0, false, "mcp-client-ca"},
		{"no address", slices.Concat(plain, []string{"--mcp-listen", "15013"}), 0, false, "mcp-listen"},
	} {
		s := DefaultSettings()
		fs := pflag.NewFlagSet("frontend", pflag.ContinueOnError)
		s.Flags(fs)
		must(t, fs.Parse(c.args))
		if err := s.Check(); (err != nil) != (c.refused != "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%s: %v, want an error about %q", c.name, err, c.refused)
		}
		if c.refused != "" {
			continue
		}
		must(t, s.Verify())
		ports, err := s.Open()
		must(t, err)
		if len(ports.Sinks) != c.sinks || (ports.SinkCertificates != nil) != c.tls {
			t.Errorf("%s: %d ports, TLS %t; want %d and %t", c.name, len(ports.Sinks), ports.SinkCertificates != nil, c.sinks, c.tls)
		}
		ports.Close()
	}
}
