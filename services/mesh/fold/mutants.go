//go:build mutants

package fold

import (
	"fmt"
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
)

// Mutants are the names of the rules of rules.go. In a build with the tag "mutants", a fold does without those that its
// judge names by a method Without() []string.
var Mutants = []string{
	"session_fence", "p_order", "gap", "stage", "digest", "partial", "kinds", "stranger", "atomic", "last_good", "overlay_base", "once", "gate",
}

// variant is the rules that a fold does without.
type variant struct{ without []string }

func variantOf(j Judge) variant {
	m, ok := j.(interface{ Without() []string })
	if !ok {
		return variant{}
	}
	for _, name := range m.Without() {
		if !slices.Contains(Mutants, name) {
			panic(fmt.Sprintf("fold: no rule is called %q", name))
		}
	}
	return variant{m.Without()}
}

func (v variant) has(rule string) bool { return !slices.Contains(v.without, rule) }

func (v variant) fenced(sh *shard, session string) bool {
	return v.has("session_fence") && (sh.session == "" || sh.session != session)
}

func (v variant) outdated(sh *shard, e *entry, pseq uint64) bool {
	return v.has("p_order") && sh.speaks(e) && e.lastPseq >= pseq
}

func (v variant) gap(sh *shard, low uint64) bool { return v.has("gap") && low > sh.floor+1 }

func (v variant) list(s *step, sh *shard, r staged) {
	if s.stage(sh, r); !v.has("stage") {
		s.speak(sh, r)
	}
}

func (v variant) differ(said, known events.Digest) bool { return v.has("digest") && said != known }

func (v variant) partial(a *events.Alive) bool { return v.has("partial") && a.Partial }

func (v variant) compared(kinds events.Kinds) events.Kinds {
	if !v.has("kinds") {
		return nil
	}
	return kinds
}

func (v variant) stranger(s *step, sh *shard, reason string) {
	if v.has("stranger") {
		s.ask(sh, reason)
	}
}

func (v variant) atomic(b events.Batch) bool { return v.has("atomic") && b.Total > 0 }

func (v variant) lastGood(base *state, k ident.Key) *value {
	if e := base.entry(k); e != nil && v.has("last_good") {
		return e.good
	}
	return nil
}

func (v variant) lies(base, offered ident.Hash) bool {
	return !v.has("overlay_base") || base == offered
}

func (v variant) used(s *state, id string) bool {
	_, gone := s.gone[id]
	return v.has("once") && gone
}

func (v variant) listed(sh *shard, partial bool) bool {
	return !v.has("gate") || sh != nil && (sh.synced || partial && sh.partial)
}
