package watch

import (
	"errors"
	"log/slog"
	"testing"
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
