package past

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/world"
)

// Effect is what a record did to a key.
type Effect string

// The effects.
const (
	Served    Effect = "served"    // the record's value is served, unless an overlay lies over the key
	Gone      Effect = "gone"      // the key is no longer offered, and not served
	Refused   Effect = "refused"   // the value is offered and invalid; the last good value is served
	Unchanged Effect = "unchanged" // the key had this value already
	Waiting   Effect = "waiting"   // the rest of the listing or batch has not come
	Ignored   Effect = "ignored"   // the record does not count, because of its session
	Covered   Effect = "covered"   // an overlay began to lie over the key
	Uncovered Effect = "uncovered" // an overlay was removed
	Renewed   Effect = "renewed"   // a segment began in which the key has another value
)

// KeyEvent is one event in the history of a key.
type KeyEvent struct {
	Key    Key       `json:"key"`
	Seq    uint64    `json:"seq"`
	Time   time.Time `json:"time"` // the server's
	What   string    `json:"what"` // see What
	Effect Effect    `json:"effect"`
	// Applied is the position at which the record took effect: the end of its
	// listing or batch, if it is part of one. Zero if it had no effect.
	Applied  ident.Position  `json:"applied,omitzero"`
	Version  ident.Position  `json:"version,omitzero"`  // the first one that contains it; zero if there is none
	Overlay  string          `json:"overlay,omitempty"` // id of the overlay of Covered and Uncovered
	Actor    string          `json:"actor,omitempty"`
	Operator string          `json:"operator,omitempty"` // who has signed the record
	Void     string          `json:"void,omitempty"`     // why it changes nothing although an operator could append it
	Origin   string          `json:"origin,omitempty"`
	Fields   []FieldChange   `json:"fields,omitempty"`   // that differ from the last good value before
	Spec     json.RawMessage `json:"spec,omitempty"`     // in the record; none if this build cannot read it
	Problems []string        `json:"problems,omitempty"` // of the value

	hash ident.Hash // of the value in the record; zero if it deletes the key
	part bool       // the record is part of a batch
}

// Of returns the history of keys as far as the log goes back, oldest first: all
// records about them, and what they did. Of a long log it folds only the parts that are about
// them.
func Of(ctx context.Context, p *Past, keys []ident.Key, progress Progress) ([]*KeyEvent, error) {
	return of(ctx, p, keys, progress, longLog, leap)
}

func of(ctx context.Context, p *Past, keys []ident.Key, progress Progress, long, leap uint64) ([]*KeyEvent, error) {
	bounds, err := p.bounds(ctx)
	if err != nil {
		return nil, err
	}
	r, err := BeginAtFloor(ctx, p)
	if err != nil {
		return nil, err
	}
	histories := make([]*keyHistory, len(keys))
	for i, key := range keys {
		offered, _ := r.Fold().Offered(key)
		histories[i] = &keyHistory{key: key, row: key.Row(), replay: r, offered: offered}
		histories[i].served, _ = r.Content().Get(histories[i].row)
	}
	var chain []link
	if bounds.Last-bounds.First < long {
		if chain, err = links(p.Versions.History(ctx)); err != nil {
			return nil, err
		}
		err = r.To(ctx, bounds.Last, progress, func(s Step) error {
			for _, k := range histories {
				k.step(s)
			}
			return nil
		})
	} else {
		var s *survey
		if s, err = look(ctx, p, bounds, keys); err == nil {
			chain, err = s.chain, s.stretched(ctx, p, bounds, r, histories, progress, leap)
		}
	}
	if err != nil {
		return nil, err
	}
	all := []*KeyEvent{}
	for _, k := range histories {
		all = append(all, k.events...)
	}
	slices.SortStableFunc(all, func(a, b *KeyEvent) int { return cmp.Compare(a.Seq, b.Seq) })
	for _, e := range all {
		if e.Applied.IsZero() || e.Effect == Unchanged || e.Effect == Refused {
			continue
		}
		i, _ := slices.BinarySearchFunc(chain, e.Applied, func(l link, at ident.Position) int { return l.version.Compare(at) })
		if i < len(chain) {
			e.Version = chain[i].version
		}
	}
	return all, nil
}

type keyHistory struct {
	key     ident.Key
	row     string
	replay  *Replay
	offered ident.Hash
	served  []byte // the row of the content
	events  []*KeyEvent
	waiting []*KeyEvent // those of events that are not applied yet
}

