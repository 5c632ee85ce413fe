package consul_test

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"meshlog.dev/services/roles/consul"
)

func TestCheck(t *testing.T) {
	good := func() consul.Settings {
		s := consul.DefaultSettings()
		s.Addresses = []string{"127.0.0.1:8500", "https://consul.example.com:8501"}
		return s
	}
	for want, change := range map[string]func(*consul.Settings){
		"":                                func(*consul.Settings) {},
		"--consul is missing":             func(s *consul.Settings) { s.Addresses = nil },
		"--consul \"ftp://a\" is no":      func(s *consul.Settings) { s.Addresses = []string{"ftp://a"} },
		"--consul \"http://u:p@a\" is":    func(s *consul.Settings) { s.Addresses = []string{"http://u:p@a"} },
		"--consul-datacenter \"a/b\" is":  func(s *consul.Settings) { s.Datacenter = "a/b" },
		"--consul-namespace is empty":     func(s *consul.Settings) { s.Namespace = "" },
		"--consul-cert and --consul-key":  func(s *consul.Settings) { s.CertFile = "c.pem" },
		"--consul-tagged-address want":    func(s *consul.Settings) { s.TaggedAddress = "x" },
		"--consul-wait want 10s to 10m":   func(s *consul.Settings) { s.Wait = time.Hour },
		"--consul-max-polls is negative":  func(s *consul.Settings) { s.MaxPolls = -1 },
		"meshlog knows no protocol \"x\"": func(s *consul.Settings) { s.Convert.Protocol = "x" },
		"--consul-ports \"web=x\": want":  func(s *consul.Settings) { s.Ports = []string{"8080", "web*=80", "web=x"} },
	} {
		s := good()
		change(&s)
		if err := s.Check(); (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// REG-12: the datacenter names the shard, unless it gets a name of its own. CON-20: what
// consul-k8s copies is hidden by default.
func TestREG12Shard(t *testing.T) {
	s := consul.DefaultSettings()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.Flags(fs)
	if err := fs.Parse([]string{"--consul", "a:1,b:2", "--consul-datacenter", "east"}); err != nil {
		t.Fatal(err)
	}
	if got := s.Shard().String() + " " + s.Settings.Identity(); got != "consul/east datacenter east" {
		t.Errorf("the source is %s", got)
	}
	if len(s.Addresses) != 2 || len(s.ExcludeTags) != 1 || s.ExcludeTags[0] != "k8s" {
		t.Errorf("settings %+v", s)
	}
	s.Instance = "other"
	if got := s.Shard().String(); got != "consul/other" {
		t.Errorf("the source is %s", got)
	}
}

// REG-14: a file that cannot be read is an error of --check, which names the file and not
// its content.
func TestREG14Verify(t *testing.T) {
	s := consul.DefaultSettings()
	s.Addresses = []string{"a:1"}
	if err := s.Verify(); err != nil {
		t.Error(err)
	}
	s.TokenFile = t.TempDir() + "/token"
	if err := s.Verify(); err == nil || !strings.Contains(err.Error(), s.TokenFile) {
		t.Errorf("no token file: %v", err)
	}
}
