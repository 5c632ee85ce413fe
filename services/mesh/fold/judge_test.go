package fold_test

import (
	"strings"
	"testing"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/kind"
)

// TestNotYet holds that a diagnostic tells users of a kind without effect, and
// says NOT ENFORCED if the kind would protect something.
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
			t.Errorf("%s: %q, and it has a meaning", k.Name, said)
		case k.Meaning == kind.NotYet && len(said) != 1:
			t.Errorf("%s: said %q, want one word about it", k.Name, said)
		case k.Meaning == kind.NotYet && k.Security != strings.HasPrefix(said[0], "NOT ENFORCED: "):
			t.Errorf("%s: said %q", k.Name, said)
		}
	}
}
