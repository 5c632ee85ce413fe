package kube

import (
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/rest"

	"meshlog.dev/deploy/testkit/kubetest"
)

// testAccess checks the error for an API server that rejects or does not answer.
func testAccess(t *testing.T, s *kubetest.Server) {
	access := func(change func(*rest.Config)) *rest.Config {
		c := &rest.Config{Host: s.Config().Host, TLSClientConfig: rest.TLSClientConfig{CAData: s.Config().CAData}, BearerToken: "expired"}
		change(c)
		return c
	}
	for name, test := range map[string]struct {
		access *rest.Config
		want   string
	}{
		"a token that has expired": {access(func(*rest.Config) {}), "does not accept these credentials (401)"},
		"another authority":        {access(func(c *rest.Config) { c.CAData = nil }), "certificate signed by unknown authority"},
		"no server":                {access(func(c *rest.Config) { c.Host = "https://127.0.0.1:1" }), "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			w, stop := observe(t, test.access)
			defer stop()
			w.until("the source to be down", func() bool { return w.down != nil })
			if got := w.down.Error(); !strings.Contains(got, test.want) || !strings.Contains(got, test.access.Host) {
				t.Errorf("%s; want %q, and %s", got, test.want, test.access.Host)
			}
		})
	}
}

// testRenewed checks that a new run uses renewed credentials.
func testRenewed(t *testing.T, s *kubetest.Server) {
	bad := s.Config()
	bad.TLSClientConfig.CertData, bad.TLSClientConfig.KeyData, bad.BearerToken = nil, nil, "expired"
	access := make(chan *rest.Config, 1)
	access <- bad
	w, _ := observe(t, bad, func(c *Config, _ *limits) {
		c.Renew = func() (*rest.Config, error) {
			now := <-access
			access <- now
			return now, nil
		}
	})
	w.until("the source to be down", func() bool { return w.down != nil })
	<-access
	access <- s.Config()
	w.lists("Service")
}

// testDefinitionsForbidden checks that a watcher that may not read definitions
// repeats discovery.
func testDefinitionsForbidden(t *testing.T, s *kubetest.Server) {
	ctx := t.Context()
	var rules []rbacv1.PolicyRule
	for _, r := range append(allButPods, may("", "pods")) {
		if r.APIGroups[0] != "apiextensions.k8s.io" {
			rules = append(rules, r)
		}
	}
	as, err := s.User(ctx, "sees-no-definitions", rules...)
	must(t, err)
	w, _ := observe(t, as)
	w.lists("Service", "VirtualService")
	if d := w.says("definitions", "forbidden"); !strings.Contains(d.Advice, `resources: ["customresourcedefinitions"]`) {
		t.Errorf("%+v", d)
	}
	const sidecars = "sidecars.networking.istio.io"
	must(t, s.InstallIstioCRDs(ctx, sidecars))
	w.lists("Sidecar")
	must(t, s.RemoveCRD(ctx, sidecars))
	w.until("a listing without Sidecars", func() bool { return !w.kinds["Sidecar"] })
	w.has("VirtualService shop/cart")
	w.neverDeleted()
}
