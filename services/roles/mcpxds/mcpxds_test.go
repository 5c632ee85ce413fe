package mcpxds

import (
	"strings"
	"testing"
)

// MCP-5: what settings are refused, and what the shard is called.
func TestCheck(t *testing.T) {
	for name, test := range map[string]struct {
		change   func(*Settings)
		want     string // of the error; empty: there is none
		instance string
	}{
		"plain":           {func(s *Settings) { s.Source = "xds://istiod:15010" }, "", "istiod-15010"},
		"IPv6":            {func(s *Settings) { s.Source = "xds://[::1]:15010" }, "", "--1-15010"},
		"named":           {func(s *Settings) { s.Source, s.Instance = "xds://istiod:15010", "eu" }, "", "eu"},
		"none":            {func(*Settings) {}, "--mcp-source is missing", ""},
		"no source":       {func(s *Settings) { s.Incremental = true }, "--mcp-source is missing", ""},
		"another scheme":  {func(s *Settings) { s.Source = "k8s://istiod:15010" }, "want xds://HOST:PORT", ""},
		"no port":         {func(s *Settings) { s.Source = "xds://istiod" }, "want xds://HOST:PORT", ""},
		"a path":          {func(s *Settings) { s.Source = "xds://istiod:15010/a" }, "want xds://HOST:PORT", ""},
		"namespace":       {func(s *Settings) { s.Source, s.Namespace = "xds://istiod:15010", "a~b" }, "--mcp-namespace", ""},
		"mode":            {func(s *Settings) { s.Source, s.TLS = "xds://istiod:15010", "simple" }, "want DISABLE, SIMPLE or MUTUAL", ""},
		"Istio's mode":    {func(s *Settings) { s.Source, s.TLS = "xds://istiod:15010", "ISTIO_MUTUAL" }, "with MUTUAL", ""},
		"CA without TLS":  {func(s *Settings) { s.Source, s.Files.CA = "xds://istiod:15010", "ca" }, "--mcp-ca", ""},
		"key with SIMPLE": {func(s *Settings) { s.Source, s.TLS, s.Files.Key = "xds://istiod:15010", "SIMPLE", "key" }, "--mcp-key", ""},
		"no certificate":  {func(s *Settings) { s.Source, s.TLS, s.Files.Key = "xds://istiod:15010", "MUTUAL", "key" }, "--mcp-cert is missing", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := DefaultSettings()
			test.change(&s)
			err := s.Check()
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if test.instance != "" && s.Shard().Instance != test.instance {
				t.Errorf("the instance is %q, want %q", s.Shard().Instance, test.instance)
			}
		})
	}
}
