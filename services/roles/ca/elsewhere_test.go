package ca

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/services/ca/signer"
)

// CA-3: the roots of an authority elsewhere follow its files, all of them active. What is
// broken, empty, without a CA or ended does not replace them, and is reported; neither does
// what the next read does not find again.
func TestElsewhere(t *testing.T) {
	now := time.Now()
	one, two, short := newPair(t, "one", now.AddDate(1, 0, 0)), newPair(t, "two", now.AddDate(1, 0, 0)), newPair(t, "short", now.Add(time.Minute))
	text := func(all ...pair) (s string) {
		for _, p := range all {
			s += signer.Encode(p.cert)
		}
		return s
	}
	s := DefaultSettings()
	s.Signer, s.TrustBundle = none, filepath.Join(t.TempDir(), "bundle.pem")
	write := func(content string) { must(t, os.WriteFile(s.TrustBundle, []byte(content), 0o600)) }
	if err := s.Verify(); err == nil || !strings.Contains(err.Error(), "trust-bundle") {
		t.Errorf("a missing file: %v", err)
	}
	write(text(one))
	must(t, s.Check(), s.Verify())
	e, err := s.openElsewhere(now, quiet)
	must(t, err)
	_, news := e.roots.bundle()
	e.reload(now)
	select {
	case <-news:
		t.Error("the same file is a change")
	default:
	}

	const were = "one active, two active"
	write(text(one, two, one)) // a root that is there twice counts once
	e.reload(now)
	if got := states(e.roots.list()); got != "one active" {
		t.Errorf("what is seen once counts: %s", got)
	}
	e.reload(now)
	if got := states(e.roots.list()); got != were || e.problem() != nil {
		t.Fatalf("a new root: %s, %v", got, e.problem())
	}
	select {
	case <-news:
	default:
		t.Error("readers are not told of a new root")
	}
	server := certtest.NewCA("x").Server("web", now.Add(time.Hour))
	for name, test := range map[string]struct{ content, want string }{
		"empty":      {"", "is empty"},
		"spaces":     {"\n \n", "is empty"},
		"text":       {"s3cr3t", "holds no block CERTIFICATE of PEM"},
		"cut off":    {text(one) + text(two)[:200], "holds a block of PEM that is broken or incomplete"},
		"a key":      {text(one) + string(server.Key), "a block of PEM that is no CERTIFICATE"},
		"no CA":      {string(server.Cert), "is not the certificate of a CA"},
		"ended":      {text(newPair(t, "old", now.Add(-time.Second))), "has no root that is valid (1 have ended)"},
		"very large": {strings.Repeat(text(one), 4000), "is larger than"},
	} {
		write(test.content)
		e.reload(now)
		if err := e.problem(); err != nil {
			t.Errorf("%s: an error that is seen once counts: %v", name, err)
		}
		e.reload(now)
		if err := e.problem(); err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "s3cr3t") || e.report().Trouble == "" {
			t.Errorf("%s: %v, want %s", name, err, test.want)
		}
		if got := states(e.roots.list()); got != were {
			t.Fatalf("%s: the roots are %s", name, got)
		}
		write(text(one, two))
		e.reload(now)
		e.reload(now)
		if e.problem() != nil {
			t.Errorf("%s: good files again: %v", name, e.problem())
		}
	}
	must(t, os.Remove(s.TrustBundle))
	e.reload(now)
	e.reload(now)
	if got := states(e.roots.list()); got != were || e.problem() == nil {
		t.Errorf("a removed file: %s, %v", got, e.problem())
	}
	// The file becomes a directory. A root that ends goes without another change.
	must(t, os.Mkdir(s.TrustBundle, 0o700))
	for name, content := range map[string]string{"a.pem": text(short), "b.pem": text(two), ".hidden": "s3cr3t"} {
		must(t, os.WriteFile(filepath.Join(s.TrustBundle, name), []byte(content), 0o600))
	}
	e.reload(now)
	e.reload(now)
	if got := states(e.roots.list()); got != "short active, two active" || e.problem() != nil {
		t.Errorf("a directory: %s, %v", got, e.problem())
	}
	e.reload(now.Add(2 * time.Minute))
	if got := states(e.roots.list()); got != "two active" || e.problem() != nil || e.ends(now) != nil {
		t.Errorf("after the end of a root: %s, %v, %v", got, e.problem(), e.ends(now))
	}
	if err := e.ends(now.AddDate(1, 0, -13)); err == nil || !strings.Contains(err.Error(), "export the roots again") {
		t.Errorf("13 days before the end of the last root: %v", err)
	}
	if bundle, _ := e.roots.bundle(); bytes.Count([]byte(bundle.GetRoots()[0].GetCertificate()), []byte("BEGIN")) != 1 {
		t.Errorf("the bundle is %v", bundle)
	}
}
