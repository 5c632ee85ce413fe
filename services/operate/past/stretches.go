package past

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"strings"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/store"
)

const (
	// longLog is the number of records from which on Of folds only the stretches of the log
	// that are about its keys.
	longLog = 50_000
	// leap is the number of records that are folded rather than passed by means of a
	// checkpoint: to restore one costs about as much.
	leap = 2000
)

// span is a part of the log, from a record to a record.
type span struct{ from, to uint64 }

// finder is a log that finds records under subjects without decoding the others.
type finder interface {
	Find(ctx context.Context, subjects ...events.Subject) iter.Seq2[events.Raw, error]
}

// under yields the records of a log under some subjects.
func under(ctx context.Context, log Log, bounds events.Bounds, subjects []events.Subject) iter.Seq2[events.Raw, error] {
	if f, ok := log.(finder); ok {
		return f.Find(ctx, subjects...)
	}
	return func(yield func(events.Raw, error) bool) {
		for r, err := range log.Raw(ctx, bounds.First, bounds.Last) {
			if err == nil && !slices.Contains(subjects, r.Subject) {
				continue
			}
			if !yield(r, err) || err != nil {
				return
			}
		}
	}
}

// survey is what the chain and the subjects of the log say of some keys: where the log must be
// folded to know all that happened to them, and from where it can be.
type survey struct {
	wanted      map[string]bool // the rows of the keys
	chain       []link          // oldest first
	checkpoints []*snapshotv1.Checkpoint
	records     []events.Record // about the keys, segments and overlays, oldest first
	control     []uint64        // the records of the sessions of their shards, oldest first
	stretches   []section
}

// look surveys a log.
func look(ctx context.Context, p *Past, bounds events.Bounds, keys []ident.Key) (*survey, error) {
	s := &survey{wanted: map[string]bool{}}
	subjects := []events.Subject{events.SegmentSubject, events.BuilderOverlaySubject, events.OperatorOverlaySubject}
	var control []events.Subject
	for _, k := range keys {
		s.wanted[k.Row()] = true
		subjects = append(subjects, events.ObjectSubject(k))
		control = append(control, events.ControlSubject(k.Shard()))
	}
	if err := s.versions(ctx, p); err != nil {
		return nil, err
	}
	for r, err := range under(ctx, p.Log, bounds, slices.Concat(subjects, control)) {
		if err != nil {
			return nil, err
		}
		if slices.Contains(control, r.Subject) {
			s.control = append(s.control, r.Seq)
			continue
		}
		rec := r.Record()
		if o, ok := rec.Event.Body.(*events.Object); ok && !slices.Contains(keys, o.Key) {
			continue
		}
		s.records = append(s.records, rec)
		s.stretches = append(s.stretches, section{span: span{r.Seq, r.Seq}})
	}
	end := bounds.First
	if len(s.chain) > 0 {
		end = s.chain[len(s.chain)-1].version.Seq + 1
	}
	s.stretches = append(s.stretches, section{span: span{end, bounds.Last}}) // what no version has yet
	slices.SortFunc(s.stretches, func(a, b section) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(b.to, a.to)) })
	return s, nil
}

// versions reads the chain: its checkpoints, and the versions that change one of some rows or an
// overlay, or that may.
func (s *survey) versions(ctx context.Context, p *Past) error {
	all := func(m *store.Manifest) bool { return int(m.GetChangeCount()) == len(m.GetChanges()) }
	changed := func(m *store.Manifest) bool {
		return !all(m) || slices.ContainsFunc(m.GetChanges(), func(c *snapshotv1.KeyChange) bool { return s.wanted[c.GetKey()] || overlaid(c) })
	}
	var touched []*store.Manifest
	history := func(yield func(*store.Manifest, error) bool) {
		for m, err := range p.Versions.History(ctx) {
			if err == nil {
				if c := m.GetFoldCheckpoint(); c != nil {
					s.checkpoints = append(s.checkpoints, c)
				}
				if changed(m) {
					touched = append(touched, m)
				}
			}
			if !yield(m, err) {
				return
			}
		}
	}
	var err error
	if s.chain, err = links(history); err != nil {
		return err
	}
	slices.Reverse(touched) // oldest first, as chain
	last := uint64(0)       // of the version before
	for _, l := range s.chain {
		var is *store.Manifest
		if len(touched) > 0 && store.VersionOf(touched[0].GetVersion()) == l.version {
			is, touched = touched[0], touched[1:]
		}
		follows := last != 0 && l.previous.Seq == last
		if part := (section{span{last + 1, l.version.Seq}, is}); is != nil || !follows {
			if !follows || !all(is) {
				part.version = nil
			}
			s.stretches = append(s.stretches, part)
		}
		last = l.version.Seq
	}
	return nil
}