// step processes one record: it may be about the key, settle earlier records, or
// change the key indirectly.
func (k *keyHistory) step(s Step) {
	before := k.offered
	k.offered, _ = k.replay.Fold().Offered(k.key)
	switch b := s.Record.Event.Body.(type) {
	case *events.Object:
		if b.Key == k.key && s.Verdict.Void != "" {
			k.add(s, Ignored)
		} else if b.Key == k.key {
			k.waiting = append(k.waiting, k.add(s, Waiting))
		}
	case *events.Begin:
		if b.Shard == k.key.Shard() && s.Verdict.Void == "" { // the session of the records that wait has ended
			k.settleWaiting(Ignored)
		}
	}
	var change *RowChange
	if i := slices.IndexFunc(s.Changes, func(c RowChange) bool { return c.Row == k.row }); i >= 0 {
		change = &s.Changes[i]
	}
	if !k.settle(s, before, change) && change != nil {
		k.indirect(s, change)
	}
	k.overlays(s)
}

// add adds the event of a step.
func (k *keyHistory) add(s Step, effect Effect) *KeyEvent {
	e := &KeyEvent{
		Key: Key(k.key), Seq: s.Record.Seq, Time: s.Record.Time.UTC(), What: What(s.Record), Effect: effect, Actor: s.Record.Event.Actor,
		Operator: s.Verdict.Operator, Void: s.Verdict.Void,
	}
	if o, ok := s.Record.Event.Body.(*events.Object); ok {
		e.Origin, e.part = o.Origin, o.Batch.Total > 1
		if o.Op == events.Put {
			e.hash = events.ContentHash(o.Key, o.Value)
			e.Spec, _ = Document(o.Key.Kind, o.Value)
		}
	}
	k.events = append(k.events, e)
	return e
}

// settleWaiting sets the effect of all records that wait.
func (k *keyHistory) settleWaiting(effect Effect) {
	for _, e := range k.waiting {
		e.Effect = effect
	}
	k.waiting = nil
}

// settle notes the effect of the records that waited until this step.
func (k *keyHistory) settle(s Step, before ident.Hash, change *RowChange) (settled bool) {
	if len(k.waiting) == 0 {
		return false
	}
	newest := k.waiting[len(k.waiting)-1]
	// A record may wait for the rest of its batch or listing.
	mayWait := newest.part || k.replay.Fold().Listing(k.key.Shard())
	ownStep := newest.Seq == s.Record.Seq
	applied := k.offered == newest.hash && (before != newest.hash || change != nil)
	effect := Ignored
	switch {
	case applied:
		effect = k.apply(newest, s, change)
	case k.offered == newest.hash && (ownStep || k.closes(s)):
		effect = Unchanged
	case ownStep && mayWait, !ownStep && !k.closes(s):
		return false
	}
	if effect != Ignored {
		newest.Applied = s.Position
	}
	k.settleWaiting(Unchanged) // if several waited, the newest counts
	newest.Effect = effect
	return applied
}

// apply returns the effect of a record that took effect.
func (k *keyHistory) apply(e *KeyEvent, s Step, change *RowChange) Effect {
	for _, d := range s.Problems {
		if d.Key != k.key {
			continue
		}
		reason := d.Reason
		if d.Field != "" {
			reason = d.Field + ": " + reason
		}
		e.Problems = append(e.Problems, reason)
	}
	if change != nil {
		e.Fields = readChange(*change).Fields
	}
	switch {
	case k.offered.IsZero():
		return Gone
	case change != nil:
		return Served
	}
	if _, held := k.replay.Content().Get(k.row); held && len(e.Problems) == 0 {
		return Unchanged // the value is good, and was served already
	}
	return Refused
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

// indirect adds an event for a change that no record of the key caused: a listing
// without the key, or a segment.
func (k *keyHistory) indirect(s Step, change *RowChange) {
	e := k.add(s, Renewed)
	e.Applied, e.Fields = s.Position, readChange(*change).Fields
	if change.After == nil {
		e.Effect = Gone
	}
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
		e := k.add(s, Covered)
		e.Applied, e.Overlay = s.Position, id
		if was {
			e.Effect = Uncovered
		}
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

// Shards returns the shards whose objects the newest version may have.
func Shards(ctx context.Context, p *Past) (all []ident.Shard, err error) {
	for m, err := range p.Versions.History(ctx) {
		if err != nil {
			return nil, err
		}
		for _, w := range m.GetWatermark() {
			all = append(all, ident.Shard{Source: w.GetSource(), Instance: w.GetInstance()})
		}
		break
	}
	return all, nil
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
	for key := range Offered(r.Content()) {
		keys[key] = struct{}{}
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
