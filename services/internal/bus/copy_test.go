package bus

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
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
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OLD", Subjects: []string{"old.>"}, MaxAge: time.Hour, Duplicates: leastAge})
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
	nc.Close()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// An hour becomes the least age that a server takes, which all of it has then.
	settings := filepath.Join(dir, streamsDir, "jetstream", "$G", "streams", "OLD", server.JetStreamMetaFile)
	if err := copySettings(settings, settings, leastAge); err != nil {
		t.Fatal(err)
	}
	<-time.After(leastAge)
	for range 2 {
		checkCopy(t, dir)
	}
	if s, err = StartServer(ServerOptions{Dir: dir, Log: quiet}); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if info := old(t, s); info.State.Msgs != 0 {
		t.Errorf("a server on the original keeps %d messages: this test shows nothing", info.State.Msgs)
	}
	if _, err := StartCopy(CopyOptions{Dir: t.TempDir(), Log: quiet}); !errors.Is(err, ErrNoStreams) {
		t.Errorf("a copy of nothing: %v", err)
	}
}

const leastAge = 100 * time.Millisecond

// old is the stream that the test makes.
func old(t *testing.T, s *Server) *jetstream.StreamInfo {
	t.Helper()
	nc := connect(t, s)
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "OLD")
	if err != nil {
		t.Fatal(err)
	}
	return stream.CachedInfo()
}

func checkCopy(t *testing.T, dir string) {
	t.Helper()
	before := tree(t, dir)

	shown := int64(0)
	c, err := StartCopy(CopyOptions{Dir: dir, Log: quiet, Progress: func(done, total int64) { shown = total - done }})
	if err != nil {
		t.Fatal(err)
	}
	if info := old(t, c); info.Config.MaxAge != 0 || info.State.Msgs != 10 {
		t.Errorf("the copy keeps messages for %v, and has %d", info.Config.MaxAge, info.State.Msgs)
	}
	tmp := c.temporary
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
