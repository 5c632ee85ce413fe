package jury_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/builder/jury"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/gate"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/store"
)

var (
	bad  = [16]byte{1} // the sum of the current content
	good = [16]byte{2} // the sum of the previous content
	then = ident.Position{Epoch: 5, Seq: 7}
)

// fixed is a gate that reports the sum bad as current and good as previous for
// every class.
type fixed struct{ value []byte }

func (fixed) Keep([]gate.ClassOf) {}
func (fixed) Content(gate.ClassOf, string, string) *gate.Content {
	return &gate.Content{Made: cluster("rejected"), Sent: cluster("rejected"), SentSum: bad}
}
func (fixed) Stands(gate.ClassOf, *ident.Resource) bool { return true }
func (g fixed) Served(*world.World) func(gate.ClassOf, string) ([]byte, [16]byte) {
	return func(gate.ClassOf, string) ([]byte, [16]byte) { return g.value, good }
}

func verdict(applied, undecided uint32, rejectedBy ...string) *reportv1.Verdict {
	return &reportv1.Verdict{
		TypeUrl: ident.CDS.URL(), Name: "b", Sum: bad[:], Client: "envoy 1.38.0", Class: index.ProxyClass{}.Encode(), Message: "it is\nbad",
		GoodSum: good[:], Good: store.VersionProto(then),
		Applied: applied, Undecided: undecided, Rejected: uint32(len(rejectedBy)), Rejectors: rejectors(rejectedBy),
	}
}

func cluster(stat string) []byte {
	b, err := proto.Marshal(&clusterv3.Cluster{Name: "b", AltStatName: stat})
	if err != nil {
		panic(err)
	}
	return b
}

var start = time.Unix(1_800_000_000, 0)

func worlds(ident.Position) (*world.World, error) { return world.NewWorld(), nil }

// The jury waits for missing reports and answers, but no longer than its limits.
func TestJuryDecides(t *testing.T) {
	for _, c := range []struct {
		name     string
		since    time.Duration // how long the builder has run
		verdicts map[string]*reportv1.Verdict
		at       []time.Duration // after the suspicion
		want     []bool
	}{
		{"two proxies reject, all answered", time.Minute, map[string]*reportv1.Verdict{"f0": verdict(0, 0, "p1", "p2")}, []time.Duration{0}, []bool{true}},
		{"not every frontend may be known", time.Second, map[string]*reportv1.Verdict{"f0": verdict(0, 0, "p1", "p2")}, []time.Duration{0, time.Second, 2 * time.Second}, []bool{false, false, true}},
		{"a proxy has not answered", time.Minute, map[string]*reportv1.Verdict{"f0": verdict(0, 1, "p1", "p2")}, []time.Duration{0, 2 * time.Second}, []bool{false, true}},
		{"the only proxy that rejects is not the only proxy", time.Minute, map[string]*reportv1.Verdict{"f0": verdict(0, 1, "p1")}, []time.Duration{0, 20 * time.Second}, []bool{false, false}},
		{"a frontend's proxy has applied it", time.Minute, map[string]*reportv1.Verdict{"f0": verdict(0, 0, "p1", "p2"), "f1": verdict(1, 0)}, []time.Duration{0, 20 * time.Second}, []bool{false, false}},
		{"a frontend has not reported about it", time.Minute, map[string]*reportv1.Verdict{"f0": verdict(0, 0, "p1", "p2"), "f1": nil}, []time.Duration{0, 2 * time.Second}, []bool{false, true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			j, f := jury.New(fixed{cluster("before")}, start.Add(-c.since), slog.New(slog.DiscardHandler)), fold.New("one", fold.KindJudge{})
			for id, v := range c.verdicts {
				r := &reportv1.FrontendReport{Frontend: id}
				if v != nil {
					r.Verdicts = []*reportv1.Verdict{v}
				}
				j.Hear(start, r)
			}
			if !j.Suspect(start, f) || len(j.Suspects()) != 1 {
				t.Fatalf("suspects: %v, want the rejected resource", j.Suspects())
			}
			for i, after := range c.at {
				proposed, err := j.Propose(start.Add(after), f, worlds)
				if err != nil || (len(proposed) == 1) != c.want[i] {
					t.Errorf("after %v: %v (%v), want a quarantine: %v", after, proposed, err, c.want[i])
				}
			}
		})
	}
}

