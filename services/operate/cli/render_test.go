package cli

import (
	"bytes"
	"context"
	"flag"
	"iter"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/events"
	"meshlog.dev/events/memlog"
	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/store"
)

var update = flag.Bool("update", false, "rewrite testdata/*.golden")

func TestMain(m *testing.M) {
	time.Local = time.UTC // tables show the reader's zone
	flag.Parse()
	os.Exit(m.Run())
}

var at = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func stamp(after time.Duration) *timestamppb.Timestamp { return timestamppb.New(at.Add(after)) }

// golden compares what is printed in each format with testdata/<name>.golden.
func golden(t *testing.T, name string, print func(*output) error) {
	t.Helper()
	var got bytes.Buffer
	for _, format := range []string{"table", "json", "yaml"} {
		got.WriteString("-- " + format + " --\n")
		before := got.Len()
		if err := print(&output{w: &got, format: format}); err != nil {
			t.Fatal(err)
		}
		if got.Len() == before {
			t.Errorf("%s: as %s nothing is printed", name, format)
		}
	}
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, got.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; `go test -update` writes it", err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("%s (`go test -update` rewrites it): %s", path, diff)
	}
}

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
	golden(t, "versions", func(o *output) error { return listVersions(all, versionsOptions{tail: -1}, o) })

	v := viewVersion(manifests[0])
	v.Changes[0].Cause = "PUT routes.yaml:2 by file"
	golden(t, "version", func(o *output) error {
		return o.print(v, func() error { return showVersion(v, o) })
	})
}

func TestPrintProxies(t *testing.T) {
	cds, lds, rds := ident.CDS.URL(), ident.LDS.URL(), ident.RDS.URL()
	v := func(seq uint64) *snapshotv1.Version { return &snapshotv1.Version{Epoch: 1, Seq: seq} }
	reports := []*reportv1.FrontendReport{
		{Frontend: "f2", Leaving: true, Proxies: []*reportv1.ProxyReport{{Id: "gone"}}},
		{Frontend: "f1", Serving: v(42), Proxies: []*reportv1.ProxyReport{{
			Id: "envoy-1", Cluster: "demo", Type: "router", Group: "demo", ConnectedSince: stamp(0),
			Types: []*reportv1.TypeReport{
				{TypeUrl: cds, Sent: v(42), Acked: v(42), SentVersion: "a", AckedVersion: "a", SentTime: stamp(0), AckedTime: stamp(time.Second), Resources: 3},
				{TypeUrl: lds, Sent: v(42), Acked: v(12), SentVersion: "b", AckedVersion: "a", SentTime: stamp(50 * time.Second), AckedTime: stamp(0)},
				{
					TypeUrl: rds, Sent: v(42), SentVersion: "b", SentTime: stamp(0),
					Nack:     &reportv1.Nack{Message: "no such cluster", Time: stamp(30 * time.Second), Resources: []string{"routes"}},
					HeldBack: []string{"routes"},
				},
			},
		}, {
			Id: "envoy-2", Type: "sidecar", ConnectedSince: stamp(0), Delta: true, Only: cds, Lingering: 2,
			Types: []*reportv1.TypeReport{{TypeUrl: cds, Sent: v(42), SentVersion: "a", SentTime: stamp(38 * time.Second), Unanswered: stamp(38 * time.Second)}},
		}, {
			Id: "envoy-3", Type: "sidecar", Namespace: "shop", ConnectedSince: stamp(0), UserAgent: "envoy 1.38.0", Address: "10.0.0.1:4711",
			Types: []*reportv1.TypeReport{
				{TypeUrl: cds, Sent: v(42), Acked: v(42), SentVersion: "a", AckedVersion: "a", Quarantined: []string{"outbound|80||a.b", "c"}},
				{TypeUrl: lds, Sent: v(44), Acked: v(44), SentVersion: "a", AckedVersion: "a"},
			},
		}, {
			Id: "envoy-4", Type: "sidecar", ConnectedSince: stamp(0), Delta: true,
			Types: []*reportv1.TypeReport{{TypeUrl: cds, Sent: v(44), Acked: v(44), SentVersion: "a", AckedVersion: "a"}},
		}, {
			Id: "grpc-1", Type: "router", ConnectedSince: stamp(0),
			Types: []*reportv1.TypeReport{{TypeUrl: lds, TooLarge: true}},
		}}},
	}
	all := &bus.Reports{Frontends: reports, Builders: []*reportv1.BuilderReport{{Leader: true, Head: v(44)}}}
	chain := chainOf{{Version: v(44), PublishTime: stamp(55 * time.Second)}, {Version: v(42), PublishTime: stamp(50 * time.Second)}, {Version: v(12)}}
	now := at.Add(time.Minute)
	for name, f := range map[string]proxyFilter{
		"proxy-status": {}, "proxy-status-one": {id: "envoy-1"}, "proxy-status-rejected": {id: "envoy", rejected: true},
	} {
		views, err := viewProxies(t.Context(), all, lagging{chain, now}, f)
		if err != nil {
			t.Fatal(err)
		}
		golden(t, name, func(o *output) error {
			return o.print(views, func() error { return showProxies(views, all, f, now, o) })
		})
	}
}

