package act

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"meshlog.dev/events/natslog"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/builder/streams"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/inspect"
	"meshlog.dev/store"
	"meshlog.dev/store/natsfeed"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/busauth"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/operatetest"
)

func TestMain(m *testing.M) { operatetest.Main(m) }

var at = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func TestPrintHolds(t *testing.T) {
	holds := views([]*reportv1.Hold{
		{Id: "hold-1", Source: "file", Instance: "default", Keys: 10, Reason: "file/default lost 10 of its 11 objects at once"},
	}, []*reportv1.Quarantine{{
		Id: "quarantine-0af7651916cd", TypeUrl: "type.googleapis.com/envoy.config.listener.v3.Listener", Name: "ingress",
		Client: "envoy 1.38.0", Reason: "Error adding/updating listener(s) ingress: no such filter", Since: timestamppb.New(at), LastGood: true,
	}})
	operatetest.Golden(t, "approve", func(o *command.Output) { o.Print(holds, func() { showHolds(holds, o) }) })
}

func TestPrintRemoval(t *testing.T) {
	remove := removeView{Source: "file", Instance: "old", Objects: []string{"Resource a/b (file/old)", "Resource a/c (file/old)"}}
	operatetest.Golden(t, "sources-remove", func(o *command.Output) { o.Print(remove, func() { remove.show(o) }) })
	remove.Kinds, remove.Unserved = []string{"Resource", "Sidecar"}, 1
	operatetest.Golden(t, "sources-remove-kinds", func(o *command.Output) { o.Print(remove, func() { remove.show(o) }) })
	remove.Removed, remove.Version, remove.Held = true, "1.7", []string{"hold-1-1.7-file-old"}
	operatetest.Golden(t, "sources-removed-kinds", func(o *command.Output) { o.Print(remove, func() { remove.show(o) }) })
}

// meshlog runs a command on a mesh, and decodes its JSON output into into.
func meshlog(t *testing.T, m *operatetest.Mesh, into any, args ...string) error {
	t.Helper()
	root, sources := &cobra.Command{SilenceErrors: true, SilenceUsage: true}, inspect.Sources()
	sources.AddCommand(RemoveSource())
	root.AddCommand(sources, Approve(), inspect.Wait())
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetArgs(append(args, "-o", "json", "--data", m.Data))
	err := root.ExecuteContext(t.Context())
	if err == nil && into != nil {
		err = json.Unmarshal(out.Bytes(), into)
	}
	return err
}

