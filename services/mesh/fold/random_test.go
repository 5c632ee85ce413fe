package fold

import (
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/permit"
	"meshlog.dev/services/mesh/world"
)

// author writes random logs, as watchers, builders and operators would if many
// things failed. choose(n) returns the next decision, 0 to n-1.
type author struct {
	choose func(n int) int
	seq    uint64
	ids    int
	shards []*speaker
	head   ident.Position
	rows   []kv // content of the head
	base   []kv // of the last segment
	act    events.Batch
}

type speaker struct {
	shard    ident.Shard
	session  string
	pseq     uint64
	sessions int
	batch    events.Batch
}

func newAuthor(choose func(int) int) *author {
	return &author{choose: choose, shards: []*speaker{
		{shard: ident.Shard{Source: "file", Instance: "a"}}, {shard: ident.Shard{Source: "kube", Instance: "c/1"}},
	}}
}

// pick returns one of the words.
func (a *author) pick(words ...string) string { return words[a.choose(len(words))] }

func (a *author) rare() bool { return a.choose(8) == 0 }

func (a *author) key(s *speaker) ident.Key {
	return testKey(s.shard, a.pick("a", "b", "c", "d%2F", "Endpoint/a", "Endpoint/b", "Wall/a", "MeshPolicy/default"))
}

func (a *author) payload(k ident.Key) ident.Value {
	if k.Kind == permit.PolicyKind {
		return testPayload(a.pick("policy-things", "policy-endpoints", "policy-other", "good1"))
	}
	return testPayload(a.pick("good1", "good2", "good3", "bad1", "bad2", "warn1", "onlyA1", "onlyB1"))
}

// next returns the next record. It depends on the state of f, and has been encoded
// and decoded.
func (a *author) next(f *Fold) events.Record {
	a.seq++
	e := events.Event{ID: fmt.Sprint("id", a.seq), Actor: "ann", Observed: time.Unix(int64(a.seq), 5).UTC()}
	s := a.shards[a.choose(len(a.shards))]
	switch n := a.choose(40); {
	case n == 0:
		e.Body = a.segment(f)
	case n < 4:
		s.sessions++
		s.session, s.pseq, s.batch = fmt.Sprint("s", s.sessions), 0, events.Batch{}
		e.Body = &events.Begin{Shard: s.shard, Session: s.session, Holder: "h"}
	case n < 10:
		e.Body = a.alive(f, s)
	case n < 13:
		e.Body = a.overlay(f, s)
	case n == 13:
		return a.raw("", []byte{0xff}).Record()
	default:
		e.Body = a.object(s)
	}
	raw, err := events.Encode(e)
	if err != nil {
		panic(err)
	}
	subject, err := events.SubjectOf(e)
	if err != nil {
		panic(err)
	}
	rec := a.raw(subject, raw)
	if a.choose(20) > 0 || a.seq != f.seq+1 { // a segment that jumps counts
		return rec.Record()
	}
	if a.rare() {
		rec.Refused = "a server made it"
	} else {
		rec.Subject = events.Subject(a.pick("_builder.segment", "_operator.overlay", "file.a._ctl", "file.a.Thing._"))
	}
	return rec.Record()
}

func (a *author) raw(s events.Subject, data []byte) events.Raw {
	return events.Raw{Seq: a.seq, Time: time.Unix(int64(a.seq), 0), Subject: s, Data: data}
}

func (a *author) object(s *speaker) *events.Object {
	s.pseq++
	if a.rare() {
		s.pseq++ // a record is lost
	}
	o := &events.Object{Key: a.key(s), Op: events.Put, Session: s.session, Pseq: s.pseq, Low: 1, Origin: fmt.Sprint("f:", a.seq)}
	if a.rare() {
		o.Pseq = 1 + uint64(a.choose(int(s.pseq)))
	}
	if a.rare() {
		o.Low = 1 + uint64(a.choose(int(o.Pseq)))
	}
	if a.rare() || s.session == "" {
		o.Session = "s1"
	}
	if o.Value = a.payload(o.Key); a.choose(4) == 0 {
		o.Op, o.Value = events.Delete, ident.Value{}
	} else if a.rare() {
		o.Value.Created = time.Unix(1+int64(a.choose(3)), 0).UTC()
	}
	if s.batch.Total == 0 && a.rare() {
		a.ids++
		s.batch = events.Batch{ID: fmt.Sprint("b", a.ids), Total: 1 + uint32(a.choose(3))}
	}
	if s.batch.Total > 0 {
		o.Batch = s.batch
		if s.batch.Index++; s.batch.Index == s.batch.Total {
			s.batch = events.Batch{}
		}
	}
	return o
}

