package past_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"meshlog.dev/events"
	"meshlog.dev/events/archive"
	"meshlog.dev/events/memlog"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/builder"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

// mesh is a log, a chain, a source, and a real builder that the test runs step by
// step.
type mesh struct {
	t     *testing.T
	log   *memlog.Log
	chain *memstore.Chain
	file  *memstore.File
	now   time.Time
	ids   int

	builder   *builder.Machine
	after     uint64
	connected bool

	session int
	pseq    uint64
	offered map[ident.Key]ident.Value
}

type silent struct{}

func (silent) Tick(context.Context, *reportv1.Tick) error                 { return nil }
func (silent) AskListing(context.Context, *reportv1.ListingRequest) error { return nil }

// newMesh returns a mesh whose builder has published a MeshPolicy of its source.
func newMesh(t *testing.T, build string) *mesh {
	t.Helper()
	m := &mesh{t: t, chain: memstore.NewChain(), file: &memstore.File{}, now: time.Unix(1_800_000_000, 0), offered: map[ident.Key]ident.Value{}}
	m.log = memlog.New(m.clock)
	m.start(build, fold.KindJudge{})
	m.settle()
	m.list()
	m.put("MeshPolicy", "", "default", `{"requiredSources":[{"source":"file","instance":"default"}]}`)
	m.settle()
	return m
}

func (m *mesh) past() *past.Past {
	return &past.Past{Name: "test", Log: m.log, Versions: m.chain, Blobs: m.chain}
}

func (m *mesh) clock() time.Time {
	m.now = m.now.Add(time.Millisecond)
	return m.now
}

func (m *mesh) id() string {
	m.ids++
	return fmt.Sprint("id", m.ids)
}

