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

// Effect is what came of something that was said about a key.
type Effect string

// The effects.
const (
	// Served: it became what is served, unless an overlay lies over it.
	Served Effect = "served"
	// Gone: the key is not offered any more, and not served.
	Gone Effect = "gone"
	// Refused: it is offered, and not good: the last good value is served on.
	Refused Effect = "refused"
	// Unchanged: it says what was known.
	Unchanged Effect = "unchanged"
	// Waiting: the rest of its listing or batch has not come.
	Waiting Effect = "waiting"
	// Ignored: it does not count, because of its session.
	Ignored Effect = "ignored"
	// Covered: an overlay was laid over the key.
	Covered Effect = "covered"
	// Uncovered: an overlay was taken away.
	Uncovered Effect = "uncovered"
	// Renewed: a segment began and left another value.
	Renewed Effect = "renewed"
)

// KeyEvent is one thing that happened to a key.
type KeyEvent struct {
	Record events.Record
	Effect Effect
	// Applied is where it came to count: of a listing or a batch, the position
	// that closed it. Zero where it did not.
	Applied ident.Position
	// Version is the first one that shows it; zero where there is none.
	Version ident.Position
	// Overlay is the id of the overlay of Covered and Uncovered.
	Overlay string
	// Fields differ from the last good value before; After is the whole value
	// where there was none.
	Fields []FieldChange
	// Problems are why it was refused, or what is doubtful about it.
	Problems []problem.Diagnostic
}

// Of is the history of a key as far as the log goes back: everything that was
// said about it, oldest first, and what came of it. progress may be nil.
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

// firstWith is the first version that contains what was applied.
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

// step takes one record: what it says itself of the key, what it applies of
// what waited, and what it does besides.
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
			k.drop() // what waited is not applied any more
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

// drop marks what waits as something that never counted.
func (k *keyHistory) drop() {
	for _, i := range k.waiting {
		k.events[i].Effect = Ignored
	}
	k.waiting = nil
}

// settle says what came of the records that waited until this step.
func (k *keyHistory) settle(s Step, before ident.Hash, change *RowChange) (settled bool) {
	if len(k.waiting) == 0 {
		return false
	}
	newest := &k.events[k.waiting[len(k.waiting)-1]]
	said := hashOf(newest.Record)
	applied := k.offered == said && (before != said || change != nil)
	sameStep := newest.Record.Seq == s.Record.Seq
	switch {
	case applied:
		newest.Applied = s.Position
		k.applied(newest, s, change)
	case sameStep && k.offered == said:
		newest.Effect, newest.Applied = Unchanged, s.Position
	case sameStep && !k.mayWait(newest.Record):
		newest.Effect = Ignored
	case k.closes(s):
		newest.Effect = Ignored
		if k.offered == said {
			newest.Effect, newest.Applied = Unchanged, s.Position
		}
	default:
		return false
	}
	// Of several that waited the newest counts.
	for _, i := range k.waiting[:len(k.waiting)-1] {
		k.events[i].Effect = Unchanged
	}
	k.waiting = nil
	return applied
}

// applied says what a record did that came to count.
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
			e.Effect = Unchanged // it is good, and was served already
		}
	default:
		e.Effect = Served
	}
	if change != nil {
		e.Fields = readChange(*change).Fields
	}
}

// mayWait says whether a record may wait for others: those of a listing, and of
// a batch.
func (k *keyHistory) mayWait(rec events.Record) bool {
	o, ok := rec.Event.Body.(*events.Object)
	if !ok {
		return false
	}
	return o.Batch.Total > 1 || k.replay.Fold().Listing(k.key.Shard())
}

// closes says whether a step ends what records of the shard wait for.
func (k *keyHistory) closes(s Step) bool {
	switch b := s.Record.Event.Body.(type) {
	case *events.Alive:
		return b.Shard == k.key.Shard() && !k.replay.Fold().Listing(k.key.Shard())
	case *events.Segment:
		return s.Reset
	}
	return false
}

// besides notes a change that no record about the key made: a listing without
// it, a segment.
func (k *keyHistory) besides(s Step, change *RowChange) {
	e := KeyEvent{Record: s.Record, Effect: Renewed, Applied: s.Position, Fields: readChange(*change).Fields}
	if change.After == nil {
		e.Effect = Gone
	}
	k.events = append(k.events, e)
}

// overlays notes which overlays began or ceased to lie over the key.
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

// over says whether an overlay's row has a value for the key.
func (k *keyHistory) over(id string, row []byte) bool {
	if row == nil {
		return false
	}
	o, err := world.UnmarshalOverlay(id, row)
	return err == nil && slices.ContainsFunc(o.Values, func(v ident.OverlayValue) bool { return v.Resource == nil && v.Key == k.key })
}

// hashOf is the content hash of what a record says; zero: the key is gone.
func hashOf(rec events.Record) ident.Hash {
	o, ok := rec.Event.Body.(*events.Object)
	if !ok || o.Op == events.Delete {
		return ident.Hash{}
	}
	return events.ContentHash(o.Key, o.Value)
}

// Keys are the keys of all objects that were ever spoken of, as far as the log
// goes back, in no order.
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
