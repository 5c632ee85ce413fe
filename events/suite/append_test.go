package suite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"meshlog.dev/events"
)

var appendTests = []test{
	{"sequences are dense", testDense},
	{"batches are whole and in order", testBatches},
	{"empty and oversized batches are refused", testNoBatch},
	{"invalid events are refused", testInvalid},
	{"fence on a subject", testFenceSubject},
	{"fence on the log", testFenceLog},
	{"fence on another subject", testFenceOther},
	{"fence on a generation", testFenceGeneration},
	{"a lost fence leaves nothing behind", testLostFence},
	{"a retry is a duplicate", testRetries},
	{"a retry is a duplicate after other writers appended", testLateRetries},
	{"append each appends every event once", testAppendEach},
	{"too large events are refused", testTooLarge},
	{"a full log refuses events", testFull},
	{"one of several racing writers wins", testRacers},
	{"a cancelled context ends an append", testAppendCancelled},
	{"a closed log refuses events", testAppendClosed},
}

func testDense(t *testing.T, d Driver) {
	want := puts("a", 5, "x")
	for i, e := range want {
		if seq := mustAppend(t, d.Log, e); seq != uint64(i+1) {
			t.Fatalf("append %d got seq %d", i+1, seq)
		}
	}
	wantLog(t, d.Log, want...)
}

func testBatches(t *testing.T, d Driver) {
	first := put("a", 1, "x")
	mustAppend(t, d.Log, first)
	batch := puts("b", 3, "y")
	batch[1] = put("b", 2, "z") // another subject than the rest of the batch
	if seq := mustAppend(t, d.Log, batch...); seq != 4 {
		t.Fatalf("the batch ends at %d, want 4", seq)
	}
	wantLog(t, d.Log, append([]events.Event{first}, batch...)...)

	largest := puts("c", events.MaxBatch, "x")
	if seq := mustAppend(t, d.Log, largest...); seq != 4+events.MaxBatch {
		t.Fatalf("the batch ends at %d", seq)
	}
}

func testNoBatch(t *testing.T, d Driver) {
	wantNoAppend(t, d.Log, events.ErrInvalid, events.Fence{})
	wantNoAppend(t, d.Log, events.ErrTooLarge, events.Fence{}, puts("a", events.MaxBatch+1, "x")...)
	must(t, d.Log.AppendEach(t.Context(), nil))
	wantLog(t, d.Log)
}

func testInvalid(t *testing.T, d Driver) {
	nameless := put("a", 1, "x")
	nameless.Body.(*events.Object).Key.Name = ""
	twice := append(puts("b", 2, "x"), put("b", 1, "x"))
	for _, batch := range [][]events.Event{{nameless}, {put("a", 2, "x"), nameless}, twice} {
		wantNoAppend(t, d.Log, events.ErrInvalid, events.Fence{}, batch...)
		wantErr(t, "append each", d.Log.AppendEach(t.Context(), batch), events.ErrInvalid)
	}
	wantLog(t, d.Log)
}

func testFenceSubject(t *testing.T, d Driver) {
	a := puts("a", 5, "x")
	appendFenced(t, d.Log, 1, onSubject(t, a[0], 0), a[0])
	mustAppend(t, d.Log, put("b", 1, "other"))
	appendFenced(t, d.Log, 3, onSubject(t, a[1], 1), a[1])
	appendFenced(t, d.Log, 6, onSubject(t, a[2], 3), a[2:]...)

	for _, seq := range []uint64{0, 1, 5, 7} {
		wantNoAppend(t, d.Log, events.ErrConflict, onSubject(t, a[0], seq), put("c", 1, "x"))
	}
	wantBounds(t, d.Log, 1, 6)
}

func testFenceLog(t *testing.T, d Driver) {
	a := puts("a", 4, "x")
	appendFenced(t, d.Log, 1, onLog(0), a[0])
	appendFenced(t, d.Log, 2, onLog(1), a[1])
	appendFenced(t, d.Log, 4, onLog(2), a[2:]...)
	for _, seq := range []uint64{0, 3, 5} {
		wantNoAppend(t, d.Log, events.ErrConflict, onLog(seq), puts("b", 2, "y")...)
	}
	wantBounds(t, d.Log, 1, 4)
}

