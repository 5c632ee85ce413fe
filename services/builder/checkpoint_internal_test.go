package builder

import (
	"errors"
	"testing"
	"time"
)

// In a mesh without changes, the builder publishes a version once in a quarter of
// the history, and the chain drops versions older than the history. Checkpoints
// stay due even after a failure or when the clock steps back.
func TestCheckpointsOfAQuietMesh(t *testing.T) {
	const history = 4 * time.Hour
	var ckpt checkpoints
	now := time.Unix(1_000_000, 0)
	expect := func(when, want string) {
		t.Helper()
		content, fold := ckpt.due(now, history)
		if content != (want == "content") || fold != (want == "fold") {
			t.Errorf("%s: content %t, fold %t, want a checkpoint of the %s", when, content, fold, want)
		}
		ckpt.busy = false
		now = now.Add(CheckpointEvery(history))
	}
	expect("at first", "content")
	expect("a quarter later", "fold")
	expect("a quarter later", "content")
	expect("a quarter later", "fold")
	now = now.Add(-24 * time.Hour)
	expect("when the clock has stepped back", "content")
	expect("a quarter later", "fold")
	now = now.Add(-time.Minute) // the next version comes a moment early
	ckpt.done(Checkpointed{Err: errors.New("no answer")}, nil)
	expect("after a failure", "content")
}
