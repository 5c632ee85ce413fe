package inspect

import (
	"slices"
	"strings"
	"testing"
	"time"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/problem"
)

// AZ-8, POL-14: the status counts the policies that proxies enforce, and names those that
// decide nothing.
func TestStatusOfPolicies(t *testing.T) {
	w := meshtest.World(t, meshtest.YAML(t, called+"---"+protected)...)
	var object string
	for o := range w.Objects("AuthorizationPolicy") {
		if o.Key.Name == "other" {
			object = o.Key.String()
		}
	}
	v := &StatusView{}
	v.policies(w, []*snapshotv1.Diagnostic{
		{Severity: snapshotv1.Severity_SEVERITY_ERROR, Code: problem.Unenforced, Object: object},
		{Severity: snapshotv1.Severity_SEVERITY_WARNING, Code: "conflict", Object: "ServiceEntry shop/cart (file/default)"},
	})
	c := v.Policies
	if c.Enforced != 6 || !slices.Equal(c.NotEnforced, []string{object}) || !slices.Equal(c.DryRun, []string{"shop/tried"}) {
		t.Errorf("%+v, want 6 that are enforced, %s not, shop/tried in dry run", c, object)
	}
	if all := strings.Join(v.Wrong, "\n"); !strings.HasPrefix(all, "1 security policy is not enforced by any proxy") {
		t.Errorf("what needs attention is %q", all)
	}
}

// CA-8: a certificate that its holder has not renewed in time needs attention, with its
// proxy and its end; the proxy counts once, whatever number of streams it has.
func TestStatusOfCertificates(t *testing.T) {
	now := at.Add(time.Minute)
	of := func(id string, begins, shown, ends time.Duration) *reportv1.ProxyReport {
		return &reportv1.ProxyReport{Id: id, Identity: "spiffe://td/ns/a/sa/b", CertificateBegins: stamp(begins), CertificateShown: stamp(shown), CertificateEnds: stamp(ends)}
	}
	late := of("late", -18*time.Hour, 0, 5*time.Hour)
	fine := of("fine", -time.Hour, 0, 23*time.Hour)
	agent := of("fine~agent", -time.Hour, 0, 23*time.Hour)
	v := &StatusView{}
	v.identities([]*reportv1.FrontendReport{{Proxies: []*reportv1.ProxyReport{fine, late, agent}}, {Proxies: []*reportv1.ProxyReport{fine, late}}}, now)
	if want := (identityCounts{With: 2, EndsSoon: 1}); v.Identities != want {
		t.Errorf("%+v, want %+v", v.Identities, want)
	}
	if want := "1 certificate is not renewed, and ends soon: late (in 4h)"; len(v.Wrong) != 1 || !strings.HasPrefix(v.Wrong[0], want) {
		t.Errorf("what needs attention is %q, want %q", v.Wrong, want)
	}
}