// openSources opens the sources of a mesh as commands do.
func openSources(t *testing.T, m *operatetest.Mesh) *command.Sources {
	t.Helper()
	target := &command.Target{Data: m.Data, Bus: process.DefaultBus()}
	t.Cleanup(func() {
		if err := target.Close(); err != nil {
			t.Error(err)
		}
	})
	s, err := target.Sources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// openLog opens the log of a mesh as the watcher of a shard does.
func openLog(t *testing.T, m *operatetest.Mesh, shard ident.Shard) events.Appender {
	t.Helper()
	nc, err := bus.Connect(bus.ConnectOptions{
		URL: filepath.Join(m.Data, bus.FileName), Role: bus.Watcher(shard), Name: "test", Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	log, err := natslog.Open(t.Context(), nc, natslog.Options{Shard: &shard})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	return log
}

// A source without a watcher stays as it is until an operator removes it. The
// removal also approves the hold that the guard places.
func TestRemoveSource(t *testing.T) {
	t.Parallel()
	m := operatetest.Start(t, nil)
	old := ident.Shard{Source: "file", Instance: "old"}
	speak(t, openLog(t, m, old), old, 6)
	if err := meshlog(t, m, nil, "wait", "latest", "--for", "0"); err != nil {
		t.Fatal(err)
	}

	sources := func(args ...string) (views []command.Source) {
		t.Helper()
		if err := meshlog(t, m, &views, append([]string{"sources"}, args...)...); err != nil {
			t.Fatal(err)
		}
		return views
	}
	got := map[string]string{}
	for _, v := range sources() {
		got[v.Shard().String()] = fmt.Sprintf("%s %s %d frozen=%t synced=%t", v.State, v.Holder, v.Objects, v.Frozen, v.Synced)
		if v.HasWatcher() && (v.Listed.IsZero() || v.Heard.IsZero()) {
			t.Errorf("%s: has no time of the last listing or record: %+v", v.Shard(), v)
		}
	}
	if diff := cmp.Diff(map[string]string{
		"file/default": "following up 0 frozen=false synced=true", "up/default": "following up 1 frozen=false synced=true",
		"file/old": "silent old 6 frozen=true synced=true",
	}, got); diff != "" {
		t.Error(diff)
	}
	for name, want := range map[string]string{
		"file/default": "watcher up publishes for it", "file/old": "watcher old published for it",
		"file/none": "no watcher has ever published for it", "file": "want SOURCE/INSTANCE",
	} {
		if err := meshlog(t, m, nil, "sources", "remove", name, "--yes"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("sources remove %s: %v, want %q", name, err, want)
		}
	}

	read := openSources(t, m)
	r := &removal{Sources: read, log: read.Log, shard: old}
	if err := r.check(t.Context(), time.Now().Add(removedAfter)); err != nil {
		t.Fatal(err)
	}
	if len(r.view.Objects) != 6 || r.view.Removed {
		t.Errorf("preview: %+v", r.view)
	}
	if err := r.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !r.view.Removed || len(r.view.Approved) != 1 {
		t.Errorf("after the removal: %+v, want a hold that was approved", r.view)
	}
	if left := sources(); len(left) != 2 {
		t.Errorf("sources after the removal: %+v", left)
	}
	var holds []holdView
	if err := meshlog(t, m, &holds, "approve"); err != nil || len(holds) != 0 {
		t.Errorf("the guard still holds %+v: %v", holds, err)
	}
	if all := sources("--all"); len(all) != 3 || all[1].State != command.StateGone {
		t.Errorf("sources --all after the removal: %+v", all)
	}
}

// speak appends the records of a watcher that lists some objects of a source and then
// publishes no more.
func speak(t *testing.T, log events.Appender, shard ident.Shard, objects int) {
	t.Helper()
	k, _ := kind.ByName("MeshPolicy")
	payload, err := k.Encode(&configv1.MeshPolicy{})
	if err != nil {
		t.Fatal(err)
	}
	var digests events.ShardDigests
	bodies := []events.Body{&events.Begin{Shard: shard, Session: "old-1", Holder: "old"}}
	for i := range objects {
		o := &events.Object{
			Key: ident.Key{Source: shard.Source, Instance: shard.Instance, Kind: "MeshPolicy", Name: fmt.Sprint("p", i)},
			Op:  events.Put, Value: ident.Value{Type: k.TypeURL, Bytes: payload}, Session: "old-1", Pseq: uint64(i + 1), Low: 1,
		}
		digests.Toggle(o.Key, events.ContentHash(o.Key, o.Value))
		bodies = append(bodies, o)
	}
	bodies = append(bodies, &events.Alive{
		Shard: shard, Session: "old-1", Low: uint64(objects + 1), Digest: digests.Sum(), Listed: events.AllBuckets(),
	})
	for i, body := range bodies {
		e := events.Event{ID: fmt.Sprint("old/", i), Observed: at, Actor: "old", Body: body}
		if _, err := log.Append(t.Context(), []events.Event{e}, events.Fence{}); err != nil {
			t.Fatal(err)
		}
	}
}

// rewound is a bus whose log was rewound. Its newest version, 1.100, is from a part of
// the log that was lost, and the builder has begun epoch 2 at a smaller sequence.
type rewound struct {
	log   *natslog.Log
	fleet *bus.Fleet
	head  *snapshotv1.Version
}

func rewind(t *testing.T, dir string) *rewound {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	server, err := bus.StartServer(bus.ServerOptions{
		Dir: dir, Listen: "127.0.0.1:0", Accounts: busauth.Accounts(process.DefaultDomain, bus.Builder(), bus.Operator()), Log: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	nc, err := bus.Connect(bus.ConnectOptions{Server: server, Role: bus.Builder(), Name: "test", Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	domain := process.DefaultDomain
	if _, err := natslog.EnsureStream(t.Context(), nc, streams.Log(domain, 1, time.Hour, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if _, err := natsfeed.EnsureStreams(t.Context(), nc, natsfeed.StreamOptions{}); err != nil {
		t.Fatal(err)
	}
	log, err := natslog.Open(t.Context(), nc, natslog.Options{Domain: domain})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	chain, err := natsfeed.Open(t.Context(), nc, natsfeed.Options{Domain: domain})
	if err != nil {
		t.Fatal(err)
	}
	r := &rewound{log: log, fleet: bus.NewFleet(nc, domain, quiet), head: &snapshotv1.Version{Epoch: 1, Seq: 100}}
	held := world.Overlay{ID: "hold-1", Kind: ident.Hold, Reason: "lost", Values: []ident.OverlayValue{{
		Key: ident.Key{Source: "file", Instance: "default", Kind: "MeshPolicy", Name: "p"}, Value: &ident.Value{Type: "t"},
	}}}
	delta := store.Delta{Put: []store.Row{{Key: ident.OverlayRow(held.ID), Value: world.MarshalOverlay(held)}}}
	root := new(store.Snapshot).With(delta).Root()
	manifest := &store.Manifest{Version: r.head, Root: root[:], RecordTime: timestamppb.New(at), PublishTime: timestamppb.New(at)}
	if _, err := chain.Publish(t.Context(), store.Update{Manifest: manifest, Delta: delta}, 0, chain.Generation()); err != nil {
		t.Fatal(err)
	}
	if _, err := log.Append(t.Context(), []events.Event{{ID: "segment", Body: &events.Segment{Epoch: 2, Build: "test"}}}, events.Fence{}); err != nil {
		t.Fatal(err)
	}
	reporter := r.fleet.BuilderReporter("b", bus.NewPeers(r.fleet), r.report)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = reporter.Run(ctx) // returns when ctx ends
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return r
}

// report is what an impostor answers: that something else is held back, and that
// every approval is published.
func (r *rewound) report() *reportv1.BuilderReport {
	return &reportv1.BuilderReport{
		Builder: "b", Leader: true, Head: &snapshotv1.Version{Epoch: 9, Seq: 900}, Position: &snapshotv1.Version{Epoch: 9, Seq: 900},
		Holds:       []*reportv1.Hold{{Id: "invented", Parts: []string{"policy"}}},
		Quarantines: []*reportv1.Quarantine{{Id: "invented too"}},
	}
}

// publish makes the builder publish a version.
func (r *rewound) publish(t *testing.T, v *snapshotv1.Version) {
	t.Helper()
	if err := r.fleet.Tick(t.Context(), &reportv1.Tick{Leader: "b", Head: v, Position: v}); err != nil {
		t.Error(err)
	}
}

// After a rewind, a version of the old epoch does not count as showing an approval,
// however large its sequence is. BUS-7: neither does the answer of a process that
// calls itself a builder, nor can it say what is held back.
func TestApproveAfterRewind(t *testing.T) {
	t.Parallel()
	m := &operatetest.Mesh{Data: t.TempDir()}
	r := rewind(t, m.Data)
	var holds []holdView
	if err := meshlog(t, m, &holds, "approve"); err != nil || len(holds) != 1 || holds[0].ID != "hold-1" || holds[0].Keys != 1 {
		t.Errorf("held back: %+v, %v; want hold-1, which the newest version has", holds, err)
	}
	for _, id := range []string{"invented", "invented too", "policy"} {
		if err := meshlog(t, m, nil, "approve", id, "--timeout", "1s"); err == nil || !strings.Contains(err.Error(), "nothing with this id") {
			t.Errorf("approve %s: %v, want that there is no such hold", id, err)
		}
	}
	if b, err := r.log.Bounds(t.Context()); err != nil || b.Last != 1 {
		t.Errorf("the log ends at %d (%v), want 1: nothing was approved", b.Last, err)
	}
	err := meshlog(t, m, nil, "approve", "hold-1", "--timeout", "1s")
	if err == nil || !strings.Contains(err.Error(), "approved hold-1 with record 2, but no version shows it yet") {
		t.Errorf("approve, while the newest version is 1.100: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ticking := make(chan struct{})
	go func() { // as the leader, once a second
		defer close(ticking)
		for ctx.Err() == nil {
			r.publish(t, &snapshotv1.Version{Epoch: 2, Seq: 3})
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	defer func() { cancel(); <-ticking }()
	var v approvedView
	if err := meshlog(t, m, &v, "approve", "hold-1"); err != nil || v.Seq != 3 || v.Version != "2.3" {
		t.Errorf("approve, once 2.3 is published: %+v, %v", v, err)
	}
}

// bus-auth says what servers need: nothing, a reload, two reloads after it has added an
// account, or a migration.
func TestBusAuthSaysWhatToDo(t *testing.T) {
	for state, want := range map[string]string{
		"kept": "Nothing has changed.", "changed": "Have the NATS servers load it: nats-server --signal reload.",
		"new": "Have the NATS servers load it: nats-server", "extended": "Have the NATS servers load it, twice:", "replaced": "see Migration in deploy/nats/README.md",
	} {
		var b bytes.Buffer
		showFiles([]busauth.File{{Path: "auth.conf", State: state}}, command.NewOutput(&b, command.Table))
		if !strings.Contains(b.String(), want) {
			t.Errorf("%s: prints %q, not %q", state, b.String(), want)
		}
		// Files of the exchange of keys are no business of the servers.
		b.Reset()
		showFiles([]busauth.File{{Path: "auth.conf", State: state}, {Path: "xkeys.pub", State: "new"}, {Path: "frontend.xk", State: "new"}}, command.NewOutput(&b, command.Table))
		if state == "kept" {
			want = "The NATS servers have nothing to load."
		}
		if !strings.Contains(b.String(), want) || !strings.Contains(b.String(), "Give xkeys.pub to each frontend and watcher") {
			t.Errorf("%s, with a new list: prints %q, not %q", state, b.String(), want)
		}
		// A new key changes nothing about that.
		b.Reset()
		showFiles([]busauth.File{{Path: "auth.conf", State: state}, {Path: "x.nk", State: "new"}}, command.NewOutput(&b, command.Table))
		if state != "kept" && !strings.Contains(b.String(), want) {
			t.Errorf("%s, with a new key: prints %q, not %q", state, b.String(), want)
		}
	}
}