// testFenceOther fences on a subject that the batch does not append to.
func testFenceOther(t *testing.T, d Driver) {
	guard := put("guard", 1, "guard")
	fence := onSubject(t, guard, 0)
	appendFenced(t, d.Log, 2, fence, puts("a", 2, "x")...)
	appendFenced(t, d.Log, 3, fence, put("b", 1, "x"))
	mustAppend(t, d.Log, guard)
	wantNoAppend(t, d.Log, events.ErrConflict, fence, put("c", 1, "x"))
	wantNoAppend(t, d.Log, events.ErrConflict, fence, puts("d", 2, "x")...)
	fence.Seq = 4
	appendFenced(t, d.Log, 6, fence, puts("d", 2, "x")...)
}

func testFenceGeneration(t *testing.T, d Driver) {
	before := d.Log.Generation()
	if before == 0 {
		t.Fatal("generation 0")
	}
	mustAppend(t, d.Log, put("a", 1, "x"))
	d.Reconnect()
	if d.Log.Generation() == before {
		t.Fatal("the generation outlives the connection")
	}
	batch := puts("b", 2, "x")
	for _, fence := range []events.Fence{{}, onSubject(t, batch[0], 1), onLog(1)} {
		fence.Generation = before
		wantNoAppend(t, d.Log, events.ErrReconnected, fence, batch...)
		wantNoAppend(t, d.Log, events.ErrReconnected, fence, batch[0])
	}
	wantBounds(t, d.Log, 1, 1)
	fence := onLog(1)
	fence.Generation = d.Log.Generation()
	appendFenced(t, d.Log, 3, fence, batch...)
}

func testLostFence(t *testing.T, d Driver) {
	mustAppend(t, d.Log, put("a", 1, "x"))
	for i, batch := range [][]events.Event{puts("b", 3, "x"), puts("c", 1, "x")} {
		wantNoAppend(t, d.Log, events.ErrConflict, onSubject(t, batch[0], 99), batch...)
		wantNoAppend(t, d.Log, events.ErrConflict, onLog(99), batch...)
		_, err := d.Log.Last(t.Context(), subjectOf(t, put("never", 1, "never")))
		wantErr(t, "last", err, events.ErrNotFound)
		wantBounds(t, d.Log, 1, uint64(1+3*i))
		// The refused append has not used up its ids.
		mustAppend(t, d.Log, batch...)
	}
	wantBounds(t, d.Log, 1, 5)
}

// testRetries appends the same batch again, as after a lost answer.
func testRetries(t *testing.T, d Driver) { retry(t, d, false) }

// testLateRetries retries after other writers have appended to the subject.
func testLateRetries(t *testing.T, d Driver) { retry(t, d, true) }

// retry appends in every combination of size and fence, and retries twice.
func retry(t *testing.T, d Driver, late bool) {
	for _, size := range []int{1, 3} {
		for kind := range 3 {
			name := fmt.Sprintf("%d events, fence %d", size, kind)
			batch := puts(name, size, name)
			bounds, err := d.Log.Bounds(t.Context())
			must(t, err)
			fence := []events.Fence{{}, onSubject(t, batch[0], 0), onLog(bounds.Last)}[kind]
			seq := bounds.Last + uint64(size)
			appendFenced(t, d.Log, seq, fence, batch...)
			last := seq
			if late {
				last = mustAppend(t, d.Log, puts(name+", others", 2, name)...)
			}
			for range 2 {
				ack, err := d.Log.Append(t.Context(), batch, fence)
				if err != nil || !ack.Duplicate || ack.Seq != 0 && ack.Seq != seq {
					t.Fatalf("%s: retry: %+v, %v; appended at %d", name, ack, err, seq)
				}
			}
			wantBounds(t, d.Log, 1, last)
		}
	}
}

func testAppendEach(t *testing.T, d Driver) {
	all := puts("a", 1200, "x")
	for range 2 { // the second time is a retry
		must(t, d.Log.AppendEach(t.Context(), all))
		wantBounds(t, d.Log, 1, 1200)
	}
	got := readTo(t, d.Log, 0, 1200)
	pseq := func(r events.Record) uint64 { return r.Event.Body.(*events.Object).Pseq }
	slices.SortFunc(got, func(a, b events.Record) int { return cmp.Compare(pseq(a), pseq(b)) })
	for i, r := range got {
		wantRecord(t, r, r.Seq, all[i])
	}
}

