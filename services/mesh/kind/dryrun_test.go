package kind_test

import (
	"testing"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
)

// The annotation makes ALLOW and DENY a dry run, and everything else is reported and
// enforced (AZ-8).
func TestDryRun(t *testing.T) {
	k, _ := kind.ByName("AuthorizationPolicy")
	for _, test := range []struct {
		annotation, spec  string
		wrapped, enforced bool
		severity          problem.Severity
	}{
		{"true", `{"action": "DENY", "rules": [{}]}`, true, false, problem.Info},
		{"T", `{}`, true, false, problem.Info},
		{"false", `{}`, false, true, 0},
		{"yes", `{}`, true, true, problem.Warning},
		{"", `{}`, true, true, problem.Warning},
		{"true", `{"action": "AUDIT", "rules": [{}]}`, true, true, problem.Warning},
		{"true", `{"action": "CUSTOM", "provider": {"name": "p"}, "rules": [{}]}`, true, true, problem.Warning},
	} {
		m, err := k.DecodeJSON([]byte(test.spec))
		if err != nil {
			t.Fatal(err)
		}
		if m, err = k.Annotated(m, map[string]string{kind.DryRunAnnotation: test.annotation}); err != nil {
			t.Fatal(err)
		}
		b, err := k.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		m, err = k.Decode(k.TypeOf(m), b)
		if err != nil {
			t.Fatal(err)
		}
		d, wrapped := m.(*kind.DryRun)
		if wrapped != test.wrapped || wrapped && d.Enforced() != test.enforced {
			t.Errorf("%q, %s: %v", test.annotation, test.spec, m)
		}
		ds := k.Validate("n", m)
		if wrapped && (len(ds) == 0 || ds[len(ds)-1].Severity != test.severity) || !wrapped && len(ds) > 0 {
			t.Errorf("%q, %s: %v", test.annotation, test.spec, ds)
		}
	}
}

// A dry run of which no value was ever good denies nothing. What is enforced all the
// same fails closed (POL-15).
func TestDryRunIsNotClosed(t *testing.T) {
	k, _ := kind.ByName("AuthorizationPolicy")
	for text, closed := range map[string]bool{
		`{annotations: {istio.io/dry-run: "true"}, name: p}` + "\nspec: {action: DENY, x: 1}":   false,
		`{annotations: {istio.io/dry-run: "true"}, name: p}` + "\nspec: {x: 1}":                 false,
		`{annotations: {istio.io/dry-run: "true"}, name: p}` + "\nspec: {action: CUSTOM, x: 1}": true,
		`{annotations: {istio.io/dry-run: "yes"}, name: p}` + "\nspec: {x: 1}":                  true,
	} {
		v := kind.Undecoded([]byte("apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: "+text), "application/yaml", &problem.Diagnostic{Reason: "bad"})
		if _, ok := k.Closed(v); ok != closed {
			t.Errorf("%s: fails closed: %v, want %v", text, ok, closed)
		}
	}
	for _, name := range []string{"PeerAuthentication", "RequestAuthentication", "VirtualService"} {
		other, _ := kind.ByName(name)
		if _, err := other.Decode(ident.DryRun, nil); err == nil {
			t.Errorf("a dry run of a %s is decoded", name)
		}
	}
}
