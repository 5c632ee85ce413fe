package natslog_test

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/deploy/testkit/natstest"
	"meshlog.dev/events"
	"meshlog.dev/events/archive"
	"meshlog.dev/events/natslog"
	"meshlog.dev/proto/ident"
	"meshlog.dev/proto/jsapi"
)

// TestServerMade lets the server write to the log with each request that a client
// may send, and the log's own subject as the reply (BUS-2): the answers keep their
// positions and are refused, also a copy of a record with all its headers.
func TestServerMade(t *testing.T) {
	t.Run("one server", func(t *testing.T) { serverMade(t, natstest.Start(t).Connect(t), 1) })
	t.Run("three servers", func(t *testing.T) { serverMade(t, natstest.StartCluster(t)[0].Connect(t), 3) })
}

func serverMade(t *testing.T, nc *nats.Conn, replicas int) {
	t.Helper()
	o := natslog.StreamOptions{Options: natslog.Options{Domain: "d"}, Replicas: replicas}
	l := newLog(t, nc, o)
	js := natstest.JetStream(t, nc)
	if _, err := l.Append(t.Context(), []events.Event{begin(1)}, events.Fence{}); err != nil {
		t.Fatal(err)
	}
	data, err := events.Encode(begin(2))
	if err != nil {
		t.Fatal(err)
	}
	subject := events.ControlSubject(shard).In("d")
	// Without an id, for the server takes an answer with a known id for a retry.
	if _, err := js.Publish(t.Context(), subject, data, jetstream.WithExpectStream(natslog.Stream)); err != nil {
		t.Fatal(err)
	}
	requests := []struct {
		to, body string
		answers  uint64
	}{
		{jsapi.DirectGet + natslog.Stream, `{"seq":2}`, 1},
		{jsapi.DirectGet + natslog.Stream, `{"seq":2,"next_by_subj":"` + subject + `","batch":1}`, 2},
		{jsapi.DirectGet + natslog.Stream + "." + subject, ``, 1},
		{jsapi.DirectGet + natslog.Stream, `{"seq":99}`, 1},
		{jsapi.MessageGet + natslog.Stream, `{"seq":2}`, 1},
		{jsapi.StreamInfo + natslog.Stream, ``, 1},
		{jsapi.AccountInfo, ``, 1},
	}
	f, err := l.Follow(t.Context(), 2, "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	last := uint64(2)
	for _, r := range requests {
		if err := nc.PublishRequest(r.to, subject, []byte(r.body)); err != nil {
			t.Fatal(err)
		}
		for end := last + r.answers; last < end; {
			records, err := f.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, got := range records {
				if last++; got.Seq != last || !errors.Is(got.Err, events.ErrRefused) || got.Event.Body != nil {
					t.Errorf("%s %s: %+v", r.to, r.body, got)
				}
			}
		}
	}
	newest, err := l.Last(t.Context(), events.ControlSubject(shard))
	if err != nil || newest.Seq != last || !errors.Is(newest.Err, events.ErrRefused) {
		t.Errorf("last: %+v, %v", newest, err)
	}
	// A client of one shard reads by Direct Get, whose answers have the headers that
	// are refused in a stored message.
	own := open(t, nc, natslog.Options{Domain: "d", Shard: &shard})
	if got, err := own.Last(t.Context(), events.ControlSubject(shard)); err != nil || got.Seq != last || fmt.Sprint(got.Err) != fmt.Sprint(newest.Err) {
		t.Errorf("last, by Direct Get: %+v, %v", got, err)
	}
	if _, err := l.Append(t.Context(), []events.Event{begin(3)}, events.Fence{Kind: events.FenceSubject, Subject: events.ControlSubject(shard), Seq: last}); err != nil {
		t.Fatal(err)
	}
	if got, err := own.Last(t.Context(), events.ControlSubject(shard)); err != nil || got.Seq != last+1 || got.Err != nil || got.Event.ID != begin(3).ID {
		t.Errorf("last, by Direct Get: %+v, %v", got, err)
	}
}

// TestForgedHeaders reads a record whose writer gave it headers of the server.
func TestForgedHeaders(t *testing.T) {
	nc := natstest.Start(t).Connect(t)
	newLog(t, nc, natslog.StreamOptions{Options: natslog.Options{Domain: "d"}})
	own := open(t, nc, natslog.Options{Domain: "d", Shard: &shard})
	data, err := events.Encode(begin(1))
	if err != nil {
		t.Fatal(err)
	}
	_, err = natstest.JetStream(t, nc).PublishMsg(t.Context(), &nats.Msg{
		Subject: events.ControlSubject(shard).In("d"), Data: data,
		Header: nats.Header{
			jetstream.ExpectedStreamHeader: {natslog.Stream}, jetstream.SequenceHeader: {"77"},
			jetstream.TimeStampHeaer: {"2020-01-02T03:04:05Z"}, jetstream.SubjectHeader: {"x"}, "Status": {"404"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := own.Last(t.Context(), events.ControlSubject(shard))
	if err != nil || got.Seq != 1 || got.Err != nil || time.Since(got.Time) > time.Hour {
		t.Errorf("%+v, %v", got, err)
	}
}

// A record whose headers end before the block does may hide a header that the server
// added, such as Nats-Stream in its answer to a request: it is refused, by all readers.
func TestHiddenHeaders(t *testing.T) {
	b := natstest.Start(t)
	l := newLog(t, b.Connect(t), natslog.StreamOptions{})
	data, err := events.Encode(begin(1))
	if err != nil {
		t.Fatal(err)
	}
	ours := "NATS/1.0\r\n" + jetstream.ExpectedStreamHeader + ": " + natslog.Stream + "\r\n"
	subject := events.ControlSubject(shard).In("mesh")
	rawData(t, b, subject, ours+"\r\n", string(data))
	rawData(t, b, subject, ours+"\r\n"+jetstream.StreamHeader+": "+natslog.Stream+"\r\n\r\n", string(data))
	f, err := l.Follow(t.Context(), 0, "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var read []events.Record
	for len(read) < 2 {
		more, err := f.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		read = append(read, more...)
	}
	for i, followed := range read {
		got, err := l.Get(t.Context(), uint64(i+1))
		if err != nil {
			t.Fatal(err)
		}
		if refused := i == 1; (got.Err != nil) != refused || (followed.Err != nil) != refused {
			t.Errorf("record %d: read %v, got %v; want it refused: %t", i+1, followed.Err, got.Err, refused)
		}
	}
}

// BUS-2: subject and headers may hold any bytes. The record is refused, its reason is
// a short text, and archives take both.
func TestTextOfForeignRecords(t *testing.T) {
	b := natstest.Start(t)
	l := newLog(t, b.Connect(t), natslog.StreamOptions{})
	subjects := []string{"s.i.\xff", "s.i.\x1b[31m", "s.i._ctl"}
	for _, s := range subjects {
		raw(t, b, "meshlog.ev.mesh."+s, "NATS/1.0\r\nMeshlog-Refused: \xff\x1b"+strings.Repeat("x", 1<<15)+"\r\n\r\n")
	}
	for s, err := range l.Sizes(t.Context(), 0) { // waits until all are stored
		if err != nil {
			t.Fatal(err)
		}
		if s.Seq == uint64(len(subjects)) {
			break
		}
	}
	w, err := archive.NewWriter(io.Discard, 1)
	if err != nil {
		t.Fatal(err)
	}
	for r, err := range l.Raw(t.Context(), 1, uint64(len(subjects))) {
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Record().Err; !errors.Is(err, events.ErrRefused) || events.Printable(err.Error()) != err.Error() || len(err.Error()) > 1200 {
			t.Errorf("%q: %.200v, want a short reason that can be printed", subjects[r.Seq-1], err)
		}
		if err := w.Append(r); err != nil {
			t.Error(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// TestRestoreKeepsVerdicts restores records that the archived log refused. They stay
// refused, also an epoch that the new times would allow, and keep the reason
// (BUS-1, BUS-2).
func TestRestoreKeepsVerdicts(t *testing.T) {
	subject := events.ControlSubject(shard)
	data := func(e events.Event) []byte {
		b, err := events.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	now := uint64(time.Now().Unix())
	records := []events.Raw{
		{Subject: subject, Data: data(begin(1))},
		{Subject: subject, Data: data(begin(2)), Refused: "a server made it,\nor not: \u00fc"},
		{Subject: events.SegmentSubject, Data: data(events.Event{ID: "s", Body: &events.Segment{Epoch: now, Build: "b"}})},
		{Subject: events.SegmentSubject, Data: data(begin(3))},
		{Subject: events.SegmentSubject, Data: []byte("of a newer build")},
	}
	for i := range records {
		records[i].Seq, records[i].Time = uint64(i+1), time.Unix(1, 0)
	}
	nc := natstest.Start(t).Connect(t)
	o := natslog.StreamOptions{Options: natslog.Options{Domain: "d"}, MaxAge: time.Hour}
	if err := natslog.Restore(t.Context(), nc, o, 1, sequence(records)); err != nil {
		t.Fatal(err)
	}
	l := open(t, nc, o.Options)
	var restored []events.Raw
	for r, err := range l.Raw(t.Context(), 1, uint64(len(records))) {
		if err != nil {
			t.Fatal(err)
		}
		restored = append(restored, r)
		was, is := records[r.Seq-1].Record(), r.Record()
		if (was.Err == nil) != (is.Err == nil) || errors.Is(was.Err, events.ErrRefused) != errors.Is(is.Err, events.ErrRefused) {
			t.Errorf("record %d: was %v, is %v", r.Seq, was.Err, is.Err)
		}
	}
	if restored[1].Refused != "a server made it,?or not: ?" {
		t.Errorf("reason is %q", restored[1].Refused)
	}
	// A copy of the copy is the same.
	again := slices.Clone(restored)
	nc2 := natstest.Start(t).Connect(t)
	if err := natslog.Restore(t.Context(), nc2, o, 1, sequence(again)); err != nil {
		t.Fatal(err)
	}
	for r, err := range open(t, nc2, o.Options).Raw(t.Context(), 1, uint64(len(records))) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Refused != restored[r.Seq-1].Refused {
			t.Errorf("record %d: refused %q, was %q", r.Seq, r.Refused, restored[r.Seq-1].Refused)
		}
	}
}

var shard = ident.Shard{Source: "s", Instance: "i"}
