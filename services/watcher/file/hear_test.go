package file

import (
	"errors"
	"testing"

	"github.com/fsnotify/fsnotify"
)

// fsnotify holds its lock while it sends an error: watching a directory goes on, and the error
// counts afterwards.
func TestErrorsWhileWatching(t *testing.T) {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer notify.Close()
	tr := newTree(t.TempDir(), nil, notify)
	if err := tr.hear(func() error {
		notify.Errors <- fsnotify.ErrEventOverflow
		return notify.Add(tr.dir)
	}); err != nil {
		t.Fatal(err)
	}
	if err := tr.lastError(); !errors.Is(err, fsnotify.ErrEventOverflow) {
		t.Errorf("the error is %v, want the overflow", err)
	}
	if err := tr.lastError(); err != nil {
		t.Errorf("a second error: %v", err)
	}
}
