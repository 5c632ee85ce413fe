package events

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"meshlog.dev/proto/ident"
)

// ErrRefused reports that no publisher of meshlog appends such a record under its
// subject. A client wrote content of another source or role under its own subject, or let a
// server write there.
var ErrRefused = errors.New("refused")

// Raw is a record as its log keeps it.
type Raw struct {
	Seq     uint64
	Time    time.Time // the server's clock
	Subject Subject
	Data    []byte // an encoded Event, or other bytes; callers must not change it
	// Refused is the reason why the driver found that no publisher of meshlog sent
	// the record, although its bytes may be an Event; empty: it found none. Copies
	// of a log keep it, because only the first log has what the driver looked at.
	Refused string
}

// Record decodes r. All drivers make their records so, and from Seq, Time,
// Subject, Data and Refused alone: the same record has the same meaning in every
// log.
//
// The record has an Err if Decode refuses the bytes. Err wraps ErrRefused if
// Refused is set, if the event belongs under another subject, or if it names an
// epoch above ident.MaxEpoch of Time.
func (r Raw) Record() Record {
	rec := Record{Seq: r.Seq, Time: r.Time.UTC(), Hash: RecordHash(r.Data, r.Time)}
	if r.Refused != "" {
		rec.Err = fmt.Errorf("%w: under subject %s: %s", ErrRefused, r.Subject, r.Refused)
		return rec
	}
	e, err := Decode(r.Data)
	if err == nil {
		err = r.belongs(e)
	}
	if err == nil && e.Signature != nil {
		e.Signature.verifiable(r)
	}
	if err != nil {
		rec.Err = err
		return rec
	}
	rec.Event = e
	return rec
}

// belongs returns an error unless e may be the record r.
func (r Raw) belongs(e Event) error {
	want, err := SubjectOf(e)
	if err != nil {
		return err
	}
	if want != r.Subject {
		return fmt.Errorf("%w: event %q is under subject %s and belongs under %s", ErrRefused, e.ID, r.Subject, want)
	}
	g, ok := e.Body.(*Segment)
	if limit := ident.MaxEpoch(r.Time); ok && max(g.Epoch, g.Head.Epoch) > limit {
		return fmt.Errorf("%w: event %q names epoch %d; a segment of %s may name %d at most",
			ErrRefused, e.ID, max(g.Epoch, g.Head.Epoch), r.Time.UTC().Format(time.RFC3339), limit)
	}
	return nil
}

// Refusal returns the reason why Record refuses r, for a copy that keeps it in
// Refused: a log that gives r a new Time would judge an epoch anew. It is empty
// if Record does not refuse r.
func (r Raw) Refusal() string {
	if r.Refused != "" {
		return r.Refused
	}
	if err := r.Record().Err; errors.Is(err, ErrRefused) {
		return strings.TrimPrefix(err.Error(), ErrRefused.Error()+": ")
	}
	return ""
}
