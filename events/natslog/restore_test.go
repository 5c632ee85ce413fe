package natslog_test

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/natstest"
	"meshlog.dev/events"
	"meshlog.dev/events/natslog"
)

// TestRestore restores logs that begin at any sequence.
func TestRestore(t *testing.T) {
	for _, first := range []uint64{1, 1000} {
		nc := natstest.Start(t).Connect(t)
		o := natslog.StreamOptions{Options: natslog.Options{Domain: fmt.Sprint("d", first)}, MaxAge: time.Hour}
		var want []events.Raw
		for i := range uint64(700) {
			want = append(want, events.Raw{Seq: first + i, Time: time.Unix(1, 0), Subject: "a.b.Thing.c", Data: fmt.Appendf(nil, "record %d", i%5)})
		}
		want[3].Subject = events.SegmentSubject
		if err := natslog.Restore(t.Context(), nc, o, first, sequence(want)); err != nil {
			t.Fatal(err)
		}
		l := open(t, nc, o.Options)
		b, err := l.Bounds(t.Context())
		if err != nil || b != (events.Bounds{First: first, Last: first + 699}) {
			t.Errorf("bounds are %+v, %v", b, err)
		}
		i := 0
		for got, err := range l.Raw(t.Context(), b.First, b.Last) {
			if err != nil {
				t.Fatal(err)
			}
			if got.Seq != want[i].Seq || got.Subject != want[i].Subject || string(got.Data) != string(want[i].Data) {
				t.Fatalf("record %d is %+v, want %+v", i, got, want[i])
			}
			i++
		}
		// Sequences continue, and EnsureStream changes nothing.
		created, err := natslog.EnsureStream(t.Context(), nc, o)
		if err != nil || created {
			t.Errorf("EnsureStream = %v, %v", created, err)
		}
		ack, err := l.Append(t.Context(), []events.Event{begin(1)}, events.Fence{Kind: events.FenceLog, Seq: b.Last})
		if err != nil || ack.Seq != b.Last+1 {
			t.Errorf("append: %+v, %v", ack, err)
		}
		if err := natslog.Restore(t.Context(), nc, o, first, sequence(want)); !errors.Is(err, natslog.ErrExists) {
			t.Errorf("restored twice: %v", err)
		}
	}
}

func TestRestoreRefuses(t *testing.T) {
	broken := errors.New("broken")
	for name, records := range map[string]iter.Seq2[events.Raw, error]{
		"a gap":        sequence([]events.Raw{{Seq: 1, Subject: "a.b._ctl", Data: []byte("1")}, {Seq: 3, Subject: "a.b._ctl", Data: []byte("3")}}),
		"a read error": func(yield func(events.Raw, error) bool) { yield(events.Raw{}, broken) },
		"too large":    sequence([]events.Raw{{Seq: 1, Subject: "a.b._ctl", Data: make([]byte, 2<<20)}}),
	} {
		nc := natstest.Start(t).Connect(t)
		o := natslog.StreamOptions{Options: natslog.Options{Domain: events.Token(name)}}
		if err := natslog.Restore(t.Context(), nc, o, 1, records); err == nil {
			t.Errorf("%s: restored", name)
		}
	}
}

func sequence(records []events.Raw) iter.Seq2[events.Raw, error] {
	return func(yield func(events.Raw, error) bool) {
		for r := range slices.Values(records) {
			if !yield(r, nil) {
				return
			}
		}
	}
}
