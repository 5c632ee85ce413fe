package past

import (
	"context"
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// Causes finds the newest record that changed each row between two versions. It
// reads the chain only as far back as necessary.
func Causes(ctx context.Context, p *Past, from, to ident.Position, rows []string) (map[string]uint64, error) {
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
		if v.Compare(from) <= 0 || len(missing) == 0 {
			break
		}
		for _, c := range m.GetChanges() {
			if missing[c.GetKey()] {
				seqs[c.GetKey()] = c.GetSeq()
				delete(missing, c.GetKey())
			}
		}
	}
	return seqs, nil
}

// Carrier returns the newest record up to seq that put this value of an object, or nil if the
// log has none. It finds what versions that are no longer kept have changed.
func Carrier(ctx context.Context, p *Past, k ident.Key, v ident.Value, seq uint64) (*events.Record, error) {
	want := events.ContentHash(k, v)
	var found *events.Record
	err := Backwards(ctx, p, seq, func(r events.Record) bool {
		o, ok := r.Event.Body.(*events.Object)
		if ok && o.Key == k && o.Op == events.Put && events.ContentHash(k, o.Value) == want {
			found = &r
		}
		return found == nil
	})
	return found, err
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