// start replaces the builder, as another process with the same file would.
func (m *mesh) start(build string, j fold.Judge) {
	m.t.Helper()
	b, err := builder.Open(m.t.Context(), builder.Config{
		ID: "builder", Build: build, Log: m.log, Feed: m.chain, Store: memstore.Open(m.file, store.Retention{}), Fleet: silent{},
		Judge: j, Now: m.clock, NewID: m.id, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		m.t.Fatal(err)
	}
	b.Lead(true)
	m.builder, m.connected = b, false
}

// settle lets the builder read and publish until it has nothing left to do.
func (m *mesh) settle() {
	m.t.Helper()
	for range 12 {
		if err := m.step(); err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *mesh) step() error {
	ctx := m.t.Context()
	if !m.connected || m.builder.Stale() {
		after, err := m.builder.Connect(ctx)
		if err != nil {
			return err
		}
		m.after, m.connected = after, true
	}
	if err := m.builder.Head(ctx); err != nil {
		return err
	}
	recs, err := m.log.ReadAfter(m.after, 1000)
	if err != nil {
		return err
	}
	if len(recs) > 0 {
		m.after = recs[len(recs)-1].Seq
		if err := m.builder.Read(ctx, recs); err != nil {
			return err
		}
	}
	_, err = m.builder.Commit(ctx)
	return err
}

// checkpoint makes the next version name checkpoints of the present content and fold.
// The fold's checkpoint has an earlier position than its rows, as if the builder had
// continued while writing it.
func (m *mesh) checkpoint() {
	m.t.Helper()
	ctx := m.t.Context()
	at := m.builder.Filed()
	early := ident.Position{Epoch: at.Epoch, Seq: at.Seq - 1}
	whole, err := m.chain.Fetch(ctx, at)
	if err != nil {
		m.t.Fatal(err)
	}
	content, err := new(store.CheckpointWriter).Write(ctx, m.chain, whole.Snapshot, at)
	if err != nil {
		m.t.Fatal(err)
	}
	var rows []store.Row
	for r, err := range memstore.Open(m.file, store.Retention{}).Side(ctx) {
		if err != nil {
			m.t.Fatal(err)
		}
		rows = append(rows, r)
	}
	filed, err := store.WriteRows(ctx, m.chain, rows, early)
	if err != nil {
		m.t.Fatal(err)
	}
	m.builder.Checkpointed(builder.Checkpointed{Content: content, Fold: filed})
}

var shard = ident.Shard{Source: "file", Instance: "default"}

func key(kind, namespace, name string) ident.Key {
	return ident.Key{Source: shard.Source, Instance: shard.Instance, Kind: kind, Namespace: namespace, Name: name}
}

func (m *mesh) append(body events.Body) uint64 {
	m.t.Helper()
	ack, err := m.log.Append(m.t.Context(), []events.Event{{ID: m.id(), Observed: m.clock(), Actor: "me", Body: body}}, events.Fence{})
	if err != nil {
		m.t.Fatal(err)
	}
	return ack.Seq
}

func (m *mesh) sessionName() string { return fmt.Sprint("s", m.session) }

func (m *mesh) begin() {
	m.t.Helper()
	m.session++
	m.pseq = 0
	m.append(&events.Begin{Shard: shard, Session: m.sessionName(), Holder: "test"})
}

// list makes the source list its objects.
func (m *mesh) list() {
	m.t.Helper()
	m.begin()
	for k, p := range m.offered {
		m.object(k, events.Put, p)
	}
	m.alive()
}

func (m *mesh) alive() {
	m.t.Helper()
	var d events.ShardDigests
	for k, p := range m.offered {
		d.Toggle(k, events.ContentHash(k, p))
	}
	m.append(&events.Alive{Shard: shard, Session: m.sessionName(), Low: m.pseq + 1, Digest: d.Sum(), Listed: events.AllBuckets()})
}

func (m *mesh) object(k ident.Key, op events.Op, p ident.Value) uint64 {
	m.t.Helper()
	m.pseq++
	return m.append(&events.Object{Key: k, Op: op, Value: p, Session: m.sessionName(), Pseq: m.pseq, Low: m.pseq, Origin: "file.yaml:1"})
}

// payload returns the value of an object with a spec.
func (m *mesh) payload(kindName, spec string) ident.Value {
	m.t.Helper()
	k, ok := kind.ByName(kindName)
	if !ok {
		m.t.Fatalf("no kind %s", kindName)
	}
	msg, err := k.DecodeJSON([]byte(spec))
	if err != nil {
		m.t.Fatal(err)
	}
	b, err := k.Encode(msg)
	if err != nil {
		m.t.Fatal(err)
	}
	return ident.Value{Type: k.TypeURL, Bytes: b}
}

// put changes an object of the source.
func (m *mesh) put(kindName, namespace, name, spec string) uint64 {
	m.t.Helper()
	k, p := key(kindName, namespace, name), m.payload(kindName, spec)
	m.offered[k] = p
	return m.object(k, events.Put, p)
}

func (m *mesh) remove(kindName, namespace, name string) uint64 {
	m.t.Helper()
	k := key(kindName, namespace, name)
	delete(m.offered, k)
	return m.object(k, events.Delete, ident.Value{})
}

// weights returns the spec of a VirtualService.
func weights(v1, v2 int) string {
	return fmt.Sprintf(`{"hosts":["shop"],"http":[{"route":[{"destination":{"host":"shop","subset":"v1"},"weight":%d},{"destination":{"host":"shop","subset":"v2"},"weight":%d}]}]}`, v1, v2)
}

// canary publishes n versions of one VirtualService.
func (m *mesh) canary(n int) {
	m.t.Helper()
	for i := range n {
		m.put("VirtualService", "demo", "shop", weights(100-i-1, i+1))
		m.settle()
	}
}

// versions returns the versions on the chain, oldest first.
func (m *mesh) versions() []*store.Manifest {
	m.t.Helper()
	return oldestFirst(m.t, m.chain)
}

func oldestFirst(t *testing.T, v past.Versions) []*store.Manifest {
	t.Helper()
	var all []*store.Manifest
	for m, err := range v.History(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	slices.Reverse(all)
	return all
}

// archived returns an archive of p from a record on.
func archived(t *testing.T, p *past.Past, since uint64) (*past.Past, *past.Export) {
	t.Helper()
	plan, err := past.PlanExport(t.Context(), p, since)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "archive")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := archive.NewWriter(f, plan.First)
	if err != nil {
		t.Fatal(err)
	}
	if err := plan.Write(t.Context(), w, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	a, err := archive.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return past.FromArchive("archive", a), plan
}

// judge refuses one object, and otherwise judges by the kinds.
type judge struct {
	fold.KindJudge
	refused string // name of an object
}

func (j judge) Judge(k ident.Key, v ident.Value) (proto.Message, []problem.Diagnostic, bool) {
	m, ds, good := j.KindJudge.Judge(k, v)
	return m, ds, good && k.Name != j.refused
}