// alive mostly has the digest of what the fold has, so that listings close.
func (a *author) alive(f *Fold, s *speaker) *events.Alive {
	al := &events.Alive{Shard: s.shard, Session: s.session, Low: 1, Listed: events.AllBuckets(), Partial: a.rare()}
	if s.session == "" || a.rare() {
		al.Session = "s1"
	}
	if a.choose(3) == 0 {
		al.Listed = events.BucketSet{}
		for range a.choose(4) {
			al.Listed.Add(events.Bucket(a.key(s)))
		}
	}
	al.Ends = a.rare()
	switch a.choose(6) {
	case 0:
		al.Kinds = events.KindsOf("Thing")
	case 1:
		al.Kinds = events.KindsOf("Endpoint", "Other")
	case 2:
		al.Kinds = events.KindsOf("Endpoint", "Thing")
	}
	if sh := f.shards[s.shard]; sh != nil && !a.rare() {
		if al.Digest = sh.digest(al.Kinds); sh.Listing {
			al.Digest = sh.listingDigest(&al.Listed, al.Kinds)
		}
	}
	return al
}

func (a *author) overlay(f *Fold, s *speaker) *events.Overlay {
	if a.choose(3) == 0 {
		return a.rollout(f, s)
	}
	o := &events.Overlay{ID: a.pick("o1", "o2", "o3", "o4"), Kind: ident.Rollback, Reason: "r"}
	if a.choose(3) == 0 {
		return &events.Overlay{ID: o.ID, Remove: true}
	}
	switch a.choose(7) {
	case 6:
		o.Kind, o.Proxies = ident.Pin, &ident.Proxies{Namespace: "shop"}
	case 0:
		return quarantine(o.ID, a.pick("r1", "r2"), a.pick("good", "-"))
	case 1, 2:
		o.Kind = ident.Hold
	case 3:
		return &events.Overlay{ID: o.ID, Kind: ident.Freeze, Reason: "r", Scope: &ident.Scope{Shard: s.shard}}
	case 4:
		o.Scope = &ident.Scope{Config: true, Namespace: a.pick("", "", "elsewhere")}
	}
	if o.Kind == ident.Rollback && (a.act.Total > 0 || a.rare()) {
		if a.act.Total == 0 {
			a.ids++
			a.act = events.Batch{ID: fmt.Sprint("act", a.ids), Total: 1 + uint32(a.choose(3))}
		}
		o.Batch = a.act
		if a.act.Index++; a.act.Index == a.act.Total {
			a.act = events.Batch{}
		}
	}
	seen := map[ident.Key]bool{}
	for range 1 + a.choose(3) {
		v := ident.OverlayValue{Key: a.key(s)}
		if seen[v.Key] {
			continue
		}
		seen[v.Key] = true
		if !a.rare() {
			v.Base = f.offeredHash(v.Key)
		}
		if a.choose(3) > 0 {
			p := a.payload(v.Key)
			v.Value = &p
		}
		o.Values = append(o.Values, v)
	}
	return o
}

// rollout mostly goes on with a rollout as a builder or an operator would.
func (a *author) rollout(f *Fold, s *speaker) *events.Overlay {
	a.ids++
	o := &events.Overlay{ID: fmt.Sprint("r", a.ids), Kind: ident.Rollout, Reason: "r", Rollout: &ident.Staging{State: ident.RolloutWaiting}}
	all := f.Rollouts()
	if len(all) > 0 && (a.choose(4) > 0 || f.waitingRollout() != nil) {
		r := all[a.choose(len(all))]
		o.ID, *o.Rollout = r.ID, *r.Rollout
		o.Rollout.Since = time.Time{}
		switch r.Rollout.State {
		case ident.RolloutWaiting:
			if a.choose(3) > 0 {
				o.Rollout.State, o.Rollout.Step = ident.RolloutRunning, 1
			}
		case ident.RolloutRunning:
			switch a.choose(5) {
			case 0:
				o.Remove = true
			case 1:
				o.Rollout.State = ident.RolloutStopped
			case 2:
				o.Rollout.Step++
			}
			o.Rollout.Ordered = a.choose(3) == 0
		case ident.RolloutStopped:
			o.Remove = true
		}
	}
	if a.rare() {
		o.ID = a.pick("o1", "o2", "r1", "r2")
	}
	if a.rare() {
		o.Rollout.State = []ident.RolloutState{ident.RolloutWaiting, ident.RolloutRunning, ident.RolloutStopped}[a.choose(3)]
		o.Rollout.Step = 1 + a.choose(3)
	}
	if o.Remove {
		return &events.Overlay{ID: o.ID, Kind: o.Kind, Remove: true, Rollout: &ident.Staging{State: o.Rollout.State, Ordered: o.Rollout.Ordered}}
	}
	if o.Rollout.State == ident.RolloutRunning {
		o.Rollout.Reached = ident.Group{Percent: 10}
	} else {
		o.Rollout.Reached = ident.Group{}
	}
	if o.Rollout.State == ident.RolloutStopped || o.Rollout.Ordered || a.choose(3) == 0 {
		return o
	}
	v := ident.OverlayValue{Key: a.key(s)}
	if a.choose(4) > 0 {
		p := a.payload(v.Key)
		v.Value = &p
	}
	if !sameValue(v.Value, f.served(v.Key)) { // else there is nothing to keep
		o.Values = []ident.OverlayValue{v}
	}
	return o
}

