package suite

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
)

var readTests = []test{
	{"an empty log has no records", testEmpty},
	{"last under a subject", testLast},
	{"expired records are not found", testTrimmed},
	{"bytes that are not an event make a record with an error", testUndecodable},
	{"a record of another writer is refused (BUS-1)", testForged},
	{"a message that no publisher sent is refused (BUS-2)", testForeign},
	{"all records under a subject", testUnder},
	{"raw records equal the decoded ones", testRaw},
	{"a cancelled context ends a read", testReadCancelled},
	{"a closed log returns no records", testReadClosed},
}

func testEmpty(t *testing.T, d Driver) {
	wantBounds(t, d.Log, 1, 0)
	for _, seq := range []uint64{0, 1, 1 << 62} {
		_, err := d.Log.Get(t.Context(), seq)
		wantErr(t, "get", err, events.ErrNotFound)
	}
	_, err := d.Log.Last(t.Context(), events.SegmentSubject)
	wantErr(t, "last", err, events.ErrNotFound)
}

func testLast(t *testing.T, d Driver) {
	a, b := puts("a", 3, "x"), puts("b", 2, "y")
	mustAppend(t, d.Log, a...)
	mustAppend(t, d.Log, b...)
	for seq, e := range map[uint64]events.Event{3: a[2], 5: b[1]} {
		r, err := d.Log.Last(t.Context(), subjectOf(t, e))
		must(t, err)
		wantRecord(t, r, seq, e)
	}
	_, err := d.Log.Last(t.Context(), subjectOf(t, put("c", 1, "z")))
	wantErr(t, "last under a subject without records", err, events.ErrNotFound)
}

func testTrimmed(t *testing.T, d Driver) {
	gone, kept := puts("a", 3, "gone"), puts("b", 3, "kept")
	mustAppend(t, d.Log, gone...)
	mustAppend(t, d.Log, kept...)
	d.Trim(4)
	wantBounds(t, d.Log, 4, 6)
	_, err := d.Log.Get(t.Context(), 3)
	wantErr(t, "get an expired record", err, events.ErrNotFound)
	_, err = d.Log.Last(t.Context(), subjectOf(t, gone[0]))
	wantErr(t, "last of an expired subject", err, events.ErrNotFound)
	wantAt(t, d.Log, 4, kept[0])

	// Sequences continue. A subject without remaining records counts as never written.
	wantNoAppend(t, d.Log, events.ErrConflict, onSubject(t, gone[0], 3), put("c", 1, "gone"))
	appendFenced(t, d.Log, 7, onSubject(t, gone[0], 0), puts("d", 1, "gone")...)
	appendFenced(t, d.Log, 8, onLog(7), puts("e", 1, "x")...)
}

func testUndecodable(t *testing.T, d Driver) {
	a := puts("a", 2, "x")
	mustAppend(t, d.Log, a[0])
	d.AppendRaw(subjectOf(t, a[0]), []byte("no event"))
	mustAppend(t, d.Log, a[1])

	r, err := d.Log.Get(t.Context(), 2)
	must(t, err)
	if r.Seq != 2 || r.Err == nil || r.Event.Body != nil || r.Hash != events.RecordHash([]byte("no event"), r.Time) {
		t.Fatalf("record = %+v", r)
	}
	records := readTo(t, d.Log, 0, 3)
	wantRecord(t, records[0], 1, a[0])
	if records[1].Err == nil || records[1].Hash != r.Hash {
		t.Fatalf("followed: %+v, got: %+v", records[1], r)
	}
	wantRecord(t, records[2], 3, a[1])
}

