package fold

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/problem"
)

// Frozen reports whether an operator keeps k as it is, whatever its source offers: by a
// freeze of its shard, or by a rollback of configuration.
func (f *Fold) Frozen(k ident.Key) bool {
	for _, o := range f.scoped {
		if o.Scope.Covers(k, f.judge.Configures(k.Kind)) {
			return true
		}
	}
	return false
}

// withhold notes whether a change of e is withheld: e is frozen, and its source offers
// another value than the one that counts.
func (f *Fold) withhold(e *entry) {
	if hashOf(e.offered) != hashOf(e.good) && f.Frozen(e.key) {
		f.withheld[e.key] = e
	} else {
		delete(f.withheld, e.key)
	}
}

// withholdAnew finds all changes that are withheld.
func (f *Fold) withholdAnew() {
	clear(f.withheld)
	if len(f.scoped) == 0 {
		return
	}
	for _, sh := range f.shards {
		for _, e := range sh.entries {
			f.withhold(e)
		}
	}
}

// thaw applies the changes that are withheld no longer, as one change. Holds that were
// made while their objects were frozen lift if the sources offer something else.
func (s *step) thaw() {
	for _, o := range s.sortedOverlays() {
		for k := range maps.Clone(o.values) {
			if !s.Frozen(k) && !s.unread(k) {
				s.liftOver(k, s.offeredHash(k))
			}
		}
	}
	for _, e := range slices.SortedFunc(maps.Values(s.withheld), func(a, b *entry) int { return strings.Compare(a.row, b.row) }) {
		if s.Frozen(e.key) {
			continue
		}
		delete(s.withheld, e.key)
		s.unsaved.entry(e)
		if e.offered != nil {
			s.serve(e, s.seq)
			continue
		}
		s.setGood(e, nil, s.seq)
		if sh := s.shards[e.key.Shard()]; !sh.speaks(e) {
			delete(sh.entries, e.key)
		}
	}
}

// sortedOverlays returns all overlays, sorted by id.
func (f *Fold) sortedOverlays() []*overlay {
	return slices.SortedFunc(maps.Values(f.overlays), func(a, b *overlay) int { return cmp.Compare(a.ID, b.ID) })
}

// maxNamed is how many objects a Diagnostic names.
const maxNamed = 3

// Withheld returns, for each word of an operator, a Diagnostic about those of the objects
// whose sources offer something else than what is served because of it.
func (f *Fold) Withheld(of func(ident.Key) bool) (all []problem.Diagnostic) {
	for _, o := range f.sortedOverlays() {
		if o.Kind != ident.Rollback && o.Kind != ident.Freeze {
			continue
		}
		var keys []ident.Key
		for k, v := range o.values {
			if of(k) && v.Base != f.offeredHash(k) && !f.unread(k) {
				keys = append(keys, k)
			}
		}
		if o.Scope != nil {
			for k := range f.withheld {
				if _, twice := o.values[k]; !twice && of(k) && o.Scope.Covers(k, f.judge.Configures(k.Kind)) {
					keys = append(keys, k)
				}
			}
		}
		if len(keys) == 0 {
			continue
		}
		reason := fmt.Sprintf("%s of %s (%s) keeps %s from what the sources offer now: %s",
			o.ID, cmp.Or(o.Actor, "an operator"), o.Reason, counted(len(keys)), firstOf(keys))
		all = append(all, problem.Diagnostic{
			Severity: problem.Warning, Code: "withheld", Reason: reason,
			Advice: "if what the sources offer is right, release it: `meshlog release " + o.ID + "`",
			Effect: "what they offer is recorded and not served",
		})
	}
	return all
}

// firstOf names the first of some keys, and says how many more there are.
func firstOf(keys []ident.Key) string {
	slices.SortFunc(keys, func(a, b ident.Key) int { return strings.Compare(a.Row(), b.Row()) })
	names := make([]string, 0, maxNamed)
	for _, k := range keys[:min(len(keys), maxNamed)] {
		names = append(names, k.String())
	}
	first := strings.Join(names, ", ")
	if more := len(keys) - len(names); more > 0 {
		first += fmt.Sprintf(" and %d more", more)
	}
	return first
}

func counted(objects int) string {
	if objects == 1 {
		return "1 object"
	}
	return fmt.Sprintf("%d objects", objects)
}
