package fold_test

import (
	"strings"
	"testing"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/kind"
)

// TestNotYet checks that a diagnostic tells users if a kind has no effect yet, and
// that it says NOT ENFORCED if the kind is meant to protect something.
func TestNotYet(t *testing.T) {
	for _, k := range kind.All() {
		_, problems, _ := fold.KindJudge{}.Judge(ident.Key{Kind: k.Name, Name: "x"}, ident.Value{Type: k.TypeURL})
		var said []string
		for _, p := range problems {
			if p.Code == "not-yet" {
				said = append(said, p.Reason)
			}
		}
		switch {
		case k.Meaning != kind.NotYet && len(said) > 0:
			t.Errorf("%s has an effect, but a diagnostic says %q", k.Name, said)
		case k.Meaning == kind.NotYet && len(said) != 1:
			t.Errorf("%s has no effect: got diagnostics %q, want one", k.Name, said)
		case k.Meaning == kind.NotYet && k.Security != strings.HasPrefix(said[0], "NOT ENFORCED: "):
			t.Errorf("%s: diagnostic %q; want NOT ENFORCED only for kinds that protect something", k.Name, said)
		}
	}
}
