package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/events"
	"meshlog.dev/events/memlog"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/builder/ledger"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

// rig is a log with a source, and the blobs that hold the bases of its segments.
type rig struct {
	t     *testing.T
	log   *memlog.Log
	blobs *memstore.Chain
	ids   int
	pseq  uint64
	named int // number of sessions so far
}

// good is a judge that accepts every value.
type good struct{}

func (good) Judge(ident.Key, ident.Value) (proto.Message, []problem.Diagnostic, bool) {
	return nil, nil, true
}
func (good) Closed(ident.Key, ident.Value) (ident.Value, bool) { return ident.Value{}, false }

func (good) Configures(string) bool { return true }
func (good) Stages(string) bool     { return true }

func (good) EndpointsOnly(ident.Key, *world.Object, *world.Object) bool { return false }

func newRig(t *testing.T) *rig {
	now := time.Unix(1_800_000_000, 0)
	return &rig{t: t, blobs: memstore.NewChain(), log: memlog.New(func() time.Time { now = now.Add(time.Millisecond); return now })}
}

func (r *rig) append(body events.Body) uint64 {
	r.t.Helper()
	r.ids++
	ack, err := r.log.Append(r.t.Context(), []events.Event{{ID: fmt.Sprint("id", r.ids), Body: body}}, events.Fence{})
	if err != nil {
		r.t.Fatal(err)
	}
	return ack.Seq
}

// forge appends a body under the subject of segments.
func (r *rig) forge(body events.Body) {
	r.t.Helper()
	r.ids++
	data, err := events.Encode(events.Event{ID: fmt.Sprint("id", r.ids), Body: body})
	if err != nil {
		r.t.Fatal(err)
	}
	r.log.AppendRaw(events.SegmentSubject, data)
}

var shard = ident.Shard{Source: "file", Instance: "default"}

func key(name string) ident.Key {
	return ident.Key{Source: shard.Source, Instance: shard.Instance, Kind: "Thing", Name: name}
}

func (r *rig) begin() {
	r.named++
	r.pseq = 0
	r.append(&events.Begin{Shard: shard, Session: fmt.Sprint("s", r.named), Holder: "test"})
}

// put makes the source offer a value. An empty value deletes the object.
func (r *rig) put(name, value string) {
	r.pseq++
	o := &events.Object{Key: key(name), Op: events.Delete, Session: fmt.Sprint("s", r.named), Pseq: r.pseq, Low: r.pseq}
	if value != "" {
		o.Op, o.Value = events.Put, ident.Value{Type: "type.test/thing", Bytes: []byte(value)}
	}
	r.append(o)
}

// read applies all records after the position of a ledger.
func (r *rig) read(l *ledger.Ledger, each func()) error {
	recs, err := r.log.ReadAfter(l.Position().Seq, 1000)
	for _, rec := range recs {
		if _, err := l.Apply(r.t.Context(), rec); err != nil {
			return err
		}
		each()
	}
	return err
}

func (r *rig) ledger(changed func(events.Record, world.Change)) *ledger.Ledger {
	return ledger.New(fold.New("one", good{}), r.blobs, changed)
}

// rowsOf returns the content rows of a fold.
func rowsOf(f *fold.Fold) map[string][]byte {
	rows := map[string][]byte{}
	for _, r := range f.Content().Rows {
		rows[r.Row] = r.Value
	}
	return rows
}

// content returns the values that a ledger serves, by name.
func content(t *testing.T, l *ledger.Ledger) map[string]string {
	t.Helper()
	all := map[string]string{}
	for row := range l.Content().Rows() {
		k, _, err := ident.ParseRow(row.Key)
		v, verr := world.UnmarshalValue(row.Value)
		if err != nil || verr != nil {
			t.Fatal(err, verr)
		}
		all[k.Name] = string(v.Bytes)
	}
	return all
}

func nothing() {}