// The verdicts of a report count together, however many messages it comes in. A later
// report replaces them (XDS-4).
func TestReportInParts(t *testing.T) {
	j, f := jury.New(fixed{}, start, slog.New(slog.DiscardHandler)), fold.New("one", fold.KindJudge{})
	hear := func(at int64, name string) {
		v := verdict(0, 0, "p1", "p2")
		v.Name = name
		j.Hear(start, &reportv1.FrontendReport{Frontend: "f0", Time: timestamppb.New(time.Unix(at, 0)), Verdicts: []*reportv1.Verdict{v}})
		j.Suspect(start, f)
	}
	suspects := func() (names []string) {
		for _, s := range j.Suspects() {
			names = append(names, s.GetName())
		}
		return names
	}
	hear(1, "a")
	hear(1, "b")
	if got := suspects(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("after both messages of a report, suspects are %v", got)
	}
	hear(2, "c")
	if got := suspects(); !slices.Equal(got, []string{"c"}) {
		t.Errorf("after the next report, suspects are %v", got)
	}
}

// A quarantine carries the content that proxies had before, if the jury knows it.
func TestQuarantineServesLastGood(t *testing.T) {
	const closed, nothing = "a cluster without endpoints", "no cluster"
	lost := func(ident.Position) (*world.World, error) { return nil, store.ErrNotFound }
	failing := func(ident.Position) (*world.World, error) { return nil, errors.New("no answer") }
	for _, c := range []struct {
		name   string
		value  string
		worlds jury.Worlds
		client index.Client
		want   string
		fails  bool
	}{
		{"the content before", "before", worlds, index.ClientSidecar, "before", false},
		{"too large", strings.Repeat("x", 256<<10+1), worlds, index.ClientSidecar, closed, false},
		{"no longer kept", "before", lost, index.ClientSidecar, closed, false},
		{"the bus does not answer", "before", failing, index.ClientSidecar, "", true},
		{"the content before, of a gRPC client", "before", worlds, index.ClientGRPC, "before", false},
		{"no longer kept, of a gRPC client", "before", lost, index.ClientGRPC, nothing, false},
	} {
		v := verdict(0, 0, "p1", "p2")
		class := index.ProxyClass{}
		class.CDS.Client = c.client
		v.Class = class.Encode()
		j, f := jury.New(fixed{cluster(c.value)}, start.Add(-time.Minute), slog.New(slog.DiscardHandler)), fold.New("one", fold.KindJudge{})
		j.Hear(start, &reportv1.FrontendReport{Frontend: "f0", Verdicts: []*reportv1.Verdict{v}})
		j.Suspect(start, f)
		proposed, err := j.Propose(start, f, c.worlds)
		if (err != nil) != c.fails {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.fails {
			continue
		}
		if len(proposed) != 1 || proposed[0].Kind != ident.Quarantine || proposed[0].Reason != "it is bad" {
			t.Fatalf("%s: proposed %v, want a quarantine", c.name, proposed)
		}
		got := nothing
		if v := proposed[0].Values[0].Value; v != nil {
			var m clusterv3.Cluster
			if err := proto.Unmarshal(v.Bytes, &m); err != nil {
				t.Fatal(err)
			}
			if got = m.GetAltStatName(); proposed[0].Values[0].Resource.Closed {
				got = closed
			}
		}
		if got != c.want {
			t.Errorf("%s: served instead is %.50q, want %q", c.name, got, c.want)
		}
	}
}

// Proxies that get changes at different times have different contents before. The
// newest one counts: with none, every piece would be to blame.
func TestQuarantineServesNewestGood(t *testing.T) {
	older := verdict(0, 0, "p1")
	older.GoodSum, older.Good = []byte(strings.Repeat("o", 16)), store.VersionProto(ident.Position{Epoch: then.Epoch, Seq: then.Seq - 1})
	older.Class = nil
	fresh := verdict(0, 0, "p3")
	fresh.GoodSum, fresh.Good = nil, nil
	for _, frontends := range [][]*reportv1.Verdict{{older, verdict(0, 0, "p2"), fresh}, {verdict(0, 0, "p2"), fresh, older}} {
		j, f := jury.New(fixed{cluster("before")}, start.Add(-time.Minute), slog.New(slog.DiscardHandler)), fold.New("one", fold.KindJudge{})
		for i, v := range frontends {
			j.Hear(start, &reportv1.FrontendReport{Frontend: fmt.Sprint("f", i), Verdicts: []*reportv1.Verdict{v}})
		}
		j.Suspect(start, f)
		proposed, err := j.Propose(start, f, worlds)
		if err != nil || len(proposed) != 1 {
			t.Fatalf("proposed %v, %v", proposed, err)
		}
		if v := proposed[0].Values[0].Value; v == nil || string(v.Bytes) != string(cluster("before")) {
			t.Errorf("served instead: %v", v)
		}
	}
}

// anything is a judge that accepts every value.
type anything struct{}

func (anything) Judge(ident.Key, ident.Value) (proto.Message, []problem.Diagnostic, bool) {
	return nil, nil, true
}
func (anything) Closed(ident.Key, ident.Value) (ident.Value, bool) { return ident.Value{}, false }

func (anything) Configures(string) bool { return true }
func (anything) Stages(string) bool     { return true }

func (anything) EndpointsOnly(ident.Key, *world.Object, *world.Object) bool { return false }

// TestGuard removes objects of a source, and checks which losses the guard holds.
func TestGuard(t *testing.T) {
	for _, c := range []struct {
		name       string
		had, loses int
		size       int
		policy     world.Guard
		parts      int // of the hold; 0: no hold
	}{
		{"a third is lost", 9, 3, 1, world.Guard{MaxLossPercent: 30, MinKeys: 3}, 1},
		{"a quarter is lost", 12, 3, 1, world.Guard{MaxLossPercent: 30, MinKeys: 3}, 0},
		{"few are lost", 2, 2, 1, world.Guard{MaxLossPercent: 30, MinKeys: 3}, 0},
		{"the guard is disabled", 9, 9, 1, world.Guard{MaxLossPercent: 30, MinKeys: 3, Disabled: true}, 0},
		{"a hold larger than a message", 9, 9, 100 << 10, world.Guard{MaxLossPercent: 30, MinKeys: 3}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := fold.New("one", anything{})
			seq := uint64(0)
			apply := func(body events.Body) {
				t.Helper()
				seq++
				if _, _, err := f.Apply(events.Record{Seq: seq, Event: events.Event{ID: fmt.Sprint(seq), Body: body}}, nil); err != nil {
					t.Fatal(err)
				}
			}
			shard := ident.Shard{Source: "file", Instance: "default"}
			apply(&events.Segment{Epoch: 5, Build: "one"})
			apply(&events.Begin{Shard: shard, Session: "s", Holder: "test"})
			apply(&events.Alive{Shard: shard, Session: "s", Low: 1, Digest: new(events.ShardDigests).Sum(), Listed: events.AllBuckets()})
			value := ident.Value{Type: "type.test/thing", Bytes: []byte(strings.Repeat("x", c.size))}
			var before, delta store.Delta
			for i := range c.had {
				k := ident.Key{Source: "file", Instance: "default", Kind: "Thing", Name: fmt.Sprint("k", i)}
				before.Put = append(before.Put, store.Row{Key: k.Row(), Value: world.MarshalValue(value)})
				if i < c.loses {
					delta.Remove = append(delta.Remove, k.Row())
					continue
				}
				apply(&events.Object{Key: k, Op: events.Put, Value: value, Session: "s", Pseq: uint64(i - c.loses + 1), Low: uint64(i - c.loses + 1)})
			}
			hold, err := jury.Guard(f, c.policy, ident.Position{Epoch: 5, Seq: 3}, (*store.Snapshot)(nil).With(before), delta)
			if err != nil {
				t.Fatal(err)
			}
			if hold == nil {
				if c.parts != 0 {
					t.Error("nothing is held")
				}
				return
			}
			held := 0
			for _, p := range hold.Parts {
				held += len(p.Values)
			}
			if len(hold.Parts) != c.parts || held != c.loses || hold.ID != "hold-5-5.3-file-default" || hold.Parts[0].ID != hold.ID {
				t.Errorf("%s holds %d objects in %d parts (first %s), want %d in %d", hold.ID, held, len(hold.Parts), hold.Parts[0].ID, c.loses, c.parts)
			}
		})
	}
}

// rejectors returns proxies that reject, each in a place of its own.
func rejectors(ids []string) (all []*reportv1.Rejector) {
	for _, id := range ids {
		all = append(all, &reportv1.Rejector{Proxy: id, Address: id})
	}
	return all
}
