package builder

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"meshlog.dev/events"
	"meshlog.dev/events/memlog"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

// rig holds a log, a chain and a source, and starts builders on them.
type rig struct {
	t     *testing.T
	log   *memlog.Log
	chain *memstore.Chain
	fleet fleet

	mu  sync.Mutex // guards now and ids, which builders use too
	now time.Time
	ids int

	session int
	pseq    uint64
	trace   string // traceparent of the next events
	offered map[ident.Key]ident.Value
}

type fleet struct {
	mu    sync.Mutex
	asked []*reportv1.ListingRequest
	tick  *reportv1.Tick // the last
}

func (f *fleet) Tick(_ context.Context, t *reportv1.Tick) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tick = t
	return nil
}

func (f *fleet) AskListing(_ context.Context, r *reportv1.ListingRequest) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, r)
	return nil
}

// judge accepts values that begin with "good" or name its build.
type judge struct{ build string }

func (j judge) Judge(_ ident.Key, v ident.Value) (proto.Message, []problem.Diagnostic, bool) {
	s := string(v.Bytes)
	if strings.HasPrefix(s, "good") || strings.Contains(s, "for "+j.build) {
		return nil, nil, true
	}
	return nil, []problem.Diagnostic{{Severity: problem.Error, Code: "invalid", Reason: "not good"}}, false
}

func (judge) Closed(ident.Key, ident.Value) (ident.Value, bool) { return ident.Value{}, false }

func (judge) Configures(string) bool { return true }
func (judge) Stages(string) bool     { return true }

func (judge) EndpointsOnly(k ident.Key, _, _ *world.Object) bool { return k.Kind == "Endpoints" }

func newRig(t *testing.T) *rig {
	r := &rig{t: t, chain: memstore.NewChain(), now: time.Unix(1_800_000_000, 0), offered: map[ident.Key]ident.Value{}}
	r.log = memlog.New(r.clock)
	return r
}

func (r *rig) clock() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = r.now.Add(time.Millisecond)
	return r.now
}

func (r *rig) id() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ids++
	return fmt.Sprintf("id%d", r.ids)
}

// config returns the configuration of a builder; a test may change it before start.
func (r *rig) config(id, build string, file *memstore.File) Config {
	return Config{
		ID: id, Build: build, Log: r.log, Feed: r.chain, Store: memstore.Open(file, store.Retention{}), Fleet: &r.fleet,
		Judge: judge{build}, Now: r.clock, NewID: r.id, Logger: slog.New(slog.DiscardHandler),
	}
}

// driver drives a Machine as Builder does, one step at a time.
type driver struct {
	*Machine
	r         *rig
	after     uint64
	connected bool
}

func (r *rig) start(c Config, leads bool) *driver {
	r.t.Helper()
	m, err := Open(r.t.Context(), c)
	if err != nil {
		r.t.Fatalf("open %s: %v", c.ID, err)
	}
	m.Lead(leads)
	return &driver{Machine: m, r: r}
}

// step reads the available records and commits once.
func (d *driver) step() error {
	ctx := d.r.t.Context()
	if !d.connected || d.Stale() {
		after, err := d.Connect(ctx)
		if err != nil {
			return err
		}
		d.after, d.connected = after, true
	}
	if err := d.Head(ctx); err != nil {
		return err
	}
	recs, err := d.r.log.ReadAfter(d.after, 1000)
	if err != nil {
		return err
	}
	if len(recs) > 0 {
		d.after = recs[len(recs)-1].Seq
		if err := d.Read(ctx, recs); err != nil {
			return err
		}
	}
	_, err = d.Commit(ctx)
	return err
}

// settle steps until the builder has nothing left to do.
func (d *driver) settle() {
	d.r.t.Helper()
	for range 20 {
		if err := d.step(); err != nil {
			d.r.t.Fatalf("%s: %v", d.cfg.ID, err)
		}
	}
}

// servingA returns a leader that has published the object a.
func servingA(t *testing.T) (*rig, *driver) {
	t.Helper()
	r := newRig(t)
	b := r.start(r.config("b0", "one", &memstore.File{}), true)
	b.settle()
	r.list()
	r.put("a", "good 1")
	b.settle()
	return r, b
}