// testForged publishes with the key of shard test/one what it may not say: only the
// subject is its own.
func testForged(t *testing.T, d Driver) {
	first, last := put("a", 1, "x"), put("a", 2, "x")
	own := subjectOf(t, first)
	ctl := events.ControlSubject(shard)
	other := ident.Shard{Source: "test", Instance: "two"}
	object := put("b", 1, "x")
	object.Body.(*events.Object).Key.Instance = other.Instance
	namespace := put("c", 1, "y")
	year := uint64(time.Now().Add(367 * 24 * time.Hour).Unix())
	forged := []struct {
		subject events.Subject
		event   events.Event
	}{
		{own, events.Event{ID: "f1", Body: &events.Segment{Epoch: math.MaxUint64, Build: "evil"}}},
		{ctl, events.Event{ID: "f2", Body: &events.Begin{Shard: other, Session: "s", Holder: "h"}}},
		{own, object},
		{own, namespace},
		{ctl, first},
		{own, events.Event{ID: "f6", Body: &events.Overlay{ID: "r", Kind: ident.Rollback, Values: []ident.OverlayValue{{Key: first.Body.(*events.Object).Key}}}}},
		{events.BuilderOverlaySubject, events.Event{ID: "f7", Body: &events.Overlay{ID: "r", Remove: true}}},
		{events.OperatorOverlaySubject, events.Event{ID: "f8", Body: &events.Overlay{ID: "r", Kind: ident.Quarantine, Remove: true}}},
		{events.SegmentSubject, events.Event{ID: "f9", Body: &events.Segment{Epoch: math.MaxUint64, Build: "b"}}},
		{events.SegmentSubject, events.Event{ID: "f10", Body: &events.Segment{Epoch: year, Build: "b"}}},
	}
	mustAppend(t, d.Log, first)
	for _, f := range forged {
		raw, err := events.Encode(f.event)
		must(t, err)
		d.AppendRaw(f.subject, raw)
	}
	mustAppend(t, d.Log, last)
	records := readTo(t, d.Log, 0, uint64(len(forged)+2))
	wantRecord(t, records[0], 1, first)
	wantRecord(t, records[len(records)-1], uint64(len(records)), last)
	for i, f := range forged {
		wantRefusedRecord(t, d.Log, records[i+1], uint64(i+2), f.subject)
	}
}

// testForeign has messages on the log that no publisher of meshlog sent, although
// their bytes and subjects agree.
func testForeign(t *testing.T, d Driver) {
	a := puts("a", 4, "x")
	mustAppend(t, d.Log, a[0])
	for _, e := range a[1:3] {
		raw, err := events.Encode(e)
		must(t, err)
		d.AppendForeign(subjectOf(t, e), raw)
	}
	mustAppend(t, d.Log, a[3])
	records := readTo(t, d.Log, 0, 4)
	wantRecord(t, records[0], 1, a[0])
	wantRefusedRecord(t, d.Log, records[1], 2, subjectOf(t, a[1]))
	wantRefusedRecord(t, d.Log, records[2], 3, subjectOf(t, a[2]))
	wantRecord(t, records[3], 4, a[3])
	for r, err := range d.Log.Raw(t.Context(), 1, 4) {
		must(t, err)
		if foreign := r.Seq == 2 || r.Seq == 3; (r.Refused != "") != foreign {
			t.Errorf("record %d: refused %q", r.Seq, r.Refused)
		}
	}
}

// wantRefusedRecord checks a record that a follower returned, and the same record as the
// other reads return it.
func wantRefusedRecord(t *testing.T, l Log, followed events.Record, seq uint64, s events.Subject) {
	t.Helper()
	read := map[string]events.Record{"follow": followed}
	var err error
	read["get"], err = l.Get(t.Context(), seq)
	must(t, err)
	for r, err := range l.Under(t.Context(), s) {
		must(t, err)
		if r.Seq == seq {
			read["under"] = r
		}
	}
	for r, err := range l.Raw(t.Context(), seq, seq) {
		must(t, err)
		read["raw"] = r.Record()
	}
	if len(read) != 4 {
		t.Errorf("record %d is not found by every read", seq)
	}
	for how, r := range read {
		if r.Seq != seq || !errors.Is(r.Err, events.ErrRefused) || r.Event.Body != nil || r.Event.ID != "" || r.Hash != followed.Hash {
			t.Errorf("%s: record %d: %+v", how, seq, r)
		}
		if r.Err.Error() != followed.Err.Error() {
			t.Errorf("%s: record %d is refused for another reason: %v, %v", how, seq, r.Err, followed.Err)
		}
	}
}

