package frontend

import (
	"strings"
	"testing"
)

// CA-11: settings that could not get a certificate, or not keep it, are refused.
func TestServingSettings(t *testing.T) {
	valid := func() Settings {
		s := DefaultSettings()
		s.SealKeyFile = "seal"
		s.Serving = Serving{CA: "ca.example:15013", Roots: "roots.pem", JoinTokenFile: "token", TTL: 24 * 3600e9}
		s.MeshClients = true
		return s
	}
	if s := valid(); s.Check() != nil || s.plain() == "" {
		t.Errorf("valid settings: %v", s.Check())
	}
	for want, change := range map[string]func(*Settings){
		"--seal-key-file is missing":              func(s *Settings) { s.SealKeyFile = "" },
		"--ca-roots is missing":                   func(s *Settings) { s.Serving.Roots = "" },
		"--join-token-file is missing":            func(s *Settings) { s.Serving.JoinTokenFile = "" },
		"not both: a port has one certificate":    func(s *Settings) { s.TLS.Cert, s.TLS.Key = "cert", "key" },
		"--ca want HOST:PORT":                     func(s *Settings) { s.Serving.CA = "ca.example" },
		"--certificate-ttl want 1m to 168h":       func(s *Settings) { s.Serving.TTL = 1 },
		"has no effect without --ca":              func(s *Settings) { s.Serving.CA, s.MeshClients = "", false },
		"proxies show certificates over TLS only": func(s *Settings) { s.Serving = Serving{} },
	} {
		s := valid()
		change(&s)
		if err := s.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
