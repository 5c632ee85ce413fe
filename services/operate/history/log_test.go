package history

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"
	"time"

	configv1 "meshlog.dev/proto/meshlog/config/v1"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	"meshlog.dev/events"
	"meshlog.dev/events/memlog"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/operatetest"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

func TestMain(m *testing.M) { operatetest.Main(m) }

var at = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func stamp(after time.Duration) *timestamppb.Timestamp { return timestamppb.New(at.Add(after)) }

func TestPrintVersions(t *testing.T) {
	manifests := []*store.Manifest{
		{
			Version: &snapshotv1.Version{Epoch: 1, Seq: 42}, Previous: &snapshotv1.Version{Epoch: 1, Seq: 12},
			RecordTime: stamp(time.Minute), PublishTime: stamp(time.Minute + 4*time.Millisecond),
			Root: bytes.Repeat([]byte{0xab}, 32), RecordHash: []byte{1, 2, 3}, Build: "0.1.0+abc", Publisher: "builder-1",
			Changes: []*snapshotv1.KeyChange{
				{Key: "v/file/default/Resource/demo/routes", Seq: 41},
				{Key: "o/hold-1", Removed: true, Seq: 42},
			},
			ChangeCount: 2,
			Watermark:   []*snapshotv1.Watermark{{Source: "file", Instance: "default", Seq: 41, Synced: true, Partial: true}},
			Diagnostics: []*snapshotv1.Diagnostic{{Severity: snapshotv1.Severity_SEVERITY_ERROR}},
		},
		{
			Version: &snapshotv1.Version{Epoch: 1, Seq: 12}, RecordTime: stamp(0), Build: "0.1.0+abc",
			Root: bytes.Repeat([]byte{0xcd}, 32),
		},
	}
	all := func(yield func(*store.Manifest, error) bool) {
		for _, m := range manifests {
			if !yield(m, nil) {
				return
			}
		}
	}
	operatetest.Golden(t, "versions", func(o *command.Output) {
		if err := listVersions(all, versionsOptions{tail: -1}, o); err != nil {
			t.Error(err)
		}
	})

	v := VersionOf(manifests[0])
	v.Changes[0].Cause = "PUT routes.yaml:2 by file"
	operatetest.Golden(t, "version", func(o *command.Output) {
		o.Print(v, func() { v.show(o) })
	})
}

// exampleLog returns a log with one record of each sort.
func exampleLog(t *testing.T) past.Log {
	t.Helper()
	k, _ := kind.ByName("MeshPolicy")
	payload, err := k.Encode(&configv1.MeshPolicy{RootNamespace: "istio-system"})
	if err != nil {
		t.Fatal(err)
	}
	file := ident.Shard{Source: "file", Instance: "default"}
	key := ident.Key{Source: "file", Instance: "default", Kind: "MeshPolicy", Name: "default"}
	var listed events.BucketSet
	listed.Add(7)
	log := memlog.New(func() time.Time { return at })
	for i, body := range []events.Body{
		&events.Segment{Epoch: 1, Build: "0.1.0+abc"},
		&events.Begin{Shard: file, Session: "ABCDEFGHIJ-1", Holder: "watcher-1"},
		&events.Object{
			Key: key, Op: events.Put, Value: ident.Value{Type: k.TypeURL, Bytes: payload}, Origin: "policy.yaml:1",
			Session: "ABCDEFGHIJ-1", Pseq: 1, Low: 1,
		},
		&events.Alive{Shard: file, Session: "ABCDEFGHIJ-1", Low: 2, Listed: listed},
		&events.Alive{Shard: file, Session: "ABCDEFGHIJ-1", Low: 2},
		&events.Object{
			Key: key, Op: events.Delete, Origin: "policy.yaml:1", Session: "ABCDEFGHIJ-1", Pseq: 2, Low: 2,
			Batch: events.Batch{ID: "b", Index: 0, Total: 2},
		},
		&events.Overlay{ID: "hold-1", Kind: ident.Hold, Reason: "much is lost", Values: []ident.OverlayValue{{Key: key}}},
		&events.Overlay{ID: "hold-1", Remove: true},
		&events.Overlay{ID: "quarantine-1", Kind: ident.Quarantine, Reason: "no such filter", Values: []ident.OverlayValue{{
			Resource: &ident.Resource{Rejected: ident.Rejected{Type: "type.googleapis.com/envoy.config.listener.v3.Listener", Name: "ingress", Client: "envoy 1.38.0"}, Class: []byte("{}")},
		}}},
	} {
		e := events.Event{ID: string(rune('a' + i)), Observed: at, Actor: "me", Body: body}
		if _, err := log.Append(t.Context(), []events.Event{e}, events.Fence{}); err != nil {
			t.Fatal(err)
		}
	}
	return log
}

