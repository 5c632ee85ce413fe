package mcpxds_test

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/mcptest"
	"meshlog.dev/services/watcher/mcpxds"
)

// MCP-5, REG-14: SIMPLE and MUTUAL, with files that are read for each run.
func TestMCP5TLS(t *testing.T) {
	ca, other := certtest.NewCA("sources"), certtest.NewCA("another")
	server := ca.Server("istiod", time.Now().Add(time.Hour)).TLS()
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	simple := mcptest.Start(t, mcptest.Options{Credentials: credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{server}})})
	mutual := mcptest.Start(t, mcptest.Options{Credentials: credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{server}, ClientCAs: ca.Pool(), ClientAuth: tls.RequireAndVerifyClientCert,
	})})
	trusted := write("ca.pem", other.PEM())

	t.Run("SIMPLE", func(t *testing.T) {
		r := watch(t, simple, func(c *mcpxds.Config) { c.TLS = mcpxds.TLS{Mode: mcpxds.Simple, CA: trusted} })
		if err := r.ends(); err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Fatalf("the run ended with %v", err)
		}
		write("ca.pem", ca.PEM())
		r.run()
		r.list()
	})
	t.Run("another name", func(t *testing.T) {
		r := watch(t, simple, func(c *mcpxds.Config) { c.TLS = mcpxds.TLS{Mode: mcpxds.Simple, CA: trusted, ServerName: "elsewhere"} })
		if err := r.ends(); err == nil || !strings.Contains(err.Error(), "elsewhere") {
			t.Errorf("the run ended with %v", err)
		}
	})
	t.Run("plain", func(t *testing.T) {
		if err := watch(t, simple, nil).ends(); err == nil {
			t.Error("the run ended without an error")
		}
	})
	t.Run("MUTUAL", func(t *testing.T) {
		wrong, right := other.Client("watcher"), ca.Client("watcher")
		cert, key := write("tls.crt", wrong.Cert), write("tls.key", wrong.Key)
		r := watch(t, mutual, func(c *mcpxds.Config) {
			c.TLS = mcpxds.TLS{Mode: mcpxds.Mutual, CA: trusted, Certificate: cert, Key: key}
		})
		if err := r.ends(); err == nil {
			t.Fatal("the source took a certificate of another CA")
		}
		write("tls.crt", right.Cert)
		write("tls.key", right.Key)
		r.run()
		r.list()
	})
}

// REG-14: what is wrong with the files is said with their names.
func TestVerifyTLS(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		tls  mcpxds.TLS
		want string
	}{
		"none":           {mcpxds.TLS{}, ""},
		"system":         {mcpxds.TLS{Mode: mcpxds.Simple}, ""},
		"missing CA":     {mcpxds.TLS{Mode: mcpxds.Simple, CA: empty + "x"}, "emptyx"},
		"empty CA":       {mcpxds.TLS{Mode: mcpxds.Simple, CA: empty}, "no certificate in PEM"},
		"no certificate": {mcpxds.TLS{Mode: mcpxds.Mutual}, "needs a certificate and its key"},
		"missing key":    {mcpxds.TLS{Mode: mcpxds.Mutual, Certificate: empty, Key: empty + "x"}, "emptyx"},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.tls.Verify()
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
