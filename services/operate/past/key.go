package past

import (
	"context"
	"maps"
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
)

// Effect is what a record did to a key.
type Effect string

// The effects.
const (
	// Served: the record's value is served, unless an overlay lies over the key.
	Served Effect = "served"
	// Gone: the key is no longer offered, and not served.
	Gone Effect = "gone"
	// Refused: the value is offered and invalid; the last good value is served.
	Refused Effect = "refused"
	// Unchanged: the key had this value already.
	Unchanged Effect = "unchanged"
	// Waiting: the rest of the listing or batch has not come.
	Waiting Effect = "waiting"
	// Ignored: the record does not count, because of its session.
	Ignored Effect = "ignored"
	// Covered: an overlay began to lie over the key.
	Covered Effect = "covered"
	// Uncovered: an overlay was removed.
	Uncovered Effect = "uncovered"
	// Renewed: a segment began in which the key has another value.
	Renewed Effect = "renewed"
)

// KeyEvent is one event in the history of a key.
type KeyEvent struct {
	Record events.Record
	Effect Effect
	// Applied is the position at which the record came to count: the end of its
	// listing or batch, if it is part of one. Zero if it did not.
	Applied ident.Position
	// Version is the first one that contains it; zero if there is none.
	Version ident.Position
	// Overlay is the id of the overlay of Covered and Uncovered.
	Overlay string
	// Fields differ from the last good value before.
	Fields []FieldChange
	// Problems are the diagnostics of the value.
	Problems []problem.Diagnostic
}

