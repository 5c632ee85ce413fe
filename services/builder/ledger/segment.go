package ledger

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// BaseError says that the base of a segment could not be read. Err is
// store.ErrNotFound if the bus does not have it.
type BaseError struct {
	Base   ident.Hash
	Record uint64 // the segment
	Err    error
}

func (e *BaseError) Error() string {
	return fmt.Sprintf("base %s of the segment in record %d: %v", e.Base, e.Record, e.Err)
}

// Unwrap returns Err.
func (e *BaseError) Unwrap() error { return e.Err }

func readBase(ctx context.Context, blobs store.Blobs, h ident.Hash) (iter.Seq2[string, []byte], error) {
	b, err := blobs.GetBlob(ctx, h)
	if err != nil {
		return nil, err
	}
	c, err := store.DecodeCheckpoint(b)
	if err != nil {
		return nil, err
	}
	rows, err := store.ReadRows(ctx, blobs, c)
	if err != nil {
		return nil, err
	}
	return Pairs(slices.Values(rows)), nil
}

// WriteBase makes rows durable, as the base of a segment that follows Position,
// and returns the hash that names it: zero if there are no rows.
func (l *Ledger) WriteBase(ctx context.Context, rows iter.Seq2[string, []byte]) (ident.Hash, error) {
	var all []store.Row
	for k, v := range rows {
		all = append(all, store.Row{Key: k, Value: v})
	}
	if len(all) == 0 {
		return ident.Hash{}, nil
	}
	c, err := store.WriteRows(ctx, l.blobs, all, l.Position())
	var b []byte
	if err == nil {
		b, err = store.EncodeCheckpoint(c)
	}
	var h ident.Hash
	if err == nil {
		h, err = l.blobs.PutBlob(ctx, b)
	}
	if err != nil {
		return ident.Hash{}, fmt.Errorf("write the base of a segment: %w", err)
	}
	return h, nil
}

// ErrNoSegment says that the newest record under events.SegmentSubject, or the
// record that it names as the beginning of its epoch, is no segment.
var ErrNoSegment = errors.New("is no segment")

// NewestEpoch returns the segment that began the newest epoch of a log, and its
// record. Without any segment on the log it returns nil. If the record has
// expired, and a later segment of the epoch has not, it returns that segment and
// a zero record: no fold can resume there. Refused records do not count.
func NewestEpoch(ctx context.Context, log events.Reader) (*events.Segment, events.Record, error) {
	rec, err := lastSegment(ctx, log)
	if errors.Is(err, events.ErrNotFound) {
		return nil, events.Record{}, nil
	}
	if err != nil {
		return nil, events.Record{}, fmt.Errorf("last segment of the log: %w", err)
	}
	seg, ok := rec.Event.Body.(*events.Segment)
	if ok && seg.EpochRecord != 0 {
		rec, err = log.Get(ctx, seg.EpochRecord)
		if errors.Is(err, events.ErrNotFound) {
			return seg, events.Record{}, nil
		}
		if err != nil {
			return nil, events.Record{}, fmt.Errorf("record %d, which began epoch %d: %w", seg.EpochRecord, seg.Epoch, err)
		}
		seg, ok = rec.Event.Body.(*events.Segment)
	}
	if !ok {
		return nil, events.Record{}, fmt.Errorf("record %d under %s %w", rec.Seq, events.SegmentSubject, errors.Join(ErrNoSegment, rec.Err))
	}
	return seg, rec, nil
}

// lastSegment returns the newest record under events.SegmentSubject that is not
// refused, or events.ErrNotFound.
func lastSegment(ctx context.Context, log events.Reader) (events.Record, error) {
	last, err := log.Last(ctx, events.SegmentSubject)
	if err != nil || !errors.Is(last.Err, events.ErrRefused) {
		return last, err
	}
	found := false
	for rec, err := range log.Under(ctx, events.SegmentSubject) {
		if err != nil {
			return events.Record{}, err
		}
		if !errors.Is(rec.Err, events.ErrRefused) {
			last, found = rec, true
		}
	}
	if !found {
		return events.Record{}, events.ErrNotFound
	}
	return last, nil
}
