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
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// TestStartCopy copies two directories of a server in which every message is older
// than the stream's max_age: one after a clean stop, and one as a killed server leaves
// it. The copy has all messages, and the original is unchanged.
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
	c := jetstream.StreamConfig{
		Name: "OLD", Subjects: []string{"old.>"}, MaxAge: time.Hour, Duplicates: leastAge,
		AllowDirect: true, AllowAtomicPublish: true, DenyDelete: true, DenyPurge: true,
	}
	if _, err := js.CreateStream(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if _, err := js.Publish(t.Context(), "old.x", fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	openBatch(t, nc)
	if _, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "lease"}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateConsumer(t.Context(), "OLD", jetstream.ConsumerConfig{Durable: "builder"}); err != nil {
		t.Fatal(err)
	}
	if _, err := StartCopy(CopyOptions{Dir: dir, Log: quiet}); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("a copy of a directory in use: %v", err)
	}
	killed := t.TempDir()
	copyTree(t, killed, dir)
	nc.Close()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// With these settings, of another server, max_age is so short that all messages
	// are older.
	settings := withLeastAge(t, c)
	<-time.After(leastAge)
	for name, dir := range map[string]string{"stopped": dir, "killed": killed} {
		t.Run(name, func(t *testing.T) {
			copyTree(t, streamDir(dir), settings)
			for range 2 {
				checkCopy(t, dir)
			}
			s, err := StartServer(ServerOptions{Dir: dir, Log: quiet})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if info := old(t, s); info.State.Msgs != 0 {
				t.Errorf("a server on the original keeps %d messages: this test proves nothing", info.State.Msgs)
			}
		})
	}
	if _, err := StartCopy(CopyOptions{Dir: t.TempDir(), Log: quiet}); !errors.Is(err, ErrNoStreams) {
		t.Errorf("a copy of an empty directory: %v", err)
	}
}

// leastAge is the least max_age that a server accepts.
const leastAge = 100 * time.Millisecond

// openBatch begins an atomic batch and does not commit it.
func openBatch(t *testing.T, nc *nats.Conn) {
	t.Helper()
	m := nats.NewMsg("old.batch")
	m.Header.Set("Nats-Batch-Id", "open")
	m.Header.Set("Nats-Batch-Sequence", "1")
	if reply, err := nc.RequestMsgWithContext(t.Context(), m); err != nil || len(reply.Data) > 0 {
		t.Fatalf("begin a batch: %v", err)
	}
}

// withLeastAge returns a directory with the settings of a stream that keeps its
// messages for leastAge, as a server writes them.
func withLeastAge(t *testing.T, c jetstream.StreamConfig) string {
	t.Helper()
	dir := t.TempDir()
	s := startServer(t, dir)
	nc := connect(t, s)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	c.MaxAge = leastAge
	if _, err := js.CreateStream(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	nc.Close()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(streamDir(dir), "msgs")); err != nil {
		t.Fatal(err)
	}
	return streamDir(dir)
}

// streamDir returns where the server on dir keeps the stream of the test.
func streamDir(dir string) string {
	return filepath.Join(accountDir(dir, HubAccount), "streams", "OLD")
}

// copyTree copies the files below from to the directory to.
func copyTree(t *testing.T, to, from string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		path = filepath.Join(to, rel)
		return errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, b, 0o600))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// old returns the stream of the test.
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
	left := int64(-1)
	c, err := StartCopy(CopyOptions{Dir: dir, Log: quiet, Progress: func(done, total int64) { left = total - done }})
	if err != nil {
		t.Fatal(err)
	}
	info := old(t, c)
	if info.Config.MaxAge != 0 || info.State.Msgs != 10 || info.State.FirstSeq != 1 || info.State.LastSeq != 10 {
		t.Errorf("the copy keeps messages for %v, and has %+v", info.Config.MaxAge, info.State)
	}
	if info.State.Consumers != 0 {
		t.Errorf("the copy has %d consumers", info.State.Consumers)
	}
	tmp := c.temporary
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(tmp); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Close leaves the copy behind: %v", err)
	}
	if after := tree(t, dir); after != before {
		t.Errorf("StartCopy changed the original:\n%s\nwas\n%s", after, before)
	}
	if left != 0 {
		t.Errorf("%d bytes were never copied", left)
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

// The data directory of an older build, whose server had one account for all, keeps its
// streams: the server adopts them, and a copy reads them where they are.
func TestStreamsOfOlderBuild(t *testing.T) {
	dir := t.TempDir()
	older, err := server.NewServer(&server.Options{
		ServerName: "meshlog", DontListen: true, NoSigs: true, NoLog: true, Authorization: "token",
		JetStream: true, StoreDir: filepath.Join(dir, streamsDir), SyncAlways: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	older.Start()
	if !older.ReadyForConnections(time.Minute) {
		t.Fatal("the server does not start")
	}
	nc, err := nats.Connect("", nats.InProcessServer(older), nats.Token("token"))
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	config := jetstream.StreamConfig{Name: "OLD", Subjects: []string{"old.>"}, AllowDirect: true, FirstSeq: 7}
	if _, err := js.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if _, err := js.Publish(t.Context(), "old.x", nil); err != nil {
			t.Fatal(err)
		}
	}
	nc.Close()
	older.Shutdown()
	older.WaitForShutdown()

	before := tree(t, dir)
	c, err := StartCopy(CopyOptions{Dir: dir, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, s *Server) {
		t.Helper()
		if st := old(t, s).State; st.FirstSeq != 7 || st.LastSeq != 16 || st.Msgs != 10 {
			t.Errorf("%s has %d to %d, %d messages", what, st.FirstSeq, st.LastSeq, st.Msgs)
		}
	}
	check("the copy", c)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if after := tree(t, dir); after != before {
		t.Errorf("StartCopy changed the original:\n%s\nwas\n%s", after, before)
	}
	for _, start := range []string{"the first start", "the second start"} {
		s := startServer(t, dir)
		check(start, s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}

	// An older build that runs on the directory again begins anew; neither is lost.
	again := accountDir(dir, server.DEFAULT_GLOBAL_ACCOUNT)
	if err := os.MkdirAll(again, 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := StartServer(ServerOptions{Dir: dir, Log: quiet})
	if err == nil {
		s.Close()
	}
	if err == nil || !strings.Contains(err.Error(), again+" and "+accountDir(dir, HubAccount)+" both hold streams") {
		t.Errorf("two layouts: %v", err)
	}
}