// losingTen returns a leader that has published ten objects that its source no
// longer offers.
func losingTen(t *testing.T) (*rig, *driver) {
	t.Helper()
	r := newRig(t)
	b := r.start(r.config("b0", "one", &memstore.File{}), true)
	b.settle()
	r.list()
	for i := range 10 {
		r.put(fmt.Sprint("k", i), "good")
	}
	b.settle()
	clear(r.offered)
	r.list()
	return r, b
}

var shard = ident.Shard{Source: "file", Instance: "default"}

func key(name string) ident.Key {
	return ident.Key{Source: shard.Source, Instance: shard.Instance, Kind: "Thing", Namespace: "default", Name: name}
}

func (r *rig) append(body events.Body) {
	r.t.Helper()
	ev := events.Event{ID: r.id(), Observed: r.clock(), Trace: r.trace, Body: body}
	if _, err := r.log.Append(r.t.Context(), []events.Event{ev}, events.Fence{}); err != nil {
		r.t.Fatalf("append: %v", err)
	}
}

func (r *rig) sessionName() string { return fmt.Sprintf("s%d", r.session) }

func (r *rig) digest() events.Digest {
	var d events.ShardDigests
	for k, p := range r.offered {
		d.Toggle(k, events.ContentHash(k, p))
	}
	return d.Sum()
}

// list makes the source begin a session and list its objects.
func (r *rig) list() {
	r.t.Helper()
	r.session++
	r.pseq = 0
	r.append(&events.Begin{Shard: shard, Session: r.sessionName(), Holder: "test"})
	for k, p := range r.offered {
		r.object(k, events.Put, p)
	}
	r.alive(events.AllBuckets())
}

func (r *rig) alive(listed events.BucketSet) {
	r.t.Helper()
	r.append(&events.Alive{Shard: shard, Session: r.sessionName(), Low: r.pseq + 1, Digest: r.digest(), Listed: listed})
}

func (r *rig) object(k ident.Key, op events.Op, p ident.Value) {
	r.t.Helper()
	r.pseq++
	r.append(&events.Object{Key: k, Op: op, Value: p, Session: r.sessionName(), Pseq: r.pseq, Low: r.pseq})
}

// put changes an object of the source.
func (r *rig) put(name, value string) {
	r.t.Helper()
	p := ident.Value{Type: "type.test/thing", Bytes: []byte(value)}
	r.offered[key(name)] = p
	r.object(key(name), events.Put, p)
}

// served returns the values that the chain's head serves, by name.
func (r *rig) served() map[string]string {
	r.t.Helper()
	got := map[string]string{}
	head, err := r.chain.Head(r.t.Context())
	if err != nil {
		r.t.Fatalf("head: %v", err)
	}
	if head.Manifest == nil {
		return got
	}
	at, err := r.chain.Fetch(r.t.Context(), head.Version())
	if err != nil {
		r.t.Fatalf("fetch the head: %v", err)
	}
	for row := range at.Snapshot.Rows() {
		k, overlay, err := ident.ParseRow(row.Key)
		if err != nil {
			r.t.Fatal(err)
		}
		if overlay != "" {
			got["overlay"] = overlay
			continue
		}
		v, err := world.UnmarshalValue(row.Value)
		if err != nil {
			r.t.Fatal(err)
		}
		got[k.Name] = string(v.Bytes)
	}
	return got
}

// versions returns all versions on the chain, oldest first. It fails the test if
// one of them does not follow the version before it.
func (r *rig) versions() []*store.Manifest {
	r.t.Helper()
	var all []*store.Manifest
	for m, err := range r.chain.History(r.t.Context()) {
		if err != nil {
			r.t.Fatalf("history: %v", err)
		}
		all = append([]*store.Manifest{m}, all...)
	}
	for i, m := range all[min(1, len(all)):] {
		before := all[i]
		if store.VersionOf(m.GetPrevious()) != store.VersionOf(before.GetVersion()) || !store.VersionOf(before.GetVersion()).Less(store.VersionOf(m.GetVersion())) {
			r.t.Errorf("%v does not follow %v", m.GetVersion(), before.GetVersion())
		}
	}
	return all
}

var _ fold.Judge = judge{}
