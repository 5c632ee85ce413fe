package faultsim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/events"
	"meshlog.dev/events/archive"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/store"
)

// forger appends what the key of a watcher or of a frontend can append to the log: any
// content under the subjects of its shard, and messages that the server writes to any
// subject as an answer (BUS-1, BUS-2). It has dice of its own.
type forger struct {
	rnd *rand.Rand
	// refused holds the records that must be refused.
	refused map[ident.Hash]bool
}

// farEpoch is greater than any epoch that a segment may name, also in a log that is
// restored today.
const farEpoch = math.MaxUint64

// forge appends one record, or reports an epoch that does not exist.
func (s *sim) forge() {
	rnd := s.forger.rnd
	if rnd.IntN(8) == 0 {
		epoch := []uint64{farEpoch, ident.MaxEpoch(s.time()) + 3600}[rnd.IntN(2)] // above the clock of every builder
		s.note("forged: a report of epoch %d", epoch)
		s.report("a forger", &store.MismatchError{Have: ident.Position{Epoch: epoch, Seq: 1}})
		return
	}
	if s.without["refuse"] {
		e := s.forgedEvent()
		data, err := events.Encode(e)
		if err != nil {
			panic(err)
		}
		subject, _ := events.SubjectOf(e)
		s.note("forged, and not refused: record %d: %s", s.log.AppendRaw(subject, data), describe([]events.Event{e}))
		return
	}
	raw := s.forged()
	var seq uint64
	if raw.Refused != "" {
		seq = s.log.AppendForeign(raw.Subject, raw.Data)
	} else {
		seq = s.log.AppendRaw(raw.Subject, raw.Data)
	}
	rec, err := s.log.Get(context.Background(), seq)
	if err != nil {
		panic(err)
	}
	s.forger.refused[rec.Hash] = true
	s.note("forged: record %d: %v", seq, rec.Err)
}

// forged returns the subject and the bytes of a record that must be refused. Refused
// is set if a server writes it.
func (s *sim) forged() events.Raw {
	rnd := s.forger.rnd
	e := s.forgedEvent()
	data, err := events.Encode(e)
	if err != nil {
		panic(err)
	}
	own, err := events.SubjectOf(e)
	if err != nil {
		panic(err)
	}
	subjects := []events.Subject{
		events.SegmentSubject, events.BuilderOverlaySubject, events.OperatorOverlaySubject,
		events.ControlSubject(shardOf(0)), events.ControlSubject(shardOf(1)), events.ObjectSubject(keyOf(0, config, 0)), own,
	}
	raw := events.Raw{Subject: subjects[rnd.IntN(len(subjects))], Data: data}
	g, _ := e.Body.(*events.Segment)
	switch {
	case rnd.IntN(3) == 0, raw.Subject == own && (g == nil || g.Epoch != farEpoch):
		raw.Refused = "a server made it"
		if rnd.IntN(8) == 0 {
			raw.Data = []byte("{}") // of an answer that is no copy
		}
	}
	return raw
}

// forgedEvent returns what an attacker would have the log say: a copy of an earlier
// record, or a record that would do harm.
func (s *sim) forgedEvent() events.Event {
	rnd := s.forger.rnd
	id := fmt.Sprint("forged-", rnd.Uint64())
	n := rnd.IntN(sources)
	key := keyOf(n, config, rnd.IntN(perKind))
	switch rnd.IntN(7) {
	case 0:
		return events.Event{ID: id, Body: &events.Segment{Epoch: []uint64{farEpoch, 5000}[rnd.IntN(2)], Build: []string{buildA, buildB, "evil"}[rnd.IntN(3)]}}
	case 1:
		return events.Event{ID: id, Body: &events.Begin{Shard: shardOf(n), Session: "forged", Holder: "evil"}}
	case 2:
		return events.Event{ID: id, Body: &events.Alive{Shard: shardOf(n), Session: s.lastSession(n), Low: 1, Listed: events.AllBuckets(), Ends: rnd.IntN(2) == 0}}
	case 3:
		o := &events.Object{Key: key, Op: events.Delete, Session: s.lastSession(n), Pseq: 1 + uint64(rnd.IntN(30)), Low: 1}
		if rnd.IntN(2) == 0 {
			o.Op, o.Value = events.Put, s.newValue(goodValue).payload(key)
		}
		return events.Event{ID: id, Body: o}
	case 4:
		v := ident.OverlayValue{Key: key, Base: hashOf(key, s.sources[n].truth[key])}
		return events.Event{ID: id, Body: &events.Overlay{ID: id, Kind: []ident.OverlayKind{ident.Rollback, ident.Hold}[rnd.IntN(2)], Reason: "evil", Values: []ident.OverlayValue{v}}}
	case 5:
		if head := s.head(); head != nil && len(head.holds) > 0 {
			return events.Event{ID: id, Body: &events.Overlay{ID: head.holds[0].id, Remove: true}}
		}
	}
	records := s.records()
	if r := records[rnd.IntN(len(records))]; r.Err == nil {
		return r.Event
	}
	return events.Event{ID: id, Body: &events.Begin{Shard: shardOf(n), Session: "forged", Holder: "evil"}}
}

