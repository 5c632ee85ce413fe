package nacos_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"meshlog.dev/services/roles/nacos"
)

// Each setting that makes no sense is reported, by its name.
func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*nacos.Settings)
		want   string
	}{
		"good":             {func(s *nacos.Settings) { s.Ports = []string{"web=80", "*=8080"} }, ""},
		"no address":       {func(s *nacos.Settings) { s.Addresses = nil }, "--nacos is missing"},
		"a bad address":    {func(s *nacos.Settings) { s.Addresses = []string{"nacos:x"} }, `--nacos "nacos:x": want HOST:PORT`},
		"a bad port":       {func(s *nacos.Settings) { s.Ports = []string{"80", "web=x"} }, `--nacos-ports "web=x": want NAME=PORT or PORT`},
		"too often":        {func(s *nacos.Settings) { s.List = time.Millisecond }, "--nacos-list want 1s at least"},
		"a name only":      {func(s *nacos.Settings) { s.Credentials.UsernameFile = "u" }, "an account needs a file with its name and one with its password"},
		"CAs without TLS":  {func(s *nacos.Settings) { s.Credentials.CAFile = "ca" }, "--nacos-ca and --nacos-cert have no effect"},
		"all groups and g": {func(s *nacos.Settings) { s.Groups = []string{"*", "g"} }, "* is all groups: name no other"},
	} {
		s := nacos.DefaultSettings()
		s.Addresses = []string{"nacos"}
		c.change(&s)
		if err := s.Check(); (err != nil) != (c.want != "") || !strings.Contains(fmt.Sprint(err), c.want) && c.want != "" {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	s := nacos.DefaultSettings()
	s.Credentials.UsernameFile = filepath.Join(t.TempDir(), "missing")
	if err := s.Verify(); err == nil || !strings.Contains(err.Error(), s.Credentials.UsernameFile) {
		t.Errorf("a missing file: %v", err)
	}
	if got := s.Shard().String(); got != "nacos/public" {
		t.Errorf("shard %s", got)
	}
}