// chainOf is the manifests of a chain, newest first.
type chainOf []*store.Manifest

func (c chainOf) History(context.Context) iter.Seq2[*store.Manifest, error] {
	return func(yield func(*store.Manifest, error) bool) {
		for _, m := range c {
			if !yield(m, nil) {
				return
			}
		}
	}
}

func TestPrintDiagnostics(t *testing.T) {
	ds := []*snapshotv1.Diagnostic{
		{
			Severity: snapshotv1.Severity_SEVERITY_ERROR, Code: "undecoded", Object: "Resource demo/routes (file/default)",
			Origin: "routes.yaml:7", Field: "spec.resource.name", Reason: "unknown field", Advice: "correct it", Effect: "the last good value serves",
		},
		{Severity: snapshotv1.Severity_SEVERITY_WARNING, Code: "conflict", Object: "Resource demo/x (file/b)", Reason: "file/a has it too"},
	}
	golden(t, "diagnostics", func(o *output) error {
		views := viewDiagnostics(ds)
		return o.print(views, func() error { return showDiagnostics(views, len(views), o) })
	})
}

func TestPrintHolds(t *testing.T) {
	holds := viewHolds(&reportv1.BuilderReport{Holds: []*reportv1.Hold{
		{Id: "hold-1", Source: "file", Instance: "default", Keys: 10, Reason: "file/default lost 10 of its 11 objects at once"},
	}, Quarantines: []*reportv1.Quarantine{{
		Id: "quarantine-0af7651916cd", TypeUrl: "type.googleapis.com/envoy.config.listener.v3.Listener", Name: "ingress",
		Client: "envoy 1.38.0", Reason: "Error adding/updating listener(s) ingress: no such filter", Since: timestamppb.New(at), LastGood: true,
	}}})
	golden(t, "approve", func(o *output) error { return o.print(holds, func() error { return showHolds(holds, o) }) })
}

// exampleLog has one record of each sort.
func exampleLog(t *testing.T) events.Reader {
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
	golden(t, "log", func(o *output) error {
		return showLog(t.Context(), log, logOptions{tail: -1}, o)
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
		{"tail of a filter", logOptions{tail: 1, only: keyPattern{kinds: []string{"MeshPolicy"}}}, []uint64{6}},
		{"nothing", logOptions{tail: 0}, nil},
		{"from", logOptions{tail: 1, from: "1.6"}, []uint64{6, 7, 8, 9}},
		{"from to", logOptions{from: "2", to: "3"}, []uint64{2, 3}},
		{"beyond", logOptions{from: "99"}, nil},
		{"source", logOptions{tail: -1, only: keyPattern{sources: []string{"file"}}}, []uint64{2, 3, 4, 6}},
		{"shard", logOptions{tail: -1, only: keyPattern{sources: []string{"file/default"}, names: []string{"default"}}}, []uint64{3, 6}},
		{"nobody", logOptions{tail: -1, only: keyPattern{namespaces: []string{"x"}}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b bytes.Buffer
			if err := showLog(t.Context(), log, c.o, &output{w: &b, format: "json"}); err != nil {
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

// Followed records stand below each other, whenever they come.
func TestLogFollow(t *testing.T) {
	log := exampleLog(t)
	ctx, cancel := context.WithCancel(t.Context())
	w := &cancelAfter{lines: 2, cancel: cancel}
	if err := showLog(ctx, log, logOptions{tail: 1, follow: true}, &output{w: w, format: "table"}); err != nil {
		t.Fatal(err)
	}
	want := "SEQ  TIME                     WHAT     OBJECT        FROM                        BY\n9    2026-11-21 12:00:00.000  OVERLAY  quarantine-1  1 resource: no such filter  me\n"
	if diff := cmp.Diff(want, w.printed.String()); diff != "" {
		t.Error(diff)
	}
}

// cancelAfter gives up after some lines.
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
