package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"meshlog.dev/deploy/testkit/kubetest"
)

// TestKubeconfig checks the errors for unusable and missing files.
func TestKubeconfig(t *testing.T) {
	good, err := kubetest.Kubeconfig(&rest.Config{Host: "https://127.0.0.1:1"})
	must(t, err)
	for name, test := range map[string]struct{ content, context, want string }{
		"good":              {string(good), "", ""},
		"another context":   {string(good), "other", `context "other" does not exist`},
		"empty":             {"apiVersion: v1\nkind: Config\n", "", "does not name a cluster"},
		"no YAML":           {"{]", "", "yaml"},
		"no such authority": {strings.Replace(string(good), "server:", "certificate-authority: nowhere.pem\n    server:", 1), "", "nowhere.pem"},
	} {
		t.Run(name, func(t *testing.T) {
			s := DefaultSettings()
			s.Kubeconfig, s.Context = filepath.Join(t.TempDir(), "config"), test.context
			must(t, os.WriteFile(s.Kubeconfig, []byte(test.content), 0o600))
			if err := s.Verify(); (err != nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
	s := DefaultSettings()
	s.Kubeconfig = filepath.Join(t.TempDir(), "nowhere")
	if err := s.Verify(); err == nil || !strings.Contains(err.Error(), "nowhere: no such file") {
		t.Errorf("no file: %v", err)
	}
	s.Kubeconfig = ""
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if err := s.Verify(); err == nil || !strings.Contains(err.Error(), "this process does not run in a pod: give") {
		t.Errorf("outside a cluster: %v", err)
	}
}

// TestRenewed checks that Renew reads the file again.
func TestRenewed(t *testing.T) {
	s := DefaultSettings()
	s.Kubeconfig = filepath.Join(t.TempDir(), "config")
	write := func(host string) {
		b, err := kubetest.Kubeconfig(&rest.Config{Host: host})
		must(t, err)
		must(t, os.WriteFile(s.Kubeconfig, b, 0o600))
	}
	write("https://127.0.0.1:1")
	c, err := s.Config(nil)
	must(t, err)
	write("https://127.0.0.1:2")
	renewed, err := c.Renew()
	must(t, err)
	if c.REST.Host != "https://127.0.0.1:1" || renewed.Host != "https://127.0.0.1:2" {
		t.Errorf("reached at %s, then at %s", c.REST.Host, renewed.Host)
	}
}

// TestNamesAreChecked checks that Check rejects invalid names.
func TestNamesAreChecked(t *testing.T) {
	for name, test := range map[string]struct {
		cluster    string
		namespaces []string
		want       string
	}{
		"good":          {"eu-west_1.prod", []string{"shop", "orders"}, ""},
		"no cluster":    {"", nil, "cluster"},
		"a path":        {"eu/prod", nil, "cluster"},
		"no namespace":  {"default", []string{"shop", ""}, "namespaces"},
		"bad namespace": {"default", []string{"Bad_Name"}, `"Bad_Name"`},
	} {
		s := DefaultSettings()
		s.Cluster, s.Namespaces = test.cluster, test.namespaces
		if err := s.Check(); (err != nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

// KEY-10: Check rejects limits for Secrets that have no effect or name no namespace of the mesh.
func TestSecretScopeIsChecked(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Settings)
		want   string
	}{
		"good":               {func(s *Settings) { s.SecretNamespaces, s.SecretSelector = []string{"shop"}, "use in (mesh)" }, ""},
		"bad namespace":      {func(s *Settings) { s.SecretNamespaces = []string{"Shop"} }, `secret-namespaces "Shop" is not the name of a namespace`},
		"not watched":        {func(s *Settings) { s.SecretNamespaces, s.Namespaces = []string{"shop"}, []string{"pay"} }, `secret-namespaces "shop" is not in --namespaces`},
		"bad selector":       {func(s *Settings) { s.SecretSelector = "=" }, "secret-selector "},
		"namespaces, no key": {func(s *Settings) { s.SecretNamespaces, s.Secrets.KeyFile = []string{"shop"}, "" }, "secret-namespaces has no effect without --secret-key-file"},
		"a selector, no key": {func(s *Settings) { s.SecretSelector, s.Secrets.KeyFile = "a=b", "" }, "secret-selector has no effect without --secret-key-file"},
	} {
		s := DefaultSettings()
		s.Secrets.KeyFile = "key"
		test.change(&s)
		if err := s.Check(); (err != nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}
