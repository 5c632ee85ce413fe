package fold

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
)

// told returns a fold that has applied a script.
func told(t *testing.T, build, lines string) *Fold {
	t.Helper()
	f := New(build, testJudge(build))
	if out := run(t, f, lines, nil); strings.Contains(out, "error:") {
		t.Fatal(out)
	}
	return f
}

const twoKeys = `epoch 5 A
begin s1
put s1 1 a=good1
put s1 2 b=good2
alive s1 a=good1 b=good2
`

func content(f *Fold) map[string]string {
	rows := map[string]string{}
	for _, r := range f.Content().Rows {
		rows[r.Row] = textOf(r.Row, r.Value)
	}
	return rows
}

// begin applies a segment that begins an epoch from base.
func begin(t *testing.T, f *Fold, base []kv) {
	t.Helper()
	rec := events.Record{Seq: f.Position().Seq + 1}
	rec.Event.Body = &events.Segment{Epoch: f.Segment().Epoch + 1, Build: "A", Base: ident.Hash{1}}
	if _, _, err := f.Apply(rec, each(base)); err != nil {
		t.Fatal(err)
	}
}

// Rule epoch_head: an epoch never begins from a state older than the published
// head. From a fold behind the head, EpochBase takes only shards and removed IDs.
func TestEpochBase(t *testing.T) {
	const row = "v/file/a/Thing//"
	published := words{args: []string{"a=good9", "c=good3"}, shard: ident.Shard{Source: "file", Instance: "a"}}.content()
	published = append(published, kv{"o/o9", world.MarshalOverlay(world.Overlay{ID: "o9", Kind: ident.Rollback, Values: []ident.OverlayValue{
		{Key: ident.Key{Source: "file", Instance: "a", Kind: "Thing", Name: "c"}},
	}})})
	f := told(t, "A", twoKeys+`put s1 3 a=bad3
put s1 4 c=bad4
overlay o1 rollback b:good0/good2
overlay o2 rollback b:good0/good2
remove o2
`)
	for _, test := range []struct {
		name string
		head ident.Position
		want map[string]string
	}{
		{"at the head", f.Position(), map[string]string{
			row + "a": "good1", row + "b": "good2", row + "c": "good3", // c is from the head: the fold has no good value of it
			"o/o1": "rollback by ann: b:good0",
		}},
		{"behind the head", ident.Position{Epoch: 5, Seq: 99}, map[string]string{
			row + "a": "good9", row + "c": "good3", "o/o9": "rollback by : c:-",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			base, err := f.EpochBase(test.head, each(published))
			if err != nil {
				t.Fatal(err)
			}
			g := New("A", testJudge("A"))
			begin(t, g, collect(base))
			if diff := cmp.Diff(test.want, content(g)); diff != "" {
				t.Errorf("content (-want +got):\n%s", diff)
			}
			if _, gone := g.gone["o2"]; !gone {
				t.Error("the id o2 may be used again")
			}
			if n := g.Needs(); len(n) != 1 || n[0].Shard != shardA() || n[0].Session != "" {
				t.Errorf("needs: %v", n)
			}
		})
	}
}

func TestApplyRefuses(t *testing.T) {
	base, err := told(t, "A", twoKeys).EpochBase(ident.Position{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	segment := &events.Segment{Epoch: 6, Build: "A", Base: ident.Hash{7}}
	for _, test := range []struct {
		name string
		seq  uint64
		body events.Body
		base []kv
		want error
	}{
		{"a gap", 7, &events.Begin{}, nil, ErrOrder},
		{"a record twice", 5, &events.Begin{}, nil, ErrOrder},
		{"no base", 6, segment, nil, ErrNeedsBase},
		{"an unreadable base", 6, segment, []kv{{"k/x", []byte{0xff}}}, ErrCorrupt},
		{"an unknown row", 6, segment, append(collect(base), kv{"z", nil}), ErrCorrupt},
		{"an invalid key", 6, segment, append(collect(base), kv{"k/a/b", (&entry{}).bytes()}), ErrCorrupt},
		{"another segment's epoch record", 7, &events.Segment{Epoch: 6, Build: "A", EpochRecord: 3}, nil, ErrOrder},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := told(t, "A", twoKeys)
			before := collect(f.Rows())
			rec := events.Record{Seq: test.seq, Event: events.Event{Body: test.body}}
			if h, needs := f.NeedsBase(rec); needs != (test.body == events.Body(segment)) || needs && h != segment.Base {
				t.Errorf("needs base %v: %v", h, needs)
			}
			given := each(test.base)
			if test.base == nil {
				given = nil
			}
			if _, _, err := f.Apply(rec, given); !errors.Is(err, test.want) {
				t.Errorf("%v, want %v", err, test.want)
			}
			if diff := diffRows(before, collect(f.Rows())); diff != "" {
				t.Errorf("the fold changed:\n%s", diff)
			}
		})
	}
}

