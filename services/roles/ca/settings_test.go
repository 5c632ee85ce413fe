package ca

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"meshlog.dev/services/ca/signer"
)

func good(t *testing.T) Settings {
	t.Helper()
	s := DefaultSettings()
	s.KeyFile, s.InsecureKeyFile, s.JoinTokens = filepath.Join(t.TempDir(), "ca", "ca.key"), true, true
	return s
}

// TestCheck checks that settings without a sense are refused, and what the errors say.
func TestCheck(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Settings)
		want   string
	}{
		"good":    {func(*Settings) {}, ""},
		"plugged": {func(s *Settings) { s.Signer, s.Dir, s.KeyFile = plugged, "x", "" }, ""},
		"an issuer": {func(s *Settings) {
			s.OIDC = []string{"issuer=https://ci.example audience=mesh namespace=ci service-account={sub} algorithms=RS256+ES256 claim:branch=main"}
		}, ""},
		"no authenticator":     {func(s *Settings) { s.JoinTokens = false }, "every request would be refused"},
		"a key in clear":       {func(s *Settings) { s.InsecureKeyFile = false }, "seal-key-file is missing: the CA's key would be in clear"},
		"no key":               {func(s *Settings) { s.KeyFile = "" }, "ca-key-file is missing"},
		"no directory":         {func(s *Settings) { s.Signer, s.KeyFile = plugged, "" }, "ca-dir is missing"},
		"both":                 {func(s *Settings) { s.Dir = "x" }, "ca-dir has no effect"},
		"another signer":       {func(s *Settings) { s.Signer = "vault" }, "signer want self, plugged or none"},
		"none":                 {func(s *Settings) { *s = DefaultSettings(); s.Signer, s.TrustBundle = none, "x" }, ""},
		"none, no roots":       {func(s *Settings) { *s = DefaultSettings(); s.Signer = none }, "trust-bundle is missing"},
		"none, a trust domain": {func(s *Settings) { *s = DefaultSettings(); s.Signer, s.TrustBundle, s.TrustDomain = none, "x", "A" }, "trust-domain"},
		"none, a key":          {func(s *Settings) { s.Signer, s.TrustBundle, s.JoinTokens = none, "x", false }, "ca-key-file has no effect"},
		"none, a port":         {func(s *Settings) { *s = DefaultSettings(); s.Signer, s.TrustBundle, s.Listen = none, "x", ":1" }, "listen has no effect"},
		"none, join tokens":    {func(s *Settings) { *s = DefaultSettings(); s.Signer, s.TrustBundle, s.JoinTokens = none, "x", true }, "join-tokens has no effect"},
		"roots of elsewhere":   {func(s *Settings) { s.TrustBundle = "x" }, "trust-bundle has no effect"},
		"a trust domain":       {func(s *Settings) { s.TrustDomain = "Cluster.Local" }, "trust-domain"},
		"an address as a name": {func(s *Settings) { s.DNSNames = []string{"10.0.0.1"} }, "not by an address"},
		"no name":              {func(s *Settings) { s.DNSNames = nil }, "dns-names is empty"},
		"an unused kubeconfig": {func(s *Settings) { s.Kubeconfig = "x" }, "kubeconfig has no effect"},
		"an issuer by http": {func(s *Settings) {
			s.OIDC = []string{"issuer=http://ci.example audience=mesh namespace=ci service-account={sub}"}
		}, "write an https URL"},
		"an issuer for all": {func(s *Settings) {
			s.OIDC = []string{"issuer=https://ci.example audience=mesh namespace=ci service-account=ci"}
		}, "every token would get one identity"},
		"an issuer, misspelt":   {func(s *Settings) { s.OIDC = []string{"isuer=https://ci.example"} }, `"isuer" is none of issuer`},
		"an issuer, no value":   {func(s *Settings) { s.OIDC = []string{"issuer"} }, "write NAME=VALUE"},
		"an issuer, two values": {func(s *Settings) { s.OIDC = []string{"issuer=https://a issuer=https://b"} }, "is there twice"},
	} {
		s := good(t)
		test.change(&s)
		if err := s.Check(); (err != nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	up := UpSettings()
	if err := up.Check(); err == nil || !strings.Contains(err.Error(), "seal-key-file is missing") {
		t.Errorf("in up: %v", err)
	}
}

// CA-4, KEY-8: a wrong seal key opens nothing, and the error names the key that is wanted;
// a key that is lost does not become another root.
func TestKeyFile(t *testing.T) {
	dir, s := t.TempDir(), good(t)
	sealKey := func(name, content string) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, bytes.Repeat([]byte(content), 32), 0o600))
		return path
	}
	right, wrong := sealKey("right", "r"), sealKey("wrong", "w")
	s.InsecureKeyFile, s.SealKeyFile = false, right
	must(t, s.Check(), s.Verify())
	if _, err := os.Stat(s.KeyFile); err == nil {
		t.Error("--check made a key")
	}
	first, _, err := s.open(time.Now(), quiet)
	must(t, err)
	again, roots, err := s.open(time.Now(), quiet)
	must(t, err, s.Verify())
	if !first.authority().Root().Equal(again.authority().Root()) || states(roots.all) != again.authority().Root().Subject.CommonName+" active" {
		t.Errorf("after a restart the roots are %s", states(roots.all))
	}
	raw, err := os.ReadFile(s.KeyFile)
	if must(t, err); bytes.Contains(raw, []byte("PRIVATE")) || bytes.Contains(raw, first.authority().Root().Raw) {
		t.Error("the key is in clear")
	}
	s.SealKeyFile = wrong
	for _, err := range []error{s.Verify(), func() error { _, _, err := s.open(time.Now(), quiet); return err }()} {
		if err == nil || !strings.Contains(err.Error(), "was sealed with the seal key") || !strings.Contains(err.Error(), "and the given one is") {
			t.Errorf("a wrong seal key: %v", err)
		}
	}
	s.SealKeyFile = right
	must(t, os.Remove(s.KeyFile))
	if _, _, err := s.open(time.Now(), quiet); err == nil || !strings.Contains(err.Error(), "restore the key from a copy") || s.Verify() == nil {
		t.Errorf("a lost key: %v", err)
	}
	s.UnannouncedRoot = true
	other, roots, err := s.open(time.Now(), quiet)
	must(t, err)
	if other.authority().Root().Equal(first.authority().Root()) || !strings.Contains(states(roots.all), "retiring") {
		t.Errorf("in an emergency: %s", states(roots.all))
	}
}

// CA-10: /readyz warns 90 days before the end of the CA's certificate, or of a root.
func TestEndIsNear(t *testing.T) {
	now := time.Now()
	long, short := newPair(t, "long", now.AddDate(1, 0, 0)), newPair(t, "short", now.AddDate(0, 0, 89))
	for name, test := range map[string]struct {
		a    *signer.Authority
		want string
	}{
		"later":        {long.under(t), ""},
		"the CA":       {short.under(t), "the chain of the CA's certificate ends at"},
		"another root": {long.under(t, short), `the root "CN=short"`},
	} {
		if err := ends(test.a, now); (err != nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}
