package apply

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/problem"
)

// The actions of a change.
const (
	created   = "created"
	changed   = "changed"
	unchanged = "unchanged"
	deleted   = "deleted"
)

// step is what a change does to one object.
type step struct {
	*item
	action string
	before *fold.Offer // nil: there is none
}

// change is a change set of a source.
type change struct {
	steps    []step
	problems []problem.Diagnostic // of its objects
	// others are problems that other objects get, such as those that a new MeshPolicy
	// forbids. They are no reason to stop.
	others []problem.Diagnostic
}

// newChange compares objects with what the source offers. deletes says that the objects
// are to be deleted; those that do not exist are not in the change.
func newChange(s *shard, items []*item, deletes bool) *change {
	c := &change{}
	for _, i := range items {
		var before *fold.Offer
		if o, ok := s.offers[i.key]; ok {
			before = &o
		}
		if bad := outdated(s, i, before); bad != nil {
			c.problems = append(c.problems, *bad)
			continue
		}
		st := step{item: i, before: before, action: created}
		switch {
		case deletes && before == nil:
			continue
		case deletes:
			st.action = deleted
		case before != nil && before.Hash == i.hash:
			st.action = unchanged
		case before != nil:
			st.action = changed
		}
		c.steps = append(c.steps, st)
	}
	slices.SortStableFunc(c.steps, func(a, b step) int { return cmp.Compare(a.key.Row(), b.key.Row()) })
	return c
}

// outdated returns the error of a document that was made from another version of the
// object than the present one (API-2).
func outdated(s *shard, i *item, before *fold.Offer) *problem.Diagnostic {
	const field = "metadata.resourceVersion"
	if i.resourceVersion.IsZero() {
		return nil
	}
	reason := ""
	switch {
	case before == nil:
		reason = fmt.Sprintf("the document is made from %s, and the object does not exist: it was deleted since, or lost with the log", i.resourceVersion)
	case i.resourceVersion.Less(s.version(*before)):
		reason = fmt.Sprintf("the document is made from %s, and the object has changed since, at %s", i.resourceVersion, s.version(*before))
	case s.version(*before).Less(i.resourceVersion):
		reason = fmt.Sprintf("the object is of %s: the document is of another mesh, or of a log that was lost", s.version(*before))
	default:
		return nil
	}
	return &problem.Diagnostic{
		Severity: problem.Error, Code: "conflict", Key: i.key, Origin: i.origin(field), Field: field, Reason: reason,
		Advice: "get the object again with `meshlog get`, and repeat the change; or remove resourceVersion to replace the object whatever it is",
	}
}

// writes returns the steps that change something.
func (c *change) writes() []step {
	return slices.DeleteFunc(slices.Clone(c.steps), func(st step) bool { return st.action == unchanged })
}

// judge has the fold of s apply the change, and adds the problems that it finds. The fold
// is not that of the log any more afterwards.
func (c *change) judge(s *shard) error {
	seq := s.fold.Position().Seq
	var all []events.Event
	if writes := c.writes(); len(writes) > 0 {
		all = session(s.name, newSession(), "judge", writes)
	}
	for _, e := range all {
		seq++
		_, found, err := s.fold.Apply(events.Record{Seq: seq, Time: time.Now(), Event: e}, nil)
		if err != nil {
			return fmt.Errorf("judge the change: %w", err)
		}
		for _, d := range found {
			if !c.has(d.Key) {
				c.others = append(c.others, d)
			}
		}
	}
	s.keep()
	for _, st := range c.steps {
		if st.action == deleted {
			continue
		}
		for _, d := range s.offers[st.key].Problems {
			d.Origin = st.origin(d.Field)
			if d.Severity == problem.Error {
				d.Effect = "" // nothing is written
			}
			c.problems = append(c.problems, d)
		}
	}
	return nil
}

func (c *change) has(k ident.Key) bool {
	return slices.ContainsFunc(c.steps, func(st step) bool { return st.key == k })
}
