package bus

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// A copy has what was left, also what is too old by now, and the original stays
// as it is.
func TestStartCopy(t *testing.T) {
	dir := t.TempDir()
	s, err := StartServer(ServerOptions{Dir: dir, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	nc := connect(t, s)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OLD", Subjects: []string{"old.>"}, MaxAge: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if _, err := js.Publish(t.Context(), "old.x", fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := StartCopy(CopyOptions{Dir: dir, Log: quiet}); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("a copy of what is in use: %v", err)
	}
	// What was an hour is a moment: everything is too old when a server starts.
	config := stream.CachedInfo().Config
	config.MaxAge = 100 * time.Millisecond
	config.Duplicates = 100 * time.Millisecond
	if _, err := js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	nc.Close()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	before := tree(t, dir)

	shown := int64(0)
	c, err := StartCopy(CopyOptions{Dir: dir, Log: quiet, Progress: func(done, total int64) { shown = total - done }})
	if err != nil {
		t.Fatal(err)
	}
	nc = connect(t, c)
	if js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	copied, err := js.Stream(t.Context(), "OLD")
	if err != nil {
		t.Fatal(err)
	}
	if info := copied.CachedInfo(); info.Config.MaxAge != 0 || info.State.LastSeq != 10 {
		t.Errorf("the copy keeps messages for %v, and ends at %d", info.Config.MaxAge, info.State.LastSeq)
	}
	tmp := c.temporary
	nc.Close()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(tmp); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the copy is left behind: %v", err)
	}
	if after := tree(t, dir); after != before {
		t.Errorf("the original was changed:\n%s\nwas\n%s", after, before)
	}
	if shown > 1<<12 { // but for the settings, which are written anew
		t.Errorf("%d bytes were never copied", shown)
	}
	if _, err := StartCopy(CopyOptions{Dir: t.TempDir(), Log: quiet}); !errors.Is(err, ErrNoStreams) {
		t.Errorf("a copy of nothing: %v", err)
	}
}

// tree lists the files of a directory, with their sizes and times.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && !d.IsDir() {
			fmt.Fprintln(&b, path, info.Size(), info.ModTime().UnixNano())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