func (a *author) segment(f *Fold) *events.Segment {
	if f.Position().Epoch > 0 && (a.choose(2) == 0 || a.rows == nil) {
		a.rows, a.head = contentRows(f), f.Position()
	}
	g := &events.Segment{Epoch: f.Segment().Epoch, EpochRecord: f.Segment().EpochRecord, Build: a.pick("A", "B"), Head: a.head}
	base, err := BuildBase(each(a.rows))
	if g.Epoch == 0 || a.choose(2) == 0 {
		if g.EpochRecord = 0; g.Epoch == 0 || !a.rare() {
			g.Epoch++ // otherwise the segment is void
		}
		head := a.head
		if a.rare() {
			head.Epoch += 9 // the fold is behind
		}
		base, err = f.EpochBase(head, each(a.rows))
	}
	if err != nil {
		panic(err)
	}
	a.base = collect(base)
	if !a.rare() {
		g.Base = ident.Hash{1}
	}
	if a.rare() && g.EpochRecord == 0 && g.Epoch > f.Segment().Epoch {
		a.seq = uint64(a.choose(3)) + 1 // the log was lost
	}
	return g
}

func (a *author) baseOf(f *Fold, rec events.Record) iter.Seq2[string, []byte] {
	if _, needs := f.NeedsBase(rec); needs {
		return each(a.base)
	}
	return nil
}

// follow lets an author write n records, and checks after each that
//   - a fold restored before the record does the same with it,
//   - checkpoints, taken at random, add up to the rows,
//   - the changes add up to the content,
//   - the digests are those of the offered values.
func follow(t *testing.T, a *author, n int) {
	t.Helper()
	f := New("A", testJudge("A"))
	twin, saved, content := New("A", testJudge("A")), table{}, table{}
	for range n {
		rec := a.next(f)
		base := a.baseOf(f, rec)
		change, problems, err := f.Apply(rec, base)
		if err != nil {
			t.Fatalf("record %d: %v", rec.Seq, err)
		}
		twinChange, twinProblems, err := twin.Apply(rec, base)
		if err != nil {
			t.Fatalf("record %d, restored: %v", rec.Seq, err)
		}
		if !reflect.DeepEqual(change, twinChange) {
			t.Fatalf("record %d: a restored fold makes another change:\n%s", rec.Seq, cmp.Diff(change, twinChange))
		}
		if !slices.Equal(problems, twinProblems) {
			t.Fatalf("record %d: a restored fold finds other problems:\n%s", rec.Seq, cmp.Diff(problems, twinProblems))
		}
		rows := collect(f.Rows())
		if diff := diffRows(rows, collect(twin.Rows())); diff != "" {
			t.Fatalf("record %d: a restored fold has other rows:\n%s", rec.Seq, diff)
		}
		if a.choose(3) == 0 {
			saved.apply(f.Checkpoint())
			if diff := diffRows(rows, collect(saved.rows())); diff != "" {
				t.Fatalf("record %d: checkpoints do not add up to the rows:\n%s", rec.Seq, diff)
			}
		}
		content.change(change)
		if diff := diffRows(contentRows(f), collect(content.rows())); diff != "" {
			t.Fatalf("record %d: changes do not add up to the content:\n%s", rec.Seq, diff)
		}
		checkDigests(t, f)
		if twin, err = Restore("A", testJudge("A"), each(rows)); err != nil {
			t.Fatal(err)
		}
	}
}