func TestRestoreRefuses(t *testing.T) {
	f := told(t, "A", twoKeys)
	without := table{}
	for k, v := range f.Rows() {
		without[k] = v
	}
	delete(without, metaRow)
	for _, test := range []struct {
		name, build string
		rows        []kv
		want        error
	}{
		{"another build", "B", collect(f.Rows()), ErrOtherBuild},
		{"no position", "A", collect(without.rows()), ErrCorrupt},
		{"not rows", "A", []kv{{"m", []byte{1}}}, ErrCorrupt},
	} {
		if _, err := Restore(test.build, testJudge(test.build), each(test.rows)); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
	}
	empty, err := Restore("A", testJudge("A"), each(nil))
	if err != nil || !empty.Checkpoint().Reset {
		t.Errorf("no rows: %v, and the first checkpoint must be whole", err)
	}
}

func TestCheckpoint(t *testing.T) {
	f := told(t, "A", twoKeys)
	if c := f.Checkpoint(); !c.Reset || len(c.Put) != 4 {
		t.Fatalf("the first checkpoint is not whole: reset %v, %d rows", c.Reset, len(c.Put))
	}
	restored := restore(t, f)
	for _, g := range []*Fold{f, restored} {
		rec := events.Record{Seq: 6, Event: events.Event{Body: &events.Object{
			Key: testKey(shardA(), "b"), Op: events.Put, Value: testPayload("good3"), Session: "s1", Pseq: 3, Low: 1,
		}}}
		if _, _, err := g.Apply(rec, nil); err != nil {
			t.Fatal(err)
		}
		var keys []string
		for _, r := range g.Checkpoint().Put {
			keys = append(keys, r.Key)
		}
		if diff := cmp.Diff([]string{"k/file/a/Thing//b", "m", "s/file/a///"}, keys); diff != "" {
			t.Errorf("rows of the checkpoint after one change (-want +got):\n%s", diff)
		}
		g.Rewrite()
		if c := g.Checkpoint(); !c.Reset || len(c.Put) != 4 {
			t.Errorf("the checkpoint after Rewrite is not whole: reset %v, %d rows", c.Reset, len(c.Put))
		}
	}
}