// lastSession returns the session of the shard's last begin.
func (s *sim) lastSession(n int) string {
	session := "forged"
	for _, r := range s.records() {
		if b, ok := r.Event.Body.(*events.Begin); ok && b.Shard == shardOf(n) {
			session = b.Session
		}
	}
	return session
}

// checkForged checks SIM-9: exactly the forged records are refused, and each keeps its
// position.
func (s *sim) checkForged() {
	for _, r := range s.records() {
		if refused := errors.Is(r.Err, events.ErrRefused); refused != s.forger.refused[r.Hash] {
			fail("SIM-9", "record %d is forged: %t, and refused: %t (%v)", r.Seq, s.forger.refused[r.Hash], refused, r.Err)
		}
	}
	dir, err := os.MkdirTemp("", "faultsim")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // what is left is a temporary file
	path := dir + "/archive"
	if err := export(context.Background(), s, path); err != nil {
		fail("SIM-9", "the log cannot be exported: %v", err)
	}
	a, err := archive.Open(context.Background(), path)
	if err != nil {
		fail("SIM-9", "the archive: %v", err)
	}
	defer a.Close()
	if err := s.sameLog(a, true); err != nil {
		fail("SIM-9", "the archive differs: %v", err)
	}
}

// readLog is a log that can be read in order.
type readLog interface {
	events.Reader
	events.RawReader
}

// sameLog returns an error unless another log holds the records of s: the same events
// and verdicts, and, if the log kept the times, also the same hashes. Both fold to the
// same content at every record.
func (s *sim) sameLog(other readLog, times bool) error {
	ctx := context.Background()
	want := s.records()[len(s.gone):]
	build := s.head().manifest.GetBuild()
	a, b := fold.New(build, s.judge(build)), fold.New(build, s.judge(build))
	i := 0
	for raw, err := range other.Raw(ctx, uint64(len(s.gone))+1, s.last()) {
		if err != nil {
			return err
		}
		w, got := want[i], raw.Record()
		i++
		switch {
		case got.Seq != w.Seq || errors.Is(got.Err, events.ErrRefused) != errors.Is(w.Err, events.ErrRefused) || (got.Err == nil) != (w.Err == nil):
			return fmt.Errorf("record %d: %w, want %w", w.Seq, got.Err, w.Err)
		case times && got.Hash != w.Hash:
			return fmt.Errorf("record %d has another hash", w.Seq)
		}
		if diff := cmp.Diff(w.Event, got.Event); diff != "" {
			return fmt.Errorf("record %d (-want +got):\n%s", w.Seq, diff)
		}
		if len(s.gone) > 0 && a.Position().Seq == 0 && !beginsEpoch(w) {
			continue // no fold begins here
		}
		for f, rec := range map[*fold.Fold]events.Record{a: w, b: got} {
			if _, _, err := f.Apply(rec, s.baseOf(f, rec)); err != nil {
				return fmt.Errorf("record %d: %w", w.Seq, err)
			}
		}
	}
	if i != len(want) {
		return fmt.Errorf("%d records, want %d", i, len(want))
	}
	if rootOf(a) != rootOf(b) {
		return fmt.Errorf("root %.12s, want %.12s", rootOf(b), rootOf(a))
	}
	return nil
}

func beginsEpoch(r events.Record) bool {
	g, ok := r.Event.Body.(*events.Segment)
	return ok && g.EpochRecord == 0
}

func rootOf(f *fold.Fold) ident.Hash { return momentOf(f).root() }

// TestForged runs schedules with forged records and records that a server made
// (BUS-1, BUS-2).
func TestForged(t *testing.T) {
	if *faults != "" {
		return // TestSim runs the faults that the flag names
	}
	simulate(t, *seeds, func(uint64) string { return "forge" })
}
