package certificates_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/services/internal/certificates"
)

// value returns the value of a metric with this label value.
func value(t *testing.T, c *certificates.Certificates, name, label string) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(c.Metrics("test")...)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (label == "" || m.GetLabel()[0].GetValue() == label) {
				return m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no metric %s %s", name, label)
	return 0
}

// looks is longer than the time between two reads of the files.
const looks = 11 * time.Second

// inUse returns the common name of the certificate that a new connection gets.
func inUse(t *testing.T, c *certificates.Certificates) string {
	t.Helper()
	conf, err := c.Config().GetConfigForClient(&tls.ClientHelloInfo{})
	if err != nil {
		t.Fatal(err)
	}
	return conf.Certificates[0].Leaf.Subject.CommonName
}

// fixture runs Certificates on files with the server certificate "first".
type fixture struct {
	ca    *certtest.CA
	dir   string
	certs *certificates.Certificates
	log   bytes.Buffer
}

// inBubble runs a test with fake time.
func inBubble(t *testing.T, test func(t *testing.T, f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{ca: certtest.NewCA("ca"), dir: t.TempDir()}
		cert, key := f.ca.Server("first", time.Now().Add(time.Hour)).Write(t, f.dir, "xds")
		ca := certtest.WriteFile(t, f.dir, "ca.pem", f.ca.PEM())
		var err error
		if f.certs, err = certificates.Load(certificates.Files{Cert: cert, Key: key, ClientCA: ca}); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.certs.Run(ctx, slog.New(slog.NewTextHandler(&f.log, nil))) }()
		synctest.Wait()
		test(t, f)
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func (f *fixture) later() { <-time.After(looks); synctest.Wait() }

func TestFilesAreReadAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		if got := inUse(t, f.certs); got != "first" {
			t.Fatalf("%q is in use", got)
		}
		f.ca.Server("second", time.Now().Add(time.Hour)).Write(t, f.dir, "xds")
		f.later()
		if got := inUse(t, f.certs); got != "second" || f.certs.Trouble() != nil {
			t.Errorf("%q is in use, trouble %v; want the second and no trouble", got, f.certs.Trouble())
		}
		if n := strings.Count(f.log.String(), "certificates were replaced"); n != 1 {
			t.Errorf("logged %d times: %s", n, &f.log)
		}
		// Only the client CAs change.
		other := certtest.NewCA("other")
		certtest.WriteFile(t, f.dir, "ca.pem", other.PEM())
		f.later()
		if got := f.certs.Report().ClientCAs[0].Subject; got != "CN=other" {
			t.Errorf("clients of %s are trusted, want clients of the other CA", got)
		}
	})
}

func TestInvalidFilesAreNotUsed(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(t *testing.T, f *fixture)
		want  string
	}{
		"no PEM": {
			func(t *testing.T, f *fixture) { certtest.WriteFile(t, f.dir, "xds.pem", []byte("x")) },
			"failed to find any PEM data",
		},
		"another key": {
			func(t *testing.T, f *fixture) {
				certtest.WriteFile(t, f.dir, "xds-key.pem", f.ca.Server("x", time.Now().Add(time.Hour)).Key)
			},
			"private key does not match",
		},
		"gone": {
			func(t *testing.T, f *fixture) {
				if err := os.Remove(filepath.Join(f.dir, "xds.pem")); err != nil {
					t.Fatal(err)
				}
			},
			"xds.pem: no such file",
		},
		"expired": {
			func(t *testing.T, f *fixture) {
				f.ca.Server("expired", time.Now().Add(-time.Second)).Write(t, f.dir, "xds")
			},
			"the certificate expired at",
		},
		"no CA": {
			func(t *testing.T, f *fixture) { certtest.WriteFile(t, f.dir, "ca.pem", []byte("x")) },
			"ca.pem: holds no PEM certificate",
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fixture) {
				c.spoil(t, f)
				f.later()
				f.later()
				err := f.certs.Trouble()
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("trouble %v does not say %q", err, c.want)
				}
				if got := inUse(t, f.certs); got != "first" {
					t.Errorf("%q is in use, want the first", got)
				}
				if n := strings.Count(f.log.String(), "level=WARN"); n != 1 {
					t.Errorf("warned %d times: %s", n, &f.log)
				}
				if got := value(t, f.certs, "test_certificate_trouble", ""); got != 1 {
					t.Errorf("the trouble metric is %v, want 1", got)
				}
				// The files are valid again.
				f.ca.Server("second", time.Now().Add(time.Hour)).Write(t, f.dir, "xds")
				certtest.WriteFile(t, f.dir, "ca.pem", f.ca.PEM())
				f.later()
				if got := inUse(t, f.certs); got != "second" || f.certs.Trouble() != nil || value(t, f.certs, "test_certificate_trouble", "") != 0 {
					t.Errorf("%q is in use, trouble %v", got, f.certs.Trouble())
				}
			})
		})
	}
}

