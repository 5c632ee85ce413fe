package draft

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
)

// The actions of a change.
const (
	Created   = "created"
	Changed   = "changed"
	Unchanged = "unchanged"
	Deleted   = "deleted"
)

// Step is what a change does to one object.
type Step struct {
	*Item
	Action string
	Before *fold.Offer // nil: there is none
}

// Change is a change set of a source.
type Change struct {
	Steps    []Step
	Problems []problem.Diagnostic // of its objects
	// Others are problems that other objects get, such as those that a new MeshPolicy
	// forbids. They are no reason to stop.
	Others []problem.Diagnostic

	rows []world.RowChange // what it changes in the content
}

// NewChange compares objects with what the source offers. deletes says that the objects
// are to be deleted; those that do not exist are not in the change.
func NewChange(s *Shard, items []*Item, deletes bool) *Change {
	c := &Change{}
	for _, i := range items {
		var before *fold.Offer
		if o, ok := s.Offers[i.Key]; ok {
			before = &o
		}
		if bad := outdated(s, i, before); bad != nil {
			c.Problems = append(c.Problems, *bad)
			continue
		}
		st := Step{Item: i, Before: before, Action: Created}
		switch {
		case deletes && before == nil:
			continue
		case deletes:
			st.Action = Deleted
		case before != nil && before.Hash == i.Hash:
			st.Action = Unchanged
		case before != nil:
			st.Action = Changed
		}
		c.Steps = append(c.Steps, st)
	}
	slices.SortStableFunc(c.Steps, func(a, b Step) int { return cmp.Compare(a.Key.Row(), b.Key.Row()) })
	return c
}

// outdated returns the error of a document that was made from another version of the
// object than the present one (API-2).
func outdated(s *Shard, i *Item, before *fold.Offer) *problem.Diagnostic {
	const field = "metadata.resourceVersion"
	if i.ResourceVersion.IsZero() {
		return nil
	}
	reason := ""
	switch {
	case before == nil:
		reason = fmt.Sprintf("the document is made from %s, and the object does not exist: it was deleted since, or lost with the log", i.ResourceVersion)
	case i.ResourceVersion.Less(s.Version(*before)):
		reason = fmt.Sprintf("the document is made from %s, and the object has changed since, at %s", i.ResourceVersion, s.Version(*before))
	case s.Version(*before).Less(i.ResourceVersion):
		reason = fmt.Sprintf("the object is of %s: the document is of another mesh, or of a log that was lost", s.Version(*before))
	default:
		return nil
	}
	return &problem.Diagnostic{
		Severity: problem.Error, Code: "conflict", Key: i.Key, Origin: i.Place(field), Field: field, Reason: reason,
		Advice: "get the object again with `meshlog get`, and repeat the change; or remove resourceVersion to replace the object whatever it is",
	}
}

// Writes returns the steps that change something.
func (c *Change) Writes() []Step {
	return slices.DeleteFunc(slices.Clone(c.Steps), func(st Step) bool { return st.Action == Unchanged })
}

// Judge has the fold of s apply the change, and adds the problems that it finds. The fold
// is not that of the log any more afterwards.
func (c *Change) Judge(s *Shard) error {
	seq := s.Fold.Position().Seq
	var all []events.Event
	if writes := c.Writes(); len(writes) > 0 {
		all = Session(s.Name, NewSession(), "judge", writes)
	}
	for _, e := range all {
		seq++
		done, found, err := s.Fold.Apply(events.Record{Seq: seq, Time: time.Now(), Event: e}, nil)
		if err != nil {
			return fmt.Errorf("judge the change: %w", err)
		}
		c.rows = append(c.rows, done.Rows...)
		for _, d := range found {
			if !c.has(d.Key) {
				c.Others = append(c.Others, d)
			}
		}
	}
	s.Keep()
	for _, st := range c.Steps {
		if st.Action == Deleted {
			continue
		}
		for _, d := range s.Offers[st.Key].Problems {
			d.Origin = st.Place(d.Field)
			if d.Severity == problem.Error {
				d.Effect = "" // nothing is written
			}
			c.Problems = append(c.Problems, d)
		}
	}
	return nil
}

func (c *Change) has(k ident.Key) bool {
	return slices.ContainsFunc(c.Steps, func(st Step) bool { return st.Key == k })
}
