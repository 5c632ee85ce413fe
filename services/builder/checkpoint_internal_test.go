package builder

import (
	"errors"
	"slices"
	"testing"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// started notes which checkpoints were started.
type started []string

func (s *started) Content(ident.Position, *store.Snapshot) { *s = append(*s, "content") }
func (s *started) Fold()                                   { *s = append(*s, "fold") }

// In a mesh in which nothing changes versions come once in a quarter of the
// history, and the chain forgets what is older than that: neither a failure nor
// a clock that steps back keeps a checkpoint from being there.
func TestCheckpointsOfAQuietMesh(t *testing.T) {
	const history = 4 * time.Hour
	var ckpt checkpoints
	now := time.Unix(1_000_000, 0)
	version := func() []string {
		var s started
		ckpt.start(&s, ident.Position{}, nil, now, history)
		ckpt.busy = false
		now = now.Add(CheckpointEvery(history))
		return s
	}
	expect := func(when string, want ...string) {
		t.Helper()
		if got := version(); !slices.Equal(got, want) {
			t.Errorf("%s: %q was started, want %q", when, got, want)
		}
	}
	expect("at first", "content")
	expect("a quarter later", "fold")
	expect("a quarter later", "content")
	expect("a quarter later", "fold")
	now = now.Add(-24 * time.Hour)
	expect("when the clock has stepped back", "content")
	expect("a quarter later", "fold")
	now = now.Add(-time.Minute) // a version a moment early
	ckpt.done(Checkpointed{Err: errors.New("no answer")}, nil)
	expect("after a failure", "content")
}