func (t table) change(c world.Change) {
	if c.Reset {
		clear(t)
	}
	for _, r := range c.Rows {
		if t[r.Row] = r.Value; r.Value == nil {
			delete(t, r.Row)
		}
	}
}

func checkDigests(t *testing.T, f *Fold) {
	t.Helper()
	for name, sh := range f.shards {
		want := map[string]*ofKind{}
		n := 0
		for k, e := range sh.entries {
			if e.offered == nil {
				if e.good != nil && !f.Frozen(k) {
					t.Fatalf("at %s: %s was deleted but has a good value", f.Position(), k)
				}
				continue
			}
			if want[k.Kind] == nil {
				want[k.Kind] = &ofKind{}
			}
			want[k.Kind].keys++
			want[k.Kind].digests.Toggle(k, e.offered.hash)
			n++
		}
		if !reflect.DeepEqual(want, sh.byKind) || n != f.CountKeys(name) {
			t.Fatalf("at %s: the digests of %s are not those of its %d keys", f.Position(), name, n)
		}
	}
	for _, sh := range f.shards {
		for k, e := range sh.entries {
			if _, ok := f.withheld[k]; ok != (f.Frozen(k) && hashOf(e.offered) != hashOf(e.good)) {
				t.Fatalf("at %s: %s: withheld is %v", f.Position(), k, ok)
			}
		}
	}
	for k, over := range f.over {
		for _, o := range over {
			if _, ok := o.values[k]; !ok || f.overlays[o.ID] != o {
				t.Fatalf("at %s: overlay %s is not over %s", f.Position(), o.ID, k)
			}
		}
	}
}

func TestRandomLogs(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		t.Run(fmt.Sprint(seed), func(t *testing.T) { follow(t, newAuthor(r.IntN), 80) })
	}
}

// FuzzApply takes the decisions of the author from its input.
func FuzzApply(f *testing.F) {
	for seed := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, 2))
		b := make([]byte, 200)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, decisions []byte) {
		choose := func(n int) int {
			if len(decisions) == 0 {
				return 0
			}
			d := int(decisions[0])
			decisions = decisions[1:]
			return d % n
		}
		follow(t, newAuthor(choose), min(len(decisions)/4+1, 100))
	})
}

// TestJumpIn checks that a fold that begins at the segment of the last epoch has
// the same state as one that read the whole log.
func TestJumpIn(t *testing.T) {
	tried := 0
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 3))
		a := newAuthor(r.IntN)
		f, late := New("A", testJudge("A")), New("A", testJudge("A"))
		for range 80 {
			rec := a.next(f)
			base := a.baseOf(f, rec)
			if f.beginsEpoch(rec) {
				late = New("A", testJudge("A"))
				tried++
			}
			if _, _, err := f.Apply(rec, base); err != nil {
				t.Fatal(err)
			}
			if f.Position().Epoch == 0 {
				continue
			}
			if _, _, err := late.Apply(rec, base); err != nil {
				t.Fatalf("seed %d, record %d: %v", seed, rec.Seq, err)
			}
			if diff := diffRows(collect(f.Rows()), collect(late.Rows())); diff != "" {
				t.Fatalf("seed %d, record %d:\n%s", seed, rec.Seq, diff)
			}
		}
	}
	if tried < 50 {
		t.Errorf("only %d epochs were begun", tried)
	}
}

// TestBuildsAgree checks that all builds that read a log have the same sessions,
// overlays and offered values.
func TestBuildsAgree(t *testing.T) {
	known := func(f *Fold) string {
		s := fmt.Sprintln(f.Position(), f.Needs(), f.Watermark(), slices.Sorted(maps.Keys(f.overlays)))
		for _, sh := range f.inOrder() {
			s += fmt.Sprintln(sh.name, sh.digest(nil), sh.frozen(), sh.Session, sh.Floor, len(sh.staged))
		}
		return s
	}
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 4))
		a := newAuthor(r.IntN)
		f, g := New("A", testJudge("A")), New("B", testJudge("B"))
		for range 60 {
			rec := a.next(f)
			base := a.baseOf(f, rec)
			if _, _, err := f.Apply(rec, base); err != nil {
				t.Fatal(err)
			}
			if _, _, err := g.Apply(rec, base); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(known(f), known(g)); diff != "" {
				t.Fatalf("seed %d, record %d:\n%s", seed, rec.Seq, diff)
			}
		}
	}
}
