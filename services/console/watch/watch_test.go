package watch

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// The number of pages that listen is bounded, and a page that has gone makes room.
func TestListen(t *testing.T) {
	m := New(nil, nil, slog.New(slog.DiscardHandler))
	var ends []func()
	for range maxViewers {
		_, end, err := m.Listen()
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, end)
	}
	if _, _, err := m.Listen(); !errors.Is(err, ErrManyViewers) {
		t.Errorf("one page more: %v", err)
	}
	ends[0]()
	if _, _, err := m.Listen(); err != nil {
		t.Errorf("after one has gone: %v", err)
	}
}

// Somebody looks while a page listens, and for a while after a page was made.
func TestWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(nil, nil, slog.New(slog.DiscardHandler))
		is := func(want bool, when string) {
			t.Helper()
			if w.watched() != want {
				t.Errorf("%s: watched is %v", when, !want)
			}
		}
		is(false, "at the beginning")
		_, end, err := w.Listen()
		if err != nil {
			t.Fatal(err)
		}
		is(true, "while a page listens")
		end()
		is(false, "when it has gone")
		w.Look(t.Context())
		is(true, "after a page was made")
		<-time.After(lookTime + time.Second)
		is(false, "a while later")
	})
}
