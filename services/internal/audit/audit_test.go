package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/testing/protocmp"

	"meshlog.dev/proto/ident"
	auditv1 "meshlog.dev/proto/meshlog/audit/v1"
	"meshlog.dev/services/internal/bus"
)

var (
	quiet = slog.New(slog.DiscardHandler)
	eu    = bus.Watcher(ident.Shard{Source: "kubernetes", Instance: "eu.1"})
)

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// connect starts a bus without streams, and connects to it.
func connect(t *testing.T) *bus.Conn {
	t.Helper()
	s, err := bus.StartServer(bus.ServerOptions{Dir: t.TempDir(), Log: quiet})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	nc, err := bus.Connect(bus.ConnectOptions{Server: s, Name: t.Name(), Log: quiet})
	must(t, err)
	t.Cleanup(nc.Close)
	return nc
}

func newWriter(t *testing.T, nc *bus.Conn, r bus.Role, process string) *Writer {
	t.Helper()
	w, err := NewWriter(nc, WriterOptions{Domain: "mesh", Role: r, Process: process, Log: quiet})
	must(t, err)
	return w
}

// run runs a Writer until stop is called.
func run(t *testing.T, w *Writer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := w.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); ended.Wait() })
	t.Cleanup(stop)
	return stop
}

func newReader(t *testing.T, nc *bus.Conn) *Reader {
	t.Helper()
	r, err := NewReader(nc, "mesh")
	must(t, err)
	return r
}

func all(t *testing.T, nc *bus.Conn) []Entry {
	t.Helper()
	entries, _, err := newReader(t, nc).Newest(t.Context(), -1)
	must(t, err)
	return entries
}

func given(name string) *auditv1.Record {
	return &auditv1.Record{
		Action: auditv1.Action_ACTION_KEY_GIVEN, Identity: "spiffe://td/ns/shop/sa/edge", Proxy: "edge-1",
		Object: "SecretReference shop/cert (kubernetes/eu.1)", Name: name, Digest: bytes.Repeat([]byte{7}, 32),
	}
}

