package suite

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"meshlog.dev/events"
)

var followTests = []test{
	{"from any position", testFollowFrom},
	{"more records than one read returns", testFollowMany},
	{"from before the first record is a gap", testFollowGap},
	{"from beyond the end is a rewind", testFollowBeyond},
	{"a cancelled context ends the wait at the end", testFollowCancelledAtEnd},
	{"a closed follower returns no records", testFollowClosed},
	{"closing the log ends followers", testFollowLogClosed},
}

// growingTests append while a follower reads.
var growingTests = []test{
	{"new records arrive one by one", testFollowTail},
	{"blocks until there is a record", testFollowBlocks},
	{"several followers read the same", testFollowSeveral},
	{"a rewind ends followers", testFollowRewound},
	{"a new connection ends followers", testFollowReconnected},
	{"acknowledgements are kept by name", testFollowNames},
	{"a cancelled read loses no record", testFollowCancelled},
}

func testFollowFrom(t *testing.T, d Driver) {
	want := append(puts("a", 4, "x"), puts("b", 3, "y")...)
	mustAppend(t, d.Log, want[:4]...)
	mustAppend(t, d.Log, want[4:]...)
	for after := range want {
		for i, r := range readTo(t, d.Log, uint64(after), uint64(len(want))) {
			wantRecord(t, r, uint64(after+i+1), want[after+i])
		}
	}
}

func testFollowTail(t *testing.T, d Driver) {
	f := follow(t, d.Log, 0, "")
	for i, e := range puts("a", 20, "x") {
		mustAppend(t, d.Log, e)
		records := next(t, f)
		if len(records) != 1 {
			t.Fatalf("%d records, want 1", len(records))
		}
		wantRecord(t, records[0], uint64(i+1), e)
	}
}

func testFollowBlocks(t *testing.T, d Driver) {
	mustAppend(t, d.Log, put("a", 1, "x"))
	blocked := nextLater(t.Context(), follow(t, d.Log, 1, ""))
	e := put("a", 2, "x")
	mustAppend(t, d.Log, e)
	got := <-blocked
	if got.err != nil || len(got.records) != 1 {
		t.Fatalf("next = %d records, %v", len(got.records), got.err)
	}
	wantRecord(t, got.records[0], 2, e)
}

func testFollowMany(t *testing.T, d Driver) {
	const n = 3000
	must(t, d.Log.AppendEach(t.Context(), puts("a", n, "x")))
	for _, e := range []events.Event{large("l1", 300<<10), large("l2", 400<<10), large("l3", 10)} {
		mustAppend(t, d.Log, e)
	}
	readTo(t, d.Log, 0, n+3)
	readTo(t, d.Log, n/2, n+3)
}

func testFollowSeveral(t *testing.T, d Driver) {
	const n = 200
	results := make([]read, 4)
	var wg sync.WaitGroup
	for i, name := range []string{"", "follower-1", "", "follower-3"} {
		f, got := follow(t, d.Log, 0, name), &results[i]
		wg.Go(func() {
			for len(got.records) < n && got.err == nil {
				var records []events.Record
				records, got.err = f.Next(t.Context())
				got.records = append(got.records, records...)
			}
		})
	}
	want := puts("a", n, "x")
	for i := 0; i < n; i += 10 {
		mustAppend(t, d.Log, want[i:i+10]...)
	}
	wg.Wait()
	for i, got := range results {
		if got.err != nil || len(got.records) != n {
			t.Fatalf("follower %d: %d records, %v", i, len(got.records), got.err)
		}
		for j, r := range got.records {
			wantRecord(t, r, uint64(j+1), want[j])
		}
	}
}

func testFollowGap(t *testing.T, d Driver) {
	mustAppend(t, d.Log, puts("a", 5, "x")...)
	d.Trim(4)
	for _, after := range []uint64{0, 2} {
		wantNoStart(t, d.Log, after, events.ErrGap)
	}
	if got := readTo(t, d.Log, 3, 5); len(got) != 2 {
		t.Fatalf("from the first record: %d records", len(got))
	}
}

func testFollowBeyond(t *testing.T, d Driver) {
	mustAppend(t, d.Log, puts("a", 3, "x")...)
	for _, after := range []uint64{4, 1 << 40} {
		wantNoStart(t, d.Log, after, events.ErrRewound)
	}
}

// testFollowCancelledAtEnd ends a follower that waits at the end of the log.
func testFollowCancelledAtEnd(t *testing.T, d Driver) {
	want := puts("a", 2, "x")
	mustAppend(t, d.Log, want...)
	for _, after := range []uint64{0, 2} {
		f := follow(t, d.Log, after, "")
		for read := after; read < 2; {
			read += uint64(len(next(t, f)))
		}
		ctx, cancel := context.WithCancel(t.Context())
		stopped := nextLater(ctx, f)
		cancel()
		wantErr(t, "next", (<-stopped).err, context.Canceled)
	}
}