// Between the writes of the two files, they do not match for a moment.
func TestHalfReplacedIsNoTrouble(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		next := f.ca.Server("second", time.Now().Add(time.Hour))
		certtest.WriteFile(t, f.dir, "xds.pem", next.Cert)
		<-time.After(looks / 2)
		synctest.Wait()
		certtest.WriteFile(t, f.dir, "xds-key.pem", next.Key)
		f.later()
		if got := inUse(t, f.certs); got != "second" || strings.Contains(f.log.String(), "WARN") {
			t.Errorf("%q is in use; log: %s", got, &f.log)
		}
	})
}

// Kubernetes swaps the directory by replacing a symbolic link.
func TestDirectoryIsSwapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, dir := certtest.NewCA("ca"), t.TempDir()
		for _, name := range []string{"first", "second"} {
			sub := filepath.Join(dir, name)
			if err := os.Mkdir(sub, 0o700); err != nil {
				t.Fatal(err)
			}
			ca.Server(name, time.Now().Add(time.Hour)).Write(t, sub, "tls")
		}
		swap := func(to string) {
			link := filepath.Join(dir, "..data")
			if err := os.Symlink(to, link+"_tmp"); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(link+"_tmp", link); err != nil {
				t.Fatal(err)
			}
		}
		swap("first")
		for _, file := range []string{"tls.pem", "tls-key.pem"} {
			if err := os.Symlink(filepath.Join("..data", file), filepath.Join(dir, file)); err != nil {
				t.Fatal(err)
			}
		}
		c, err := certificates.Load(certificates.Files{Cert: filepath.Join(dir, "tls.pem"), Key: filepath.Join(dir, "tls-key.pem")})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), looks)
		defer stop()
		swap("second")
		if err := c.Run(ctx, slog.New(slog.DiscardHandler)); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if got := inUse(t, c); got != "second" {
			t.Errorf("%q is in use, want the second", got)
		}
	})
}

func TestExpiry(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		ends := f.certs.Report().Certificate.NotAfter
		if got := value(t, f.certs, "test_certificate_expiry_timestamp_seconds", "server"); got != float64(ends.Unix()) {
			t.Errorf("the metric is %v, the certificate expires at %v", got, ends)
		}
		<-time.After(2 * time.Hour)
		synctest.Wait()
		if err := f.certs.Trouble(); err == nil || !strings.Contains(err.Error(), "expired at") {
			t.Errorf("trouble: %v", err)
		}
		if n := strings.Count(f.log.String(), "WARN"); n != 1 {
			t.Errorf("warned %d times: %s", n, &f.log)
		}
	})
}

func TestLoadRefuses(t *testing.T) {
	ca, dir := certtest.NewCA("ca"), t.TempDir()
	cert, key := ca.Server("x", time.Now().Add(time.Hour)).Write(t, dir, "xds")
	_, other := ca.Server("y", time.Now().Add(time.Hour)).Write(t, dir, "other")
	empty := certtest.WriteFile(t, dir, "empty.pem", nil)
	for _, c := range []struct {
		files certificates.Files
		want  string
	}{
		{certificates.Files{Cert: cert + "x", Key: key}, cert + "x: no such file or directory"},
		{certificates.Files{Cert: cert, Key: key, ClientCA: key + "x"}, key + "x: no such file or directory"},
		{certificates.Files{Cert: cert, Key: other}, "certificate " + cert + " with key " + other + ": tls: private key does not match public key"},
		{certificates.Files{Cert: empty, Key: key}, "failed to find any PEM data in certificate input"},
		{certificates.Files{Cert: cert, Key: empty}, "failed to find any PEM data in key input"},
		{certificates.Files{Cert: cert, Key: key, ClientCA: empty}, empty + ": holds no PEM certificate"},
	} {
		if _, err := certificates.Load(c.files); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Load: %v does not say %q", err, c.want)
		}
	}
	c, err := certificates.Load(certificates.Files{Cert: cert, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"localhost", "127.0.0.1"}, c.Report().Certificate.Names); diff != "" {
		t.Error(diff)
	}
}
