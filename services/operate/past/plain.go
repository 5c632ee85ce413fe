package past

import (
	"cmp"
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/trial"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/store"
)

// section is a part of the log that must be folded, unless it is plain.
type section struct {
	span
	// In the stretch of a version: its manifest, whose version before it is the one that ends
	// before the stretch.
	version *store.Manifest
}

// plain returns the record that alone is about the keys in the stretch of a version, if
// version and record say without a fold what it did: the version names it as the one that
// changed the object, and it is neither part of a batch nor of a listing, nor an operator's.
func (s *survey) plain(part section) (rec events.Record, o *events.Object, plain bool) {
	if part.version == nil || slices.ContainsFunc(part.version.GetChanges(), overlaid) {
		return rec, nil, false
	}
	i, _ := slices.BinarySearchFunc(s.records, part.from, func(r events.Record, seq uint64) int { return cmp.Compare(r.Seq, seq) })
	if i == len(s.records) || s.records[i].Seq > part.to || i+1 < len(s.records) && s.records[i+1].Seq <= part.to {
		return rec, nil, false
	}
	rec = s.records[i]
	o, isObject := rec.Event.Body.(*events.Object)
	if rec.Err != nil || !isObject || o.Op != events.Put || o.Batch.Total > 1 || fold.OfOperators(rec.Event) {
		return rec, nil, false
	}
	for _, c := range part.version.GetChanges() {
		if c.GetKey() == o.Key.Row() {
			plain = c.GetSeq() == rec.Seq && !c.GetRemoved()
		} else if s.wanted[c.GetKey()] {
			return rec, nil, false
		}
	}
	after, _ := slices.BinarySearch(s.control, rec.Seq)
	return rec, o, plain && (after == len(s.control) || s.control[after] > part.to)
}

// plain adds the event of a record that was applied at once, in the epoch of the version that
// has it. It returns false, and adds nothing, if the fold says more of the value.
func (k *keyHistory) plain(rec events.Record, o *events.Object, epoch uint64) bool {
	if _, problems, good := (fold.KindJudge{Trial: trial.Problems}).Judge(k.key, o.Value); !good || len(problems) > 0 {
		return false
	}
	at := ident.Position{Epoch: epoch, Seq: rec.Seq}
	e := k.add(Step{Record: rec, Position: at}, Served)
	e.Applied = at
	after := world.MarshalValue(o.Value)
	e.Fields = readChange(RowChange{Row: k.row, Before: k.served, After: after}).Fields
	k.offered, k.served = e.hash, after
	return true
}
