package fold

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/permit"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
)

// forbidden reports whether the source of e may not publish the offered value.
func (e *entry) forbidden() bool {
	return slices.ContainsFunc(e.problems, func(d problem.Diagnostic) bool { return d.Code == permit.Code })
}

// forbids reports whether the source of k may not publish v, which may be nil.
func (f *Fold) forbids(k ident.Key, v *value) bool {
	if v == nil {
		return false
	}
	return f.rules.Forbid(k, f.hosted(v, v.Message)) != nil
}

// hosted returns the message of v if a rule is about its hosts: m, or the decoded value
// if the judge keeps no messages.
func (f *Fold) hosted(v *value, m proto.Message) proto.Message {
	if m != nil || !f.rules.ByHost(v.Key) {
		return m
	}
	if kd, ok := kind.ByName(v.Key.Kind); ok {
		if decoded, err := kd.Decode(v.Value.Type, v.Value.Bytes); err == nil {
			return decoded
		}
	}
	m, _, _ = f.judge.Judge(v.Key, v.Value)
	return m
}

// policyRules returns the rules of the policy that a state serves. The operators are those of
// the policy that the sources offer: an operator whom a source has removed stays removed,
// whatever is rolled back or frozen.
func (f *Fold) policyRules(s *state) *permit.Rules {
	served := s.policies(func(e *entry) (*value, uint64) { return e.good, e.goodSeq })
	over := map[string]world.Overlay{}
	for k, overlays := range s.over {
		if k.Kind != permit.PolicyKind {
			continue
		}
		for _, o := range overlays {
			only, ok := over[o.ID]
			if !ok {
				only = o.Overlay
			}
			only.Values = append(only.Values, o.values[k])
			over[o.ID] = only
		}
	}
	for id, o := range over {
		served.Rows = append(served.Rows, world.RowChange{Row: ident.OverlayRow(id), Value: world.MarshalOverlay(o)})
	}
	w := worldOf(served)
	var home ident.Shard
	for o := range w.Objects(permit.PolicyKind) {
		if o.Key.Name == world.CountedName && o.Key.Namespace == "" {
			home = o.Key.Shard()
		}
	}
	p := w.Policy()
	rules := permit.New(p.SourceRules, p.DomainSuffix, home)
	offered := worldOf(s.policies(func(e *entry) (*value, uint64) {
		if e.offered != nil && hashOf(e.offered) != hashOf(e.good) && rules.Forbid(e.key, f.hosted(e.offered, nil)) == nil {
			if _, _, good := f.judge.Judge(e.key, e.offered.Value); good {
				return e.offered, e.seq
			}
		}
		return e.good, e.goodSeq
	}))
	rules.Operators = permit.OperatorsOf(offered.Policy().Operators)
	return rules
}

// policies returns the rows of all policies, with one value of each.
func (s *state) policies(of func(*entry) (*value, uint64)) world.Change {
	c := world.Change{Reset: true}
	for _, sh := range s.shards {
		k := ident.Key{Source: sh.name.Source, Instance: sh.name.Instance, Kind: permit.PolicyKind, Name: world.CountedName}
		if e := sh.entries[k]; e != nil {
			if v, seq := of(e); v != nil {
				c.Rows = append(c.Rows, e.rowOf(v, seq))
			}
		}
	}
	return c
}

func worldOf(c world.Change) *world.World {
	w, _, err := world.NewWorld().Apply(c)
	if err != nil {
		panic(fmt.Sprintf("a World cannot fail to read the rows of a fold: %v", err))
	}
	return w
}

// noticePolicy notes that the value served or offered for k changed: if it is a policy,
// it may have other rules.
func (s *step) noticePolicy(k ident.Key) { s.policy = s.policy || k.Kind == permit.PolicyKind }

// enforce judges the shards again about which a new policy decides otherwise:
// policies first, because one that is permitted now may win. Each of these wins over
// the one before, so that ends.
func (s *step) enforce() {
	was := s.rules
	for s.policy {
		s.policy = false
		before := s.rules
		s.rules = s.policyRules(&s.state)
		s.permitAll(before, func(kind string) bool { return kind == permit.PolicyKind })
	}
	s.permitAll(was, func(kind string) bool { return kind != permit.PolicyKind })
	if was.Equal(s.rules) {
		return
	}
	for _, o := range s.forbiddenHolds() {
		for k := range o.values {
			s.changing(k)
		}
		s.liftForbidden(o)
		s.touch(o.ID)
	}
}

// permitAll judges the entries of some kinds again, of shards about which the rules
// before decided otherwise.
func (s *step) permitAll(before *permit.Rules, wanted func(kind string) bool) {
	for _, sh := range s.inOrder() {
		if before.SameFor(s.rules, sh.name) {
			continue
		}
		for _, e := range slices.SortedFunc(maps.Values(sh.entries), func(a, b *entry) int { return strings.Compare(a.row, b.row) }) {
			if wanted(e.key.Kind) {
				s.permit(e)
			}
		}
	}
}

// permit judges e again by the present rules.
func (s *step) permit(e *entry) {
	was := e.forbidden()
	if !was && !s.forbids(e.key, e.offered) && !s.forbids(e.key, e.good) {
		return // it was judged before
	}
	s.unsaved.entry(e)
	if s.Frozen(e.key) {
		s.keep(e, s.seq)
	} else {
		s.serve(e, s.seq)
	}
	s.withhold(e)
	if e.forbidden() != was {
		s.problems = append(s.problems, e.diagnostics()...)
	}
}

// permitted reports whether the rules about sources count for the values of an overlay. A
// rollback is the word of an operator and outranks them.
func permitted(k ident.OverlayKind) bool {
	return k == ident.Hold || k == ident.Pin || k == ident.Rollout
}

// forbiddenHolds returns the holds, pins and rollouts that keep an object in service which
// its source may not publish, sorted by id.
func (f *Fold) forbiddenHolds() []*overlay {
	var all []*overlay
	for _, id := range slices.Sorted(maps.Keys(f.overlays)) {
		if o := f.overlays[id]; permitted(o.Kind) && len(f.forbiddenIn(o)) > 0 {
			all = append(all, o)
		}
	}
	return all
}

// forbiddenIn returns the keys of a hold, a pin or a rollout whose values their sources may not
// publish.
func (f *Fold) forbiddenIn(o *overlay) []ident.Key {
	var keys []ident.Key
	for k, v := range o.values {
		if v.Value != nil && f.forbids(k, newValue(k, *v.Value)) {
			keys = append(keys, k)
		}
	}
	return keys
}

// liftForbidden takes forbidden keys out of a hold, a pin or a rollout.
func (f *Fold) liftForbidden(o *overlay) {
	for _, k := range f.forbiddenIn(o) {
		f.lift(o, k)
	}
	if o.empty() {
		delete(f.overlays, o.ID)
	}
}
