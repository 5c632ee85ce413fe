package memlog_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/events/memlog"
	"meshlog.dev/proto/ident"
)

func begin(n int) events.Event {
	return events.Event{
		ID:   fmt.Sprint("begin-", n),
		Body: &events.Begin{Shard: ident.Shard{Source: "s", Instance: "i"}, Session: fmt.Sprint(n), Holder: "h"},
	}
}

// TestExpireDedupe retries after the log has forgotten ids: only a fence helps.
func TestExpireDedupe(t *testing.T) {
	l := memlog.New(time.Now)
	batch := []events.Event{begin(1), begin(2)}
	fence := events.Fence{Kind: events.FenceLog}
	if _, err := l.Append(t.Context(), batch, fence); err != nil {
		t.Fatal(err)
	}
	l.ExpireDedupe()
	if ack, err := l.Append(t.Context(), batch, fence); err != nil || ack != (events.Ack{Seq: 2, Duplicate: true}) {
		t.Errorf("fenced retry = %+v, %v", ack, err)
	}
	if ack, err := l.Append(t.Context(), batch, events.Fence{}); err != nil || ack != (events.Ack{Seq: 4}) {
		t.Errorf("retry without fence = %+v, %v", ack, err)
	}
}

func TestMixedBatch(t *testing.T) {
	l := memlog.New(time.Now)
	if _, err := l.Append(t.Context(), []events.Event{begin(1)}, events.Fence{}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append(t.Context(), []events.Event{begin(1), begin(2)}, events.Fence{}); !errors.Is(err, events.ErrInvalid) {
		t.Errorf("append of one known event and one new event: %v", err)
	}
}

func TestReadAfter(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	l := memlog.New(func() time.Time { at = at.Add(time.Second); return at })
	for n := range 5 {
		if _, err := l.Append(t.Context(), []events.Event{begin(n)}, events.Fence{}); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		after uint64
		limit int
		want  []uint64
		err   error
	}{
		{1, 10, nil, events.ErrGap},
		{2, 2, []uint64{3, 4}, nil},
		{2, 10, []uint64{3, 4, 5}, nil},
		{5, 10, nil, nil},
		{6, 10, nil, events.ErrRewound},
	}
	l.Trim(3)
	for _, test := range tests {
		records, err := l.ReadAfter(test.after, test.limit)
		var got []uint64
		for _, r := range records {
			got = append(got, r.Seq)
			if want := time.Date(2026, 1, 1, 0, 0, int(r.Seq), 0, time.UTC); !r.Time.Equal(want) {
				t.Errorf("record %d has time %v, want %v", r.Seq, r.Time, want)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(test.want) || !errors.Is(err, test.err) {
			t.Errorf("ReadAfter(%d, %d) = %v, %v", test.after, test.limit, got, err)
		}
	}
}
