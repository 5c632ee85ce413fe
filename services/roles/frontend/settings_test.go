package frontend

import (
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