func testFollowRewound(t *testing.T, d Driver) {
	a := puts("a", 6, "x")
	mustAppend(t, d.Log, a...)
	f := follow(t, d.Log, 6, "")
	wantNoStart(t, d.Log, 7, events.ErrRewound)

	d.Rewind(4)
	wantBounds(t, d.Log, 1, 4)
	_, err := f.Next(t.Context())
	wantErr(t, "a follower of the old connection", err, events.ErrReconnected)
	wantNoStart(t, d.Log, 6, events.ErrRewound)

	// The log has forgotten the dropped record: its event can be appended again.
	f = follow(t, d.Log, 4, "")
	mustAppend(t, d.Log, a[5])
	wantRecord(t, next(t, f)[0], 5, a[5])
}

func testFollowReconnected(t *testing.T, d Driver) {
	mustAppend(t, d.Log, put("a", 1, "x"))
	f := follow(t, d.Log, 1, "")
	blocked := nextLater(t.Context(), f)
	d.Reconnect()
	wantErr(t, "next", (<-blocked).err, events.ErrReconnected)
	_, err := f.Next(t.Context())
	wantErr(t, "next again", err, events.ErrReconnected)

	f = follow(t, d.Log, 1, "")
	e := put("a", 2, "x")
	mustAppend(t, d.Log, e)
	wantRecord(t, next(t, f)[0], 2, e)
}

func testFollowNames(t *testing.T, d Driver) {
	const name = "builder-1.eu" // must be escaped
	want := puts("a", 10, "x")
	mustAppend(t, d.Log, want...)
	f := follow(t, d.Log, 0, name)
	for read := 0; read < 7; {
		read += len(next(t, f))
	}
	ack := func(f events.Follower, seq uint64) {
		t.Helper()
		must(t, f.Ack(t.Context(), seq))
		if got := d.Acked(name); got != seq {
			t.Fatalf("acknowledged %d, the log shows %d", seq, got)
		}
	}
	ack(f, 2)
	ack(f, 7)
	must(t, f.Close())
	// The caller's cursor decides, whether it is before or after the acknowledgement.
	for _, after := range []uint64{3, 9} {
		f := follow(t, d.Log, after, name)
		wantRecord(t, next(t, f)[0], after+1, want[after])
		ack(f, after+1)
		must(t, f.Close())
	}
	// Without a name the log keeps no acknowledgement.
	f = follow(t, d.Log, 0, "")
	next(t, f)
	must(t, f.Ack(t.Context(), 1))
}

// testFollowCancelled cancels one read; the next one returns the record.
func testFollowCancelled(t *testing.T, d Driver) {
	mustAppend(t, d.Log, put("a", 1, "x"))
	f := follow(t, d.Log, 1, "")
	ctx, cancel := context.WithCancel(t.Context())
	stopped := nextLater(ctx, f)
	cancel()
	wantErr(t, "next", (<-stopped).err, context.Canceled)
	e := put("a", 2, "x")
	mustAppend(t, d.Log, e)
	_, err := f.Next(ctx)
	wantErr(t, "next", err, context.Canceled)
	wantRecord(t, next(t, f)[0], 2, e)
}

func testFollowClosed(t *testing.T, d Driver) {
	mustAppend(t, d.Log, put("a", 1, "x"))
	for _, name := range []string{"", "named"} {
		f := follow(t, d.Log, 0, name)
		for range 2 {
			must(t, f.Close())
		}
		_, err := f.Next(t.Context())
		wantErr(t, "next", err, events.ErrClosed)
		wantErr(t, "ack", f.Ack(t.Context(), 1), events.ErrClosed)
	}
}

func testFollowLogClosed(t *testing.T, d Driver) {
	f := follow(t, d.Log, 0, "")
	blocked := nextLater(t.Context(), f)
	must(t, d.Log.Close())
	wantErr(t, "next", (<-blocked).err, events.ErrClosed)
}

func follow(t *testing.T, l Log, after uint64, name string) events.Follower {
	t.Helper()
	f, err := l.Follow(t.Context(), after, name)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// wantNoStart checks that followers with and without a name cannot begin after a
// position.
func wantNoStart(t *testing.T, l Log, after uint64, want error) {
	t.Helper()
	for _, name := range []string{"", "named"} {
		_, err := follow(t, l, after, name).Next(t.Context())
		wantErr(t, fmt.Sprintf("after %d, named %q", after, name), err, want)
	}
}

// next reads at least one record.
func next(t *testing.T, f events.Follower) []events.Record {
	t.Helper()
	records, err := f.Next(t.Context())
	must(t, err)
	if len(records) == 0 {
		t.Fatal("next returned nothing")
	}
	return records
}

// read is a result of Next.
type read struct {
	records []events.Record
	err     error
}

// nextLater calls Next in another goroutine.
func nextLater(ctx context.Context, f events.Follower) <-chan read {
	result := make(chan read, 1)
	go func() {
		records, err := f.Next(ctx)
		result <- read{records, err}
	}()
	return result
}

// readTo follows the log from after up to last, and checks that it is dense.
func readTo(t *testing.T, l Log, after, last uint64) []events.Record {
	t.Helper()
	f := follow(t, l, after, "")
	var all []events.Record
	for after+uint64(len(all)) < last {
		all = append(all, next(t, f)...)
	}
	for i, r := range all {
		if r.Seq != after+uint64(i)+1 {
			t.Fatalf("record %d follows %d", r.Seq, after+uint64(i))
		}
	}
	must(t, f.Close())
	return all
}