// The snapshot has the rows of the fold at every record, whether the test asks for
// the content after each record or only at the end.
func TestContentFollowsTheFold(t *testing.T) {
	r := newRig(t)
	r.append(&events.Segment{Epoch: 5, Build: "one"})
	r.begin()
	r.append(&events.Alive{Shard: shard, Session: "s1", Low: 1, Digest: new(events.ShardDigests).Sum(), Listed: events.AllBuckets()})
	r.put("a", "1")
	r.put("b", "1")
	r.put("a", "2")
	r.put("b", "")
	r.append(&events.Overlay{ID: "op", Kind: ident.Rollback, Values: []ident.OverlayValue{{Key: key("c"), Value: &ident.Value{Type: "type.test/thing"}}}})
	each := r.ledger(nil)
	err := r.read(each, func() {
		rows := maps.Collect(ledger.Pairs(each.Content().Rows()))
		if diff := cmp.Diff(rowsOf(each.Fold()), rows); diff != "" {
			t.Errorf("record %d: the snapshot differs from the fold (-want +got):\n%s", each.Position().Seq, diff)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	once := r.ledger(nil)
	if err := r.read(once, nothing); err != nil {
		t.Fatal(err)
	}
	for row, value := range rowsOf(once.Fold()) { // not in the snapshot yet
		if got := once.Get(row); !slices.Equal(got, value) {
			t.Errorf("row %s is %q, want %q", row, got, value)
		}
	}
	if once.Content().Root() != each.Content().Root() {
		t.Error("the content depends on how often it was requested")
	}
}

// The Ledger calls changed with each change, while Get returns the row before it.
func TestChangesAreReported(t *testing.T) {
	r := newRig(t)
	r.append(&events.Segment{Epoch: 5, Build: "one"})
	r.begin()
	r.append(&events.Alive{Shard: shard, Session: "s1", Low: 1, Digest: new(events.ShardDigests).Sum(), Listed: events.AllBuckets()})
	r.put("a", "1")
	r.put("a", "2")
	var told []string
	var l *ledger.Ledger
	value := func(row []byte) string {
		if row == nil {
			return "none"
		}
		v, err := world.UnmarshalValue(row)
		if err != nil {
			t.Fatal(err)
		}
		return string(v.Bytes)
	}
	l = r.ledger(func(rec events.Record, c world.Change) {
		if c.Reset {
			told = append(told, fmt.Sprintf("%d: reset", rec.Seq))
			return
		}
		for _, row := range c.Rows {
			told = append(told, fmt.Sprintf("%d: %s to %s", rec.Seq, value(l.Get(row.Row)), value(row.Value)))
		}
	})
	if err := r.read(l, nothing); err != nil {
		t.Fatal(err)
	}
	want := "0: reset, 1: reset, 4: none to 1, 5: 1 to 2"
	if got := strings.Join(told, ", "); got != want {
		t.Errorf("changed was called with %s, want %s", got, want)
	}
}

// A ledger can start at a segment: it needs the segment's base instead of the
// earlier records. Without the base, it stays where it is until the base is there.
func TestSegmentStandsOnItsBase(t *testing.T) {
	r := newRig(t)
	r.append(&events.Segment{Epoch: 5, Build: "one"})
	r.begin()
	r.append(&events.Alive{Shard: shard, Session: "s1", Low: 1, Digest: new(events.ShardDigests).Sum(), Listed: events.AllBuckets()})
	r.put("a", "1")
	l := r.ledger(nil)
	if err := r.read(l, nothing); err != nil {
		t.Fatal(err)
	}
	rows, err := l.Fold().EpochBase(ident.Position{}, ledger.Pairs((*store.Snapshot)(nil).Rows()))
	if err != nil {
		t.Fatal(err)
	}
	base, err := l.WriteBase(t.Context(), rows)
	if err != nil {
		t.Fatal(err)
	}
	seq := r.append(&events.Segment{Epoch: 6, Build: "one", Base: base})
	rec, err := r.log.Get(t.Context(), seq)
	if err != nil {
		t.Fatal(err)
	}

	blobs := &lossy{Blobs: r.blobs, lost: true}
	fresh := ledger.New(fold.New("one", good{}), blobs, nil)
	var missing *ledger.BaseError
	if _, err := fresh.Apply(t.Context(), rec); !errors.As(err, &missing) || missing.Base != base || !errors.Is(err, store.ErrNotFound) {
		t.Errorf("without the base: %v, want a BaseError of base %s", err, base)
	}
	if at := fresh.Position(); !at.IsZero() {
		t.Errorf("without the base, the ledger is at %s", at)
	}
	blobs.lost = false
	if _, err := fresh.Apply(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"a": "1"}, content(t, fresh)); diff != "" {
		t.Errorf("content (-want +got):\n%s", diff)
	}
}

// lossy is a blob store that returns ErrNotFound while lost is set.
type lossy struct {
	store.Blobs
	lost bool
}

func (l *lossy) GetBlob(ctx context.Context, h ident.Hash) ([]byte, error) {
	if l.lost {
		return nil, store.ErrNotFound
	}
	return l.Blobs.GetBlob(ctx, h)
}

func TestNewestEpoch(t *testing.T) {
	r := newRig(t)
	newest := func(when string, epoch, seq uint64) {
		t.Helper()
		seg, rec, err := ledger.NewestEpoch(t.Context(), r.log)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		got := uint64(0)
		if seg != nil {
			got = seg.Epoch
		}
		if got != epoch || rec.Seq != seq {
			t.Errorf("%s: epoch %d of record %d, want %d of %d", when, got, rec.Seq, epoch, seq)
		}
	}
	newest("on an empty log", 0, 0)
	r.log.AppendForeign(events.SegmentSubject, nil)
	newest("on a log with refused records only", 0, 0)
	r.append(&events.Segment{Epoch: 5, Build: "one"})
	second := r.append(&events.Segment{Epoch: 6, Build: "one"})
	newest("in the second epoch", 6, second)
	last := r.append(&events.Segment{Epoch: 6, Build: "two", EpochRecord: second})
	newest("in a later segment of the epoch", 6, second)
	// A server, or the key of a watcher, writes under the subject last (BUS-1, BUS-2).
	r.forge(&events.Segment{Epoch: math.MaxUint64, Build: "evil"})
	r.forge(&events.Begin{Shard: shard, Session: "s", Holder: "h"})
	r.log.AppendForeign(events.SegmentSubject, nil)
	newest("behind refused records", 6, second)
	r.log.Trim(last)
	newest("when the epoch's record has expired", 6, 0)
}
