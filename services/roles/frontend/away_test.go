package frontend

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"meshlog.dev/services/internal/process"
	"meshlog.dev/store"
)

// BUS-4: /readyz and the metric say since when the bus is away, as a warning, and
// that messages of the version chain were passed over.
func TestAwayIsAWarning(t *testing.T) {
	admin, err := process.NewAdmin("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var bus error
	away, foreign := &outage{look: func() error { return bus }}, newForeign(slog.New(slog.DiscardHandler))
	report(admin, away, foreign)
	if err := errors.Join(away.warning(), foreign.warning()); err != nil || away.seconds() != 0 {
		t.Errorf("warning %v, away for %v s; want neither", err, away.seconds())
	}
	began := time.Now().Add(-time.Minute)
	away.note(began, errors.New("no leader"))
	bus = errors.New("no connection") // the same outage
	want := "the bus is away since " + began.UTC().Format(time.RFC3339)
	if err := away.warning(); err == nil || !strings.HasPrefix(err.Error(), want) || !strings.HasSuffix(err.Error(), "no connection") {
		t.Errorf("warning %v, want %q and the newest reason", err, want)
	}
	if s := away.seconds(); s < 60 || s > 90 {
		t.Errorf("away for %v s, want 60", s)
	}
	bus = nil
	foreign.add(&store.ForeignError{Seq: 7, Reason: errors.New("foreign bytes"), Messages: 1})
	if away.warning() != nil || foreign.warning() == nil {
		t.Errorf("warnings %v and %v, want only the one about the chain", away.warning(), foreign.warning())
	}
}

// A bus that was never connected is away, too.
func TestABusThatIsNotThereIsAway(t *testing.T) {
	link := &busLink{ready: make(chan struct{})}
	if link.state() == nil {
		t.Error("the bus is connected")
	}
}
