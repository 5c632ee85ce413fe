package suite

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
)

// drivers are the drivers of the log. The function that start returns opens logs,
// each new and empty, and registers their cleanup.
var drivers = []struct {
	name  string
	start func(t *testing.T) (open func(t *testing.T) Driver)
	// static logs, such as a copy in a file, do not grow while a client reads them.
	// They contain the events that a case appended before its first read.
	static bool
}{
	{name: "memlog", start: alone(openMemlog)},
	{name: "archive", start: alone(openArchive), static: true},
	{name: "natslog", start: alone(openNatslog)},
	{name: "natslog-cluster", start: startNatslogCluster},
}

// alone returns the start of a driver whose logs share nothing with each other.
func alone(open func(t *testing.T) Driver) func(*testing.T) func(*testing.T) Driver {
	return func(*testing.T) func(*testing.T) Driver { return open }
}

// groups are all cases of the suite.
var groups = []struct {
	name   string
	cases  []test
	static bool // for static logs too
}{
	{"append", appendTests, false},
	{"read", readTests, true},
	{"follow", followTests, true},
	{"follow", growingTests, false},
}

func TestSuite(t *testing.T) {
	for _, d := range drivers {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel() // the drivers wait for disks, and for elections
			open := d.start(t)
			for _, g := range groups {
				if d.static && !g.static {
					continue
				}
				for _, c := range g.cases {
					t.Run(g.name+"/"+c.name, func(t *testing.T) { c.run(t, open(t)) })
				}
			}
		})
	}
}

// Log is a log under test. After Close every method returns ErrClosed.
type Log interface {
	events.Appender
	events.Reader
	events.RawReader
	Close() error
}

// Driver is a log under test and the faults that the suite causes. Each call
// returns when the log shows the effect. Static logs have Log, AppendRaw,
// AppendForeign and Trim.
type Driver struct {
	Log Log
	// AppendRaw appends any bytes, as a client with a key of its own can.
	AppendRaw func(s events.Subject, raw []byte)
	// AppendForeign appends a message that no publisher of meshlog sent. On NATS the
	// server writes the first one, as an answer; the next one lacks a header.
	AppendForeign func(s events.Subject, raw []byte)
	// Trim drops the records before seq first.
	Trim func(first uint64)
	// Rewind drops the records after seq last, and the connection.
	Rewind func(last uint64)
	// Reconnect renews the connection; the log stays as it is.
	Reconnect func()
	// SetFull makes the log refuse all events, or accept them again.
	SetFull func(full bool)
	// Acked returns the last acknowledgement under a follower's name.
	Acked func(name string) uint64
}

type test struct {
	name string
	run  func(*testing.T, Driver)
}

var (
	shard    = ident.Shard{Source: "test", Instance: "one"}
	observed = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
)

// put returns the n-th object of a session; the namespace of its key selects its
// subject.
func put(session string, n int, namespace string) events.Event {
	return events.Event{
		ID:       fmt.Sprintf("%s/%s/%d", shard, session, n),
		Observed: observed,
		Body: &events.Object{
			Key:     ident.Key{Source: shard.Source, Instance: shard.Instance, Kind: "Thing", Namespace: namespace, Name: "n" + strconv.Itoa(n)},
			Op:      events.Put,
			Value:   ident.Value{Type: "example.com/thing", Bytes: fmt.Appendf(nil, "%s %d", session, n)},
			Session: session,
			Pseq:    uint64(n),
			Low:     1,
		},
	}
}

// puts returns the objects 1 to n of a session.
func puts(session string, n int, namespace string) []events.Event {
	batch := make([]events.Event, n)
	for i := range batch {
		batch[i] = put(session, i+1, namespace)
	}
	return batch
}

// large returns an event with a payload of n bytes.
func large(id string, n int) events.Event {
	e := put(id, 1, "large")
	e.Body.(*events.Object).Value.Bytes = make([]byte, n)
	return e
}

func subjectOf(t *testing.T, e events.Event) events.Subject {
	t.Helper()
	s, err := events.SubjectOf(e)
	must(t, err)
	return s
}

func onSubject(t *testing.T, e events.Event, seq uint64) events.Fence {
	t.Helper()
	return events.Fence{Kind: events.FenceSubject, Subject: subjectOf(t, e), Seq: seq}
}

func onLog(seq uint64) events.Fence {
	return events.Fence{Kind: events.FenceLog, Seq: seq}
}

// mustAppend appends without a fence and returns the last Seq.
func mustAppend(t *testing.T, l Log, batch ...events.Event) uint64 {
	t.Helper()
	ack, err := l.Append(t.Context(), batch, events.Fence{})
	must(t, err)
	if ack.Duplicate {
		t.Fatalf("append of %s: reported as a duplicate", batch[0].ID)
	}
	return ack.Seq
}

// wantBounds checks the bounds of the log.
func wantBounds(t *testing.T, l Log, first, last uint64) {
	t.Helper()
	got, err := l.Bounds(t.Context())
	if want := (events.Bounds{First: first, Last: last}); got != want || err != nil {
		t.Fatalf("bounds = %+v, %v, want %+v", got, err, want)
	}
}

// wantLog checks that the log holds want, in order, and no other record.
func wantLog(t *testing.T, l Log, want ...events.Event) {
	t.Helper()
	wantBounds(t, l, 1, uint64(len(want)))
	for i, e := range want {
		wantAt(t, l, uint64(i+1), e)
	}
}

// wantAt checks the record at seq.
func wantAt(t *testing.T, l Log, seq uint64, e events.Event) {
	t.Helper()
	r, err := l.Get(t.Context(), seq)
	must(t, err)
	wantRecord(t, r, seq, e)
}

func wantRecord(t *testing.T, r events.Record, seq uint64, e events.Event) {
	t.Helper()
	if r.Seq != seq || r.Err != nil {
		t.Fatalf("record %d: Seq = %d, Err = %v", seq, r.Seq, r.Err)
	}
	if diff := cmp.Diff(e, r.Event); diff != "" {
		t.Fatalf("record %d (-appended +read):\n%s", seq, diff)
	}
	raw, err := events.Encode(e)
	must(t, err)
	if r.Time.IsZero() || r.Hash != events.RecordHash(raw, r.Time) {
		t.Fatalf("record %d: time %v, hash %s", seq, r.Time, r.Hash)
	}
}

// must fails on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: error is %v, want %v", what, err, want)
	}
}
