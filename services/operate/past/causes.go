package past

import (
	"context"
	"math"
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// Causes finds the newest record that changed each row between two versions. It
// reads the chain only as far back as necessary.
func Causes(ctx context.Context, p *Past, from, to ident.Position, rows []string) (map[string]uint64, error) {
	return causes(ctx, p, from, to, rows, math.MaxInt)
}

// causes is Causes that reads so many manifests at most.
func causes(ctx context.Context, p *Past, from, to ident.Position, rows []string, most int) (map[string]uint64, error) {
	if to.Less(from) {
		from, to = to, from
	}
	missing := make(map[string]bool, len(rows))
	for _, row := range rows {
		missing[row] = true
	}
	seqs := map[string]uint64{}
	for m, err := range p.Versions.History(ctx) {
		if err != nil {
			return nil, err
		}
		v := store.VersionOf(m.GetVersion())
		if to.Less(v) {
			continue
		}
		if v.Compare(from) <= 0 || len(missing) == 0 || most == 0 {
			break
		}
		most--
		for _, c := range m.GetChanges() {
			if missing[c.GetKey()] {
				seqs[c.GetKey()] = c.GetSeq()
				delete(missing, c.GetKey())
			}
		}
	}
	return seqs, nil
}

// nearManifests is how many manifests Carriers reads before it looks for a value on the log, if
// the log finds records by their subjects.
const nearManifests = 2048

// Carriers returns, of each key, the newest record up to a position that put the value which
// the key has there; none if neither the chain nor the log has it any more.
func Carriers(ctx context.Context, p *Past, at ident.Position, values map[ident.Key]ident.Value) (map[ident.Key]*events.Record, error) {
	found := make(map[ident.Key]*events.Record, len(values))
	if p.Log == nil || len(values) == 0 {
		return found, nil
	}
	_, finds := p.Log.(finder)
	most := math.MaxInt
	if finds {
		most = nearManifests
	}
	named := func(most int) error {
		var rows []string
		for k := range values {
			if found[k] == nil {
				rows = append(rows, k.Row())
			}
		}
		seqs, err := causes(ctx, p, ident.Position{}, at, rows, most)
		for k := range values {
			if seq := seqs[k.Row()]; seq != 0 && err == nil {
				if r, err := p.Log.Get(ctx, seq); err == nil {
					found[k] = &r
				}
			}
		}
		return err
	}
	if err := named(most); err != nil {
		return nil, err
	}
	if err := carriedOnLog(ctx, p, at.Seq, values, found, finds); err != nil {
		return nil, err
	}
	if finds && len(found) < len(values) {
		return found, named(math.MaxInt)
	}
	return found, nil
}

// carriedOnLog adds the newest record up to seq of each value that has none.
func carriedOnLog(ctx context.Context, p *Past, seq uint64, values map[ident.Key]ident.Value, found map[ident.Key]*events.Record, finds bool) error {
	hashes := map[ident.Key]ident.Hash{}
	var subjects []events.Subject
	for k, v := range values {
		if found[k] == nil {
			hashes[k] = events.ContentHash(k, v)
			subjects = append(subjects, events.ObjectSubject(k))
		}
	}
	if len(hashes) == 0 {
		return nil
	}
	carries := func(r events.Record) (k ident.Key, is bool) {
		o, ok := r.Event.Body.(*events.Object)
		return keyOf(o), ok && o.Op == events.Put && r.Seq <= seq && hashes[o.Key] == events.ContentHash(o.Key, o.Value)
	}
	if !finds {
		return Backwards(ctx, p, seq, func(r events.Record) bool {
			if k, is := carries(r); is && found[k] == nil {
				found[k] = &r
				delete(hashes, k)
			}
			return len(hashes) > 0
		})
	}
	bounds, err := p.Log.Bounds(ctx)
	if err != nil {
		return err
	}
	for raw, err := range under(ctx, p.Log, bounds, subjects) {
		if err != nil {
			return err
		}
		r := raw.Record()
		if k, is := carries(r); is {
			found[k] = &r
		}
	}
	return nil
}

func keyOf(o *events.Object) ident.Key {
	if o == nil {
		return ident.Key{}
	}
	return o.Key
}

// Backwards calls each with the records of the log from seq on down, as long as each returns
// true. It reads them in stretches.
func Backwards(ctx context.Context, p *Past, seq uint64, each func(events.Record) bool) error {
	if p.Log == nil {
		return nil
	}
	bounds, err := p.Log.Bounds(ctx)
	if err != nil {
		return err
	}
	for last := min(seq, bounds.Last); last >= bounds.First && last > 0; {
		first := max(bounds.First, last-min(last, stretch)+1)
		var some []events.Record
		for rec, err := range Records(ctx, p.Log, first, last) {
			if err != nil {
				return err
			}
			some = append(some, rec)
		}
		for _, rec := range slices.Backward(some) {
			if !each(rec) {
				return nil
			}
		}
		last = first - 1
	}
	return nil
}

// stretch is how many records Backwards reads at once.
const stretch = 1024