// Of returns the history of a key as far as the log goes back, oldest first: all
// records about it, and what they did. progress may be nil.
func Of(ctx context.Context, p *Past, key ident.Key, progress func(done, total int64)) ([]KeyEvent, error) {
	bounds, err := p.bounds(ctx)
	if err != nil {
		return nil, err
	}
	r, err := BeginAtFloor(ctx, p)
	if err != nil {
		return nil, err
	}
	chain, err := links(p.Versions.History(ctx))
	if err != nil {
		return nil, err
	}
	k := &keyHistory{key: key, row: key.Row(), replay: r}
	k.offered, _ = r.Fold().Offered(key)
	first := r.Position().Seq
	err = r.To(ctx, bounds.Last, func(s Step) error {
		k.step(s)
		if progress != nil {
			progress(int64(s.Record.Seq-first), int64(bounds.Last-first))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i := range k.events {
		k.events[i].Version = firstWith(chain, k.events[i])
	}
	return k.events, nil
}

// firstWith returns the first version that contains an event.
func firstWith(chain []link, e KeyEvent) ident.Position {
	if e.Applied.IsZero() || e.Effect == Unchanged || e.Effect == Refused {
		return ident.Position{}
	}
	for _, l := range chain {
		if e.Applied.Compare(l.version) <= 0 {
			return l.version
		}
	}
	return ident.Position{}
}

type keyHistory struct {
	key     ident.Key
	row     string
	replay  *Replay
	offered ident.Hash
	events  []KeyEvent
	waiting []int // of events: not applied yet
}

// step takes one record: it may be about the key, end the wait of earlier
// records, or change the key in another way.
func (k *keyHistory) step(s Step) {
	before := k.offered
	k.offered, _ = k.replay.Fold().Offered(k.key)
	switch b := s.Record.Event.Body.(type) {
	case *events.Object:
		if b.Key == k.key {
			k.events = append(k.events, KeyEvent{Record: s.Record, Effect: Waiting})
			k.waiting = append(k.waiting, len(k.events)-1)
		}
	case *events.Begin:
		if b.Shard == k.key.Shard() {
			k.drop()
		}
	}
	var change *RowChange
	if i := slices.IndexFunc(s.Changes, func(c RowChange) bool { return c.Row == k.row }); i >= 0 {
		change = &s.Changes[i]
	}
	if !k.settle(s, before, change) && change != nil {
		k.besides(s, change)
	}
	k.overlays(s)
}

// drop marks the records that wait as ignored: their session has ended.
func (k *keyHistory) drop() {
	for _, i := range k.waiting {
		k.events[i].Effect = Ignored
	}
	k.waiting = nil
}

// settle notes the effect of the records that waited until this step.
func (k *keyHistory) settle(s Step, before ident.Hash, change *RowChange) (settled bool) {
	if len(k.waiting) == 0 {
		return false
	}
	newest := &k.events[k.waiting[len(k.waiting)-1]]
	hash := hashOf(newest.Record)
	applied := k.offered == hash && (before != hash || change != nil)
	sameStep := newest.Record.Seq == s.Record.Seq
	switch {
	case applied:
		newest.Applied = s.Position
		k.applied(newest, s, change)
	case sameStep && k.offered == hash:
		newest.Effect, newest.Applied = Unchanged, s.Position
	case sameStep && !k.mayWait(newest.Record):
		newest.Effect = Ignored
	case k.closes(s):
		newest.Effect = Ignored
		if k.offered == hash {
			newest.Effect, newest.Applied = Unchanged, s.Position
		}
	default:
		return false
	}
	// If several waited, the newest counts.
	for _, i := range k.waiting[:len(k.waiting)-1] {
		k.events[i].Effect = Unchanged
	}
	k.waiting = nil
	return applied
}

// applied notes the effect of a record that came to count.
func (k *keyHistory) applied(e *KeyEvent, s Step, change *RowChange) {
	for _, d := range s.Problems {
		if d.Key == k.key {
			e.Problems = append(e.Problems, d)
		}
	}
	switch {
	case k.offered.IsZero():
		e.Effect = Gone
	case change == nil:
		e.Effect = Refused
		if _, held := k.replay.Content().Get(k.row); held && len(e.Problems) == 0 {
			e.Effect = Unchanged // the value is good, and was served already
		}
	default:
		e.Effect = Served
	}
	if change != nil {
		e.Fields = readChange(*change).Fields
	}
}

// mayWait reports whether a record may wait for others: it is part of a listing or
// of a batch.
func (k *keyHistory) mayWait(rec events.Record) bool {
	o, ok := rec.Event.Body.(*events.Object)
	if !ok {
		return false
	}
	return o.Batch.Total > 1 || k.replay.Fold().Listing(k.key.Shard())
}

// closes reports whether a step ends a listing or batch of the shard.
func (k *keyHistory) closes(s Step) bool {
	switch b := s.Record.Event.Body.(type) {
	case *events.Alive:
		return b.Shard == k.key.Shard() && !k.replay.Fold().Listing(k.key.Shard())
	case *events.Segment:
		return s.Reset
	}
	return false
}

// besides notes a change that no record about the key made: a listing without the
// key, or a segment.
func (k *keyHistory) besides(s Step, change *RowChange) {
	e := KeyEvent{Record: s.Record, Effect: Renewed, Applied: s.Position, Fields: readChange(*change).Fields}
	if change.After == nil {
		e.Effect = Gone
	}
	k.events = append(k.events, e)
}

// overlays notes the overlays that began or ceased to lie over the key.
func (k *keyHistory) overlays(s Step) {
	for _, c := range s.Changes {
		id := parseRow(c.Row).overlay
		if id == "" {
			continue
		}
		over, was := k.over(id, c.After), k.over(id, c.Before)
		if over == was {
			continue
		}
		e := KeyEvent{Record: s.Record, Effect: Covered, Applied: s.Position, Overlay: id}
		if was {
			e.Effect = Uncovered
		}
		k.events = append(k.events, e)
	}
}

// over reports whether the row of an overlay has a value for the key.
func (k *keyHistory) over(id string, row []byte) bool {
	if row == nil {
		return false
	}
	o, err := world.UnmarshalOverlay(id, row)
	return err == nil && slices.ContainsFunc(o.Values, func(v ident.OverlayValue) bool { return v.Resource == nil && v.Key == k.key })
}

// hashOf returns the content hash of a record's value; zero if it deletes the key.
func hashOf(rec events.Record) ident.Hash {
	o, ok := rec.Event.Body.(*events.Object)
	if !ok || o.Op == events.Delete {
		return ident.Hash{}
	}
	return events.ContentHash(o.Key, o.Value)
}

// Keys returns the keys of all objects that the log has records about, in no
// order.
func Keys(ctx context.Context, p *Past) ([]ident.Key, error) {
	bounds, err := p.bounds(ctx)
	if err != nil {
		return nil, err
	}
	keys := map[ident.Key]struct{}{}
	r, err := BeginAtFloor(ctx, p)
	if err != nil {
		return nil, err
	}
	for row := range r.Content().Rows() {
		if at := parseRow(row.Key); at.overlay == "" {
			keys[at.key] = struct{}{}
		}
	}
	for rec, err := range Records(ctx, p.Log, bounds.First, bounds.Last) {
		if err != nil {
			return nil, err
		}
		if o, ok := rec.Event.Body.(*events.Object); ok {
			keys[o.Key] = struct{}{}
		}
	}
	return slices.Collect(maps.Keys(keys)), nil
}