func TestPrintLog(t *testing.T) {
	log := exampleLog(t)
	operatetest.Golden(t, "log", func(o *command.Output) {
		if err := showLog(t.Context(), log, logOptions{tail: -1}, o); err != nil {
			t.Error(err)
		}
	})
}

func TestLogFilters(t *testing.T) {
	log := exampleLog(t)
	for _, c := range []struct {
		name string
		o    logOptions
		want []uint64
	}{
		{"all", logOptions{tail: -1}, []uint64{1, 2, 3, 4, 6, 7, 8, 9}},
		{"heartbeats", logOptions{tail: -1, heartbeats: true}, []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9}},
		{"tail", logOptions{tail: 2}, []uint64{8, 9}},
		{"tail of a filter", logOptions{tail: 1, only: command.Objects{Kinds: []string{"MeshPolicy"}}}, []uint64{6}},
		{"nothing", logOptions{tail: 0}, nil},
		{"from", logOptions{tail: 1, from: "1.6"}, []uint64{6, 7, 8, 9}},
		{"from to", logOptions{from: "2", to: "3"}, []uint64{2, 3}},
		{"beyond", logOptions{from: "99"}, nil},
		{"source", logOptions{tail: -1, only: command.Objects{Sources: []string{"file"}}}, []uint64{2, 3, 4, 6}},
		{"shard", logOptions{tail: -1, only: command.Objects{Sources: []string{"file/default"}, Names: []string{"default"}}}, []uint64{3, 6}},
		{"absent", logOptions{tail: -1, only: command.Objects{Namespaces: []string{"x"}}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b bytes.Buffer
			if err := showLog(t.Context(), log, c.o, command.NewOutput(&b, command.JSON)); err != nil {
				t.Fatal(err)
			}
			var got []uint64
			for _, v := range decode[[]recordView](t, b.Bytes()) {
				got = append(got, v.Seq)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The columns of followed records are aligned, whenever the records arrive.
func TestLogFollow(t *testing.T) {
	log := exampleLog(t)
	ctx, cancel := context.WithCancel(t.Context())
	w := &cancelAfter{lines: 2, cancel: cancel}
	if err := showLog(ctx, log, logOptions{tail: 1, follow: true}, command.NewOutput(w, command.Table)); err != nil {
		t.Fatal(err)
	}
	want := "SEQ  TIME                     WHAT     OBJECT        FROM                        BY\n9    2026-11-21 12:00:00.000  OVERLAY  quarantine-1  1 resource: no such filter  me\n"
	if diff := cmp.Diff(want, w.printed.String()); diff != "" {
		t.Error(diff)
	}
}

// cancelAfter is a writer that cancels after some lines.
type cancelAfter struct {
	printed bytes.Buffer
	lines   int
	cancel  func()
}

func (w *cancelAfter) Write(b []byte) (int, error) {
	n, err := w.printed.Write(b)
	if bytes.Count(w.printed.Bytes(), []byte("\n")) >= w.lines {
		w.cancel()
	}
	return n, err
}

func TestAliveOfKinds(t *testing.T) {
	alive := &events.Alive{Shard: ident.Shard{Source: "kubernetes", Instance: "c1"}, Session: "s1", Kinds: events.KindsOf("Pod", "Service"), Ends: true}
	record := events.Record{Seq: 7, Event: events.Event{ID: "x", Actor: "ann", Body: alive}}
	if _, detail := summary(record); detail != "session s1, of 2 kinds, ends" {
		t.Errorf("detail %q", detail)
	}
	if v := viewRecord(record).Session; !v.Ends || len(v.Kinds) != 2 {
		t.Errorf("view %+v", v)
	}
}

func decode[T any](t *testing.T, b []byte) (v T) {
	t.Helper()
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	return v
}
