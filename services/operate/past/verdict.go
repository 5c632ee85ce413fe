package past

import (
	"context"
	"errors"

	"meshlog.dev/events"
	"meshlog.dev/services/mesh/fold"
)

// Verdicts returns what a fold of the log finds about the authors of records, which are in
// the order of the log: of those with a signature, and of those that are void for want of
// one. It folds no record if operators have appended none of them.
func Verdicts(ctx context.Context, p *Past, recs []events.Record, progress Progress) (map[uint64]fold.Verdict, error) {
	wanted := map[uint64]bool{}
	var first, last uint64
	for _, r := range recs {
		if fold.OfOperators(r.Event) {
			wanted[r.Seq] = true
			if last = r.Seq; first == 0 {
				first = r.Seq
			}
		}
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	replay, err := Begin(ctx, p, first-1)
	if errors.Is(err, ErrTooOld) { // of the first ones it is not known
		replay, err = BeginAtFloor(ctx, p)
	}
	if err != nil || replay.Position().Seq >= last {
		return nil, err
	}
	found := map[uint64]fold.Verdict{}
	err = replay.To(ctx, last, progress, func(s Step) error {
		if wanted[s.Record.Seq] {
			found[s.Record.Seq] = s.Verdict
		}
		return nil
	})
	return found, err
}

// Author returns who has appended a record, for people.
func Author(actor string, v fold.Verdict) string {
	switch {
	case v.Void != "":
		return actor + " (not verified: " + v.Void + ")"
	case v.Operator != "":
		return v.Operator + " (verified)"
	}
	return actor
}