// overlaid reports whether a change is that of an overlay.
func overlaid(c *snapshotv1.KeyChange) bool {
	return strings.HasPrefix(c.GetKey(), ident.OverlayPrefix)
}

// stretched passes the steps of the log that are about some histories to them.
func (s *survey) stretched(ctx context.Context, p *Past, bounds events.Bounds, r *Replay, histories []*keyHistory, progress Progress, leap uint64) error {
	waiting := func() bool {
		return slices.ContainsFunc(histories, func(k *keyHistory) bool { return len(k.waiting) > 0 })
	}
	step := func(st Step) error {
		for _, k := range histories {
			k.step(st)
		}
		return nil
	}
	passed := uint64(0) // of the stretches that were not folded
	for _, part := range s.stretches {
		at := r.Position().Seq
		for waiting() && at < min(part.from, bounds.Last+1)-1 {
			if err := r.To(ctx, at+1, nil, step); err != nil {
				return err
			}
			at = r.Position().Seq
		}
		if part.to <= max(at, passed) {
			continue
		}
		if !waiting() && part.from > max(at, passed) && s.passes(part, histories) {
			passed = part.to
			continue
		}
		if before := max(part.from, at+1, passed+1) - 1; before > at {
			var err error
			if r, err = s.goTo(ctx, p, bounds, r, before, leap); err != nil {
				return err
			}
			for _, k := range histories {
				k.replay = r
				k.offered, _ = r.Fold().Offered(k.key)
			}
		}
		if err := r.To(ctx, part.to, nil, step); err != nil {
			return err
		}
		for _, k := range histories {
			k.served, _ = r.Content().Get(k.row)
		}
		progress.show(part.to-bounds.First, bounds.Last+1-bounds.First)
	}
	return nil
}

// passes reports whether a stretch needs no fold, and adds its event to its history.
func (s *survey) passes(part section, histories []*keyHistory) bool {
	rec, o, plain := s.plain(part)
	if !plain {
		return false
	}
	i := slices.IndexFunc(histories, func(k *keyHistory) bool { return k.key == o.Key })
	return histories[i].plain(rec, o, part.version.GetVersion().GetEpoch())
}

// goTo returns a replay at a record, from r or from a nearer checkpoint.
func (s *survey) goTo(ctx context.Context, p *Past, bounds events.Bounds, r *Replay, seq, leap uint64) (*Replay, error) {
	if at := r.Position().Seq; seq-at > leap {
		nearer, err := s.nearest(ctx, p, bounds, at, seq)
		if err != nil {
			return nil, err
		}
		r = cmp.Or(nearer, r)
	}
	return r, r.To(ctx, seq, nil, nil)
}

// nearest returns a replay at the checkpoint that is nearest before a record, and behind another
// one; nil: there is none.
func (s *survey) nearest(ctx context.Context, p *Past, bounds events.Bounds, after, before uint64) (*Replay, error) {
	for _, c := range s.checkpoints { // newest first
		f, err := p.restore(ctx, c, bounds, func(at uint64) bool { return after < at && at <= before })
		if err != nil {
			return nil, err
		}
		if f != nil {
			return newReplay(p, f), nil
		}
	}
	return nil, nil
}