func testUnder(t *testing.T, d Driver) {
	mustAppend(t, d.Log, puts("a", 3, "gone")...)
	mustAppend(t, d.Log, append(puts("b", 2, "x"), puts("c", 2, "y")...)...)
	mustAppend(t, d.Log, puts("d", 1, "x")...)
	d.Trim(5)
	for s, want := range map[events.Subject][]uint64{
		subjectOf(t, put("a", 1, "x")):    {5, 8},
		subjectOf(t, put("a", 1, "y")):    {6, 7},
		subjectOf(t, put("a", 1, "gone")): nil,
	} {
		var got []uint64
		for r, err := range d.Log.Under(t.Context(), s) {
			must(t, err)
			got = append(got, r.Seq)
		}
		if !slices.Equal(got, want) {
			t.Errorf("under %s: %v, want %v", s, got, want)
		}
	}
}

// testRaw compares the raw records of a log with those that it returns decoded.
func testRaw(t *testing.T, d Driver) {
	mustAppend(t, d.Log, puts("a", 3, "gone")...)
	want := append(puts("b", 600, "x"), put("c", 1, ""))
	must(t, d.Log.AppendEach(t.Context(), want[:600]))
	mustAppend(t, d.Log, want[600])
	d.AppendRaw("test.one.Thing.x", []byte("no event"))
	d.Trim(4)
	const first, last = 4, 3 + 600 + 1 + 1
	for _, part := range [][2]uint64{{first, last}, {10, 20}, {first, first}, {last, last}, {last + 1, last}} {
		at := part[0]
		for r, err := range d.Log.Raw(t.Context(), part[0], part[1]) {
			must(t, err)
			wantRaw(t, d.Log, r, at)
			at++
		}
		if at != part[1]+1 {
			t.Fatalf("from %d to %d: ended before %d", part[0], part[1], at)
		}
	}
	for r, err := range d.Log.Raw(t.Context(), first, last) { // a loop that stops gets no more records
		must(t, err)
		if r.Seq == first+2 {
			break
		}
	}
	for part, want := range map[[2]uint64]error{{1, last}: events.ErrGap, {first, last + 1}: events.ErrRewound} {
		var err error
		for _, err = range d.Log.Raw(t.Context(), part[0], part[1]) {
		}
		wantErr(t, fmt.Sprintf("from %d to %d", part[0], part[1]), err, want)
	}
}

// wantRaw compares raw with the record that the log returns at seq.
func wantRaw(t *testing.T, l Log, raw events.Raw, seq uint64) {
	t.Helper()
	r, err := l.Get(t.Context(), seq)
	must(t, err)
	got := raw.Record()
	if got.Seq != seq || got.Hash != r.Hash || !got.Time.Equal(r.Time) || (got.Err == nil) != (r.Err == nil) {
		t.Fatalf("raw is %+v, want %+v", got, r)
	}
	subject := events.Subject("test.one.Thing.x")
	if r.Err == nil {
		subject = subjectOf(t, r.Event)
	}
	if raw.Subject != subject {
		t.Fatalf("record %d has subject %s, want %s", raw.Seq, raw.Subject, subject)
	}
}

func testReadCancelled(t *testing.T, d Driver) {
	mustAppend(t, d.Log, put("a", 1, "x"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantNoReads(ctx, t, d.Log, context.Canceled)
}

func testReadClosed(t *testing.T, d Driver) {
	mustAppend(t, d.Log, put("a", 1, "x"))
	must(t, d.Log.Close())
	wantNoReads(t.Context(), t, d.Log, events.ErrClosed)
}

// wantNoReads checks that every kind of read returns the error want.
func wantNoReads(ctx context.Context, t *testing.T, l Log, want error) {
	t.Helper()
	_, err := l.Get(ctx, 1)
	wantErr(t, "get", err, want)
	_, err = l.Last(ctx, events.SegmentSubject)
	wantErr(t, "last", err, want)
	_, err = l.Bounds(ctx)
	wantErr(t, "bounds", err, want)
	_, err = l.Follow(ctx, 0, "")
	wantErr(t, "follow", err, want)
	for _, err = range l.Raw(ctx, 1, 1) {
	}
	wantErr(t, "raw", err, want)
	for _, err = range l.Under(ctx, subjectOf(t, put("a", 1, "x"))) {
	}
	wantErr(t, "under", err, want)
}