func testTooLarge(t *testing.T, d Driver) {
	fits := large("fits", 400<<10)
	mustAppend(t, d.Log, fits)
	for _, size := range []int{513 << 10, 2 << 20} {
		big := large(fmt.Sprint(size), size)
		for _, batch := range [][]events.Event{{big}, {put("a", 1, "x"), big}, {big, put("a", 1, "x")}} {
			wantNoAppend(t, d.Log, events.ErrTooLarge, events.Fence{}, batch...)
		}
		wantErr(t, "append each", d.Log.AppendEach(t.Context(), []events.Event{big}), events.ErrTooLarge)
	}
	wantLog(t, d.Log, fits)
}

func testFull(t *testing.T, d Driver) {
	a := put("a", 1, "x")
	mustAppend(t, d.Log, a)
	d.SetFull(true)
	batch := puts("b", 3, "x")
	wantRefused(t.Context(), t, d.Log, batch, events.ErrFull)
	wantLog(t, d.Log, a)

	d.SetFull(false)
	mustAppend(t, d.Log, batch...)
	wantLog(t, d.Log, append([]events.Event{a}, batch...)...)
}

// testRacers lets many writers append with the same fence: one succeeds.
func testRacers(t *testing.T, d Driver) {
	const racers = 12
	last := uint64(0)
	for round := range 6 {
		size := 1 + round%2*2
		batches := make([][]events.Event, racers)
		for i := range batches {
			batches[i] = puts(fmt.Sprintf("%d-%d", round, i), size, "x")
		}
		fence := onLog(last)
		if round%3 == 0 {
			fence = onSubject(t, batches[0][0], last)
		}
		errs := make([]error, racers)
		var wg sync.WaitGroup
		for i := range racers {
			wg.Go(func() { _, errs[i] = d.Log.Append(t.Context(), batches[i], fence) })
		}
		wg.Wait()
		winner := slices.Index(errs, nil)
		if winner < 0 {
			t.Fatalf("round %d: no racer won: %v", round, errs)
		}
		for i, err := range errs {
			if i != winner && !errors.Is(err, events.ErrConflict) {
				t.Fatalf("round %d: racer %d won, racer %d got %v", round, winner, i, err)
			}
		}
		last += uint64(size)
		wantBounds(t, d.Log, 1, last)
		wantAt(t, d.Log, last, batches[winner][size-1])
	}
}

func testAppendCancelled(t *testing.T, d Driver) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantRefused(ctx, t, d.Log, puts("a", 2, "x"), context.Canceled)
}

func testAppendClosed(t *testing.T, d Driver) {
	must(t, d.Log.Close())
	wantRefused(t.Context(), t, d.Log, puts("a", 2, "x"), events.ErrClosed)
	if err := d.Log.Close(); err != nil {
		t.Fatalf("closed again: %v", err)
	}
}

// wantRefused checks that every kind of append, of the batch or of its first event,
// returns the error want.
func wantRefused(ctx context.Context, t *testing.T, l Log, batch []events.Event, want error) {
	t.Helper()
	_, err := l.Append(ctx, batch[:1], events.Fence{})
	wantErr(t, "append", err, want)
	_, err = l.Append(ctx, batch, events.Fence{})
	wantErr(t, "append a batch", err, want)
	wantErr(t, "append each", l.AppendEach(ctx, batch), want)
}

// wantNoAppend checks that Append returns the error want.
func wantNoAppend(t *testing.T, l Log, want error, fence events.Fence, batch ...events.Event) {
	t.Helper()
	_, err := l.Append(t.Context(), batch, fence)
	wantErr(t, fmt.Sprintf("append of %d at fence %+v", len(batch), fence), err, want)
}

// appendFenced appends with a fence that holds, and checks the last Seq.
func appendFenced(t *testing.T, l Log, want uint64, fence events.Fence, batch ...events.Event) {
	t.Helper()
	ack, err := l.Append(t.Context(), batch, fence)
	if err != nil || ack.Duplicate || ack.Seq != want {
		t.Fatalf("append of %d at fence %+v: %+v, %v, want seq %d", len(batch), fence, ack, err, want)
	}
}