func TestWaiting(t *testing.T) {
	partial := told(t, "A", "epoch 5 A\nbegin s1\nalive s1 partial\n")
	whole := told(t, "A", twoKeys)
	require := func(accept bool) world.Policy {
		return world.Policy{Required: []world.RequiredSource{{Shard: shardA(), AcceptPartial: accept}}}
	}
	for _, test := range []struct {
		name   string
		fold   *Fold
		policy world.Policy
		want   []string
	}{
		{"nothing required", New("A", testJudge("A")), world.Policy{}, []string{"no source has listed anything in epoch 0"}},
		{"nothing required, one listed", partial, world.Policy{}, nil},
		{"nothing listed", New("A", testJudge("A")), require(true), []string{"file/a has listed nothing in epoch 0"}},
		{"begun", told(t, "A", "epoch 5 A\nbegin s1\n"), require(true), []string{"file/a has listed nothing in epoch 5"}},
		{"partial", partial, require(false), []string{"file/a could list only a part, and the MeshPolicy does not accept that"}},
		{"partial accepted", partial, require(true), nil},
		{"whole", whole, require(false), nil},
	} {
		if diff := cmp.Diff(test.want, test.fold.Waiting(test.policy)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
	begun := told(t, "A", "epoch 5 A\nbegin s1\n")
	if diff := cmp.Diff([]string{"file/a is listing"}, begun.FirstListings()); diff != "" {
		t.Errorf("first listings (-want +got):\n%s", diff)
	}
}

// API-1, API-4: an apply that was interrupted holds up no epoch, and leaves nothing; no
// source of operators is asked to list.
func TestSourceAtRest(t *testing.T) {
	f := told(t, "A", twoKeys)
	shard := ident.Shard{Source: ident.API, Instance: "a"}
	apply := func(body events.Body) {
		t.Helper()
		if _, _, err := f.Apply(events.Record{Seq: f.Position().Seq + 1, Event: events.Event{Body: body}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	put := func(session, name string, pseq uint64) *events.Object {
		return &events.Object{
			Key: ident.Key{Source: ident.API, Instance: "a", Kind: "Thing", Name: name}, Op: events.Put,
			Value: ident.Value{Type: "t", Bytes: []byte("good1")}, Session: session, Pseq: pseq, Low: 1,
		}
	}
	end := func(session string, low uint64) *events.Alive {
		return &events.Alive{Shard: shard, Session: session, Low: low, Partial: true, Ends: true}
	}
	names := func() (names []string) {
		for _, o := range f.Offers(shard) {
			names = append(names, fmt.Sprint(o.Key.Name, " ", o.Seq))
		}
		return names
	}
	apply(&events.Begin{Shard: shard, Session: "s1", Holder: "h"})
	apply(put("s1", "lost", 1))
	if got := f.FirstListings(); len(got) > 0 || len(names()) > 0 {
		t.Errorf("an interrupted apply: waits for %v, offers %v", got, names())
	}
	apply(&events.Begin{Shard: shard, Session: "s2", Holder: "h"})
	apply(put("s2", "a", 1))
	apply(put("s2", "b", 2))
	apply(end("s2", 3))
	apply(&events.Begin{Shard: shard, Session: "s3", Holder: "h"})
	apply(put("s3", "c", 1))
	apply(end("s3", 2))
	if diff := cmp.Diff([]string{"a 9", "b 10", "c 13"}, names()); diff != "" {
		t.Errorf("offers after two applies (-want +got):\n%s", diff)
	}

	base, err := f.EpochBase(ident.Position{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	next := New("A", testJudge("A"))
	begin(t, next, collect(base))
	f = next
	if needs := f.Needs(); len(needs) != 1 || needs[0].Shard != shardA() {
		t.Errorf("a new epoch asks %v to list", needs)
	}
	if diff := cmp.Diff([]string{"a 0", "b 0", "c 0"}, names()); diff != "" {
		t.Errorf("offers in a new epoch (-want +got):\n%s", diff)
	}
}

func TestQuestions(t *testing.T) {
	f := told(t, "A", twoKeys+"put s1 3 c=bad3\ndel s1 4 b\noverlay h1 hold b:good2/-\nremove h2\n")
	key := func(name string) ident.Key { return testKey(shardA(), name) }
	for name, want := range map[string]string{"a": "good1", "b": "-", "c": "bad3"} {
		h, ok := f.Offered(key(name))
		if h != testHash(key(name), want) || ok != (want != "-") {
			t.Errorf("offered %s: %v, %v", name, h, ok)
		}
		if held := f.Held(key(name)); held != (name == "b") {
			t.Errorf("held %s: %v", name, held)
		}
	}
	if n := f.CountKeys(shardA()); n != 2 {
		t.Errorf("%d keys", n)
	}
	if n := f.CountKeys(ident.Shard{Source: "none"}); n != 0 {
		t.Errorf("%d keys of an unknown shard", n)
	}
	if holds := f.Holds(); len(holds) != 1 || holds[0].ID != "h1" || len(holds[0].Values) != 1 {
		t.Errorf("holds %v", holds)
	}
	digests, ok := f.Digests(shardA(), "s1", nil)
	if !ok || digests.Sum() != f.shards[shardA()].digest(nil) {
		t.Errorf("digests: %v", ok)
	}
	for _, session := range []string{"", "s0"} {
		if _, ok := f.Digests(shardA(), session, nil); ok {
			t.Errorf("digests for session %q", session)
		}
	}
	if g := f.Segment(); !f.Mine() || g.Build != "A" || g.Epoch != 5 || g.EpochRecord != 1 {
		t.Errorf("segment %+v", g)
	}
	if f.RecordTime() != time.Unix(9, 0).UTC() || f.RecordHash().IsZero() {
		t.Errorf("record: %v %v", f.RecordTime(), f.RecordHash())
	}
}

// counting counts the values that are judged.
type counting struct {
	testJudge
	n *int
}

func (c counting) Judge(k ident.Key, v ident.Value) (proto.Message, []problem.Diagnostic, bool) {
	*c.n++
	return c.testJudge.Judge(k, v)
}

// ACL-1: a new policy costs no validation of the objects that it leaves alone.
func TestPolicyJudgesWhatItForbids(t *testing.T) {
	judged := func(lines string) (n int) {
		if out := run(t, New("A", counting{"A", &n}), lines, nil); strings.Contains(out, "error:") {
			t.Fatal(out)
		}
		return n
	}
	before := twoKeys + "put s1 3 Endpoint/e=good1\noverlay h1 hold gone:good1/-\n"
	// The policy, and the Endpoint that it forbids.
	if n := judged(before+"put s1 4 MeshPolicy/default=policy-things\n") - judged(before); n != 2 {
		t.Errorf("%d values were judged, want 2", n)
	}
}

func TestKindJudge(t *testing.T) {
	undecoded, err := proto.Marshal(&registryv1.Undecoded{Error: "line 3: a tab"})
	if err != nil {
		t.Fatal(err)
	}
	const policy = "type.googleapis.com/meshlog.config.v1.MeshPolicy"
	for _, test := range []struct {
		name  string
		key   ident.Key
		value ident.Value
		good  bool
		want  []string
	}{
		{"good", ident.Key{Kind: "MeshPolicy", Name: "default"}, ident.Value{Type: policy}, true, nil},
		{"no kind", ident.Key{Kind: "Gizmo"}, ident.Value{}, false, []string{"unknown-kind: this build knows no kind \"Gizmo\""}},
		{"undecoded", ident.Key{Kind: "MeshPolicy"}, ident.Value{Type: "type.googleapis.com/meshlog.registry.v1.Undecoded", Bytes: undecoded}, false, []string{"undecoded: line 3: a tab"}},
		{"misplaced", ident.Key{Kind: "MeshPolicy", Name: "other"}, ident.Value{Type: policy}, true, []string{"ignored: only the MeshPolicy named \"default\" counts"}},
		{"with namespace", ident.Key{Kind: "MeshPolicy", Name: "default", Namespace: "x"}, ident.Value{Type: policy}, true, []string{"ignored: a MeshPolicy has no namespace"}},
		{"invalid", ident.Key{Kind: "Resource", Name: "r"}, ident.Value{Type: "type.googleapis.com/meshlog.config.v1.Resource"}, false, []string{"invalid: is missing"}},
	} {
		_, problems, good := KindJudge{}.Judge(test.key, test.value)
		var got []string
		for _, p := range problems {
			got = append(got, fmt.Sprintf("%s: %s", p.Code, p.Reason))
		}
		if diff := cmp.Diff(test.want, got); diff != "" || good != test.good {
			t.Errorf("%s: good %v (-want +got):\n%s", test.name, good, diff)
		}
	}
}

func TestKindJudgeEndpointsOnly(t *testing.T) {
	value := func(v ident.Value) *world.Object { return &world.Object{Value: v} }
	hosts, others, backend := value(assignment(t, 1)), value(assignment(t, 2)), value(cluster(t, 1, ""))
	junk := value(ident.Value{Type: hosts.Value.Type, Bytes: []byte{0xff}})
	for _, test := range []struct {
		name     string
		kind     string
		old, new *world.Object
		want     bool
	}{
		{"other hosts", "Resource", hosts, others, true},
		{"the first", "Resource", nil, hosts, true},
		{"gone", "Resource", hosts, nil, true},
		{"a cluster", "Resource", backend, backend, false},
		{"another type", "Resource", hosts, backend, false},
		{"unreadable", "Resource", junk, hosts, false},
		{"no kind", "Gizmo", hosts, others, false},
	} {
		if got := (KindJudge{}).EndpointsOnly(ident.Key{Kind: test.kind}, test.old, test.new); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}

// A restored fold does not refer to the bytes of the rows that it was made from.
func TestRestoreCopies(t *testing.T) {
	f := told(t, "A", twoKeys)
	rows := maps.Collect(f.Rows())
	g, err := Restore("A", testJudge("A"), maps.All(rows))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range rows {
		clear(b)
	}
	if diff := diffRows(collect(f.Rows()), collect(g.Rows())); diff != "" {
		t.Error(diff)
	}
}