// lost compares the counts of lost records, as a scrape shows them.
func lost(t *testing.T, w *Writer, overflow, invalid, ended float64) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(w)
	families, err := registry.Gather()
	must(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "meshlog_audit_lost_total" {
				got[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	if diff := cmp.Diff(map[string]float64{"overflow": overflow, "invalid": invalid, "ended": ended}, got); diff != "" {
		t.Errorf("lost records (-want +got):\n%s", diff)
	}
}

// KEY-13: a record that a process writes is read with the server's time and the
// account of the writer; a Writer waits for nothing, not for the stream either.
func TestRecords(t *testing.T) {
	nc := connect(t)
	frontend, watcher := newWriter(t, nc, bus.Frontend(), "frontend-1"), newWriter(t, nc, eu, "watcher-1")
	begun := time.Now()
	frontend.Write(given("a")) // there is no stream yet
	stop := run(t, frontend)
	must(t, EnsureStream(t.Context(), nc, StreamOptions{}), EnsureStream(t.Context(), nc, StreamOptions{}))
	stop()
	watcher.Write(&auditv1.Record{Action: auditv1.Action_ACTION_KEY_REFUSED, Reason: "changed"})
	run(t, watcher)()
	got := all(t, nc)
	want := []Entry{
		{Seq: 1, Writer: "frontend", Record: given("a")},
		{Seq: 2, Writer: "kubernetes/eu.1", Record: &auditv1.Record{Process: "watcher-1", Action: auditv1.Action_ACTION_KEY_REFUSED, Reason: "changed"}},
	}
	want[0].Record.Process = "frontend-1"
	for i := range got {
		if got[i].Time.Before(begun.Add(-time.Second)) || got[i].Time.After(time.Now().Add(time.Second)) {
			t.Errorf("record %d has the time %s", got[i].Seq, got[i].Time)
		}
		got[i].Time = time.Time{}
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	lost(t, frontend, 0, 0, 0)
	if n := frontend.written.Load(); n != 1 {
		t.Errorf("%d records are written, want 1", n)
	}
}

// The newest records are dropped when too many wait, and counted: the beginning of an
// incident stays.
func TestOverflow(t *testing.T) {
	nc := connect(t)
	w := newWriter(t, nc, bus.Frontend(), "frontend-1")
	for i := range queued + 10 {
		w.Write(given(fmt.Sprint(i)))
	}
	lost(t, w, 10, 0, 0)
	must(t, EnsureStream(t.Context(), nc, StreamOptions{}))
	stop := run(t, w)
	r, errEnough := newReader(t, nc), errors.New("enough")
	if err := r.Follow(t.Context(), queued-1, func([]Entry) error { return errEnough }); !errors.Is(err, errEnough) {
		t.Fatal(err)
	}
	stop()
	got := all(t, nc)
	if len(got) != queued || got[0].Record.GetName() != "0" || got[queued-1].Record.GetName() != fmt.Sprint(queued-1) {
		t.Errorf("%d records are stored, want the first %d", len(got), queued)
	}
	// Lists of the newest, of a time, and what follows.
	newest, last, err := r.Newest(t.Context(), 3)
	must(t, err)
	if last != queued || len(newest) != 3 || newest[0].Seq != queued-2 {
		t.Errorf("the newest 3 of %d: %d, from %d on", last, len(newest), newest[0].Seq)
	}
	at := got[queued/2].Time
	since, _, err := r.Since(t.Context(), at)
	must(t, err)
	if len(since) == 0 || since[0].Time.Before(at) || since[0].Seq > 1 && !got[since[0].Seq-2].Time.Before(at) {
		t.Errorf("since %s: %d records, the first is %d", at, len(since), since[0].Seq)
	}
	since, _, err = r.Since(t.Context(), time.Now().Add(time.Minute))
	if err != nil || len(since) > 0 {
		t.Errorf("of the future: %d records, %v", len(since), err)
	}
	err = r.Follow(t.Context(), queued-1, func(new []Entry) error {
		if new[0].Seq == queued {
			w.Write(given("more"))
			run(t, w)()
			return nil
		}
		if len(new) != 1 || new[0].Record.GetName() != "more" {
			t.Errorf("%d records follow: %v", len(new), new)
		}
		return errEnough
	})
	if !errors.Is(err, errEnough) {
		t.Errorf("Follow: %v", err)
	}
}

// A record without a place on the stream is lost, counted, and stops no other. A field
// with more bytes than a hash may be a key, and never leaves the process.
func TestLost(t *testing.T) {
	nc := connect(t)
	w := newWriter(t, nc, bus.Frontend(), "frontend-1")
	key := given("key")
	key.Digest = make([]byte, 64)
	large := given(strings.Repeat("x", maxRecord))
	w.Write(key)
	w.Write(large)
	w.Write(given("good"))
	lost(t, w, 0, 2, 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = w.Run(ctx) // there is no stream
	lost(t, w, 0, 2, 1)

	// The stream of another build may take less than we send.
	js, err := jetstream.New(nc)
	must(t, err)
	c := StreamOptions{}.Config()
	c.MaxMsgSize = 300
	_, err = js.CreateStream(t.Context(), c)
	must(t, err)
	w.Write(given(strings.Repeat("x", 500)))
	w.Write(&auditv1.Record{})
	run(t, w)()
	lost(t, w, 0, 3, 1)
	if got := all(t, nc); len(got) != 1 {
		t.Errorf("%d records are stored, want the small one", len(got))
	}
	for _, r := range []bus.Role{bus.Builder(), bus.Observer(), bus.Watchers("kubernetes")} {
		if _, err := NewWriter(nc, WriterOptions{Domain: "mesh", Role: r, Log: quiet}); err == nil {
			t.Errorf("%s writes the audit", r)
		}
	}
}

// A process ends in time when the bus takes no records, however many wait.
func TestEnd(t *testing.T) {
	w := newWriter(t, connect(t), bus.Frontend(), "frontend-1")
	for range queued {
		w.Write(given("x"))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	begun := time.Now()
	_ = w.Run(ctx) // there is no stream
	if took := time.Since(begun); took > 2*flushWithin {
		t.Errorf("the process ends after %s", took)
	}
	lost(t, w, 0, 0, queued)
}

// A writer that floods the audit pushes out its own records, and leaves those of
// others: each has one subject, which takes half of the stream at most.
func TestFlood(t *testing.T) {
	nc := connect(t)
	const size = 256 << 10
	must(t, EnsureStream(t.Context(), nc, StreamOptions{Bytes: size}))
	frontend := newWriter(t, nc, bus.Frontend(), "frontend-1")
	frontend.Write(given("before the flood"))
	run(t, frontend)()
	js, err := jetstream.New(nc)
	must(t, err)
	for range 3 * size / maxRecord {
		_, err := js.Publish(t.Context(), "meshlog.audit.mesh.watcher.kubernetes.eu=2E1", make([]byte, maxRecord))
		must(t, err)
	}
	got := all(t, nc)
	if got[0].Writer != "frontend" || got[0].Record.GetName() != "before the flood" {
		t.Errorf("the first record of %d is %+v", len(got), got[0])
	}
	if want := 1 + size/maxRecord/shares; len(got) != want {
		t.Errorf("%d records are left, want %d", len(got), want)
	}
	// The newest of few records among many sequences.
	newest, _, err := newReader(t, nc).Newest(t.Context(), len(got))
	if err != nil || len(newest) != len(got) {
		t.Errorf("%d of the newest %d: %v", len(newest), len(got), err)
	}
}

// A message that no process of ours wrote is shown, and says why it is no record. Its
// texts, which a client chose, can be printed.
func TestForeign(t *testing.T) {
	nc := connect(t)
	must(t, EnsureStream(t.Context(), nc, StreamOptions{}))
	const own = "meshlog.audit.mesh.frontend"
	ours := nats.Header{jetstream.ExpectedStreamHeader: {Stream}}
	made := nats.Header{jetstream.ExpectedStreamHeader: {Stream}, jetstream.StreamHeader: {"MESHLOG_EVENTS"}}
	for _, m := range []*nats.Msg{
		{Subject: own, Data: []byte("x")},
		{Subject: own, Data: []byte("x"), Header: ours},
		{Subject: own, Header: made},
		{Subject: "meshlog.audit.mesh.builder", Header: ours},
		{Subject: "meshlog.audit.mesh.watcher.a", Header: ours},
		{Subject: "meshlog.audit.mesh.watcher.=61.b", Header: ours},
		{Subject: "meshlog.audit.other.frontend", Header: ours},
	} {
		must(t, nc.PublishMsg(m))
	}
	// The writer's headers hide those that the server adds to an answer.
	hidden := nats.NewMsg(own)
	hidden.Header.Set("A", "b\r\n\r\n")
	hidden.Data = []byte("x")
	must(t, nc.PublishMsg(hidden))
	w := newWriter(t, nc, bus.Frontend(), "frontend\x1b[31m")
	w.Write(&auditv1.Record{Reason: "two\nlines"})
	run(t, w)()
	got := all(t, nc)
	var faults []string
	for _, e := range got {
		if e.Err != nil {
			faults = append(faults, fmt.Sprintf("%d %s: %v", e.Seq, e.Writer, e.Err))
		}
	}
	want := []string{
		"1 frontend: " + errHeader.Error(), "2 frontend: proto: cannot parse invalid wire-format data", "3 frontend: " + errServer.Error(),
		"4 : " + errSubject.Error(), "5 : " + errSubject.Error(), "6 : " + errSubject.Error(), "8 frontend: " + errHeader.Error(),
	}
	for i := range faults {
		faults[i] = strings.ReplaceAll(faults[i], "\u00a0", " ")
	}
	if diff := cmp.Diff(want, faults); diff != "" {
		t.Errorf("foreign messages (-want +got):\n%s", diff)
	}
	if last := got[len(got)-1]; last.Record.GetProcess() != "frontend�[31m" || last.Record.GetReason() != "two�lines" {
		t.Errorf("texts are not printable: %v", last.Record)
	}
}

// A builder's key can make a missing stream with settings of its own. Builders refuse
// one from which a client deletes records, or that writes other subjects.
func TestSettings(t *testing.T) {
	for setting, change := range map[string]func(c *bus.StreamConfig){
		"republish": func(c *bus.StreamConfig) {
			c.RePublish = &jetstream.RePublish{Source: ">", Destination: "meshlog.ver.>"}
		},
		"allow_rollup_hdrs": func(c *bus.StreamConfig) { c.AllowRollup, c.DenyPurge = true, false },
		"deny_purge":        func(c *bus.StreamConfig) { c.DenyPurge = false },
		"deny_delete":       func(c *bus.StreamConfig) { c.DenyDelete = false },
		"allow_msg_ttl":     func(c *bus.StreamConfig) { c.AllowMsgTTL = true },
		"subjects":          func(c *bus.StreamConfig) { c.Subjects = []string{"meshlog.audit.mesh.>"} },
	} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			nc := connect(t)
			js, err := jetstream.New(nc)
			must(t, err)
			if _, _, err := newReader(t, nc).Newest(t.Context(), 1); !errors.Is(err, ErrNoStream) {
				t.Errorf("read without a stream: %v", err)
			}
			c := StreamOptions{}.Config()
			change(&c)
			_, err = js.CreateStream(t.Context(), c)
			must(t, err)
			if err := EnsureStream(t.Context(), nc, StreamOptions{}); err == nil || !strings.Contains(err.Error(), setting+": is ") {
				t.Errorf("the stream is taken: %v", err)
			}
		})
	}
}

// CA-9: Store returns when the stream has the record, once, and fails if it has none.
func TestStore(t *testing.T) {
	nc := connect(t)
	w := newWriter(t, nc, eu, "watcher-1")
	if err := w.Store(t.Context(), given("a")); err == nil {
		t.Error("a record without a stream is stored")
	}
	must(t, EnsureStream(t.Context(), nc, StreamOptions{}), w.Store(t.Context(), given("b")))
	got := all(t, nc)
	if len(got) != 1 || got[0].Record.GetName() != "b" || w.written.Load() != 1 {
		t.Errorf("the stream has %+v", got)
	}
	for name, r := range map[string]*auditv1.Record{
		"a key":     {Digest: []byte("a key")},
		"too large": {Reason: strings.Repeat("x", maxRecord)},
	} {
		if err := w.Store(t.Context(), r); err == nil {
			t.Errorf("%s is stored", name)
		}
	}
	lost(t, w, 0, 0, 0)
}
