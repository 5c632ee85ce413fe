package apply

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"meshlog.dev/events"
	"meshlog.dev/events/memlog"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/draft"
	"meshlog.dev/services/operate/operatetest"
	"meshlog.dev/services/operate/past"
)

// workloads returns documents of WorkloadEntries, and their items.
func workloads(t *testing.T, prefix string, n int) (string, []*draft.Item) {
	t.Helper()
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: %s%d, namespace: demo}\nspec: {address: 10.0.%d.%d}\n", prefix, i, i/250, i%250+1)
	}
	d := &draft.Documents{Shard: api}
	if err := readFiles(d, []string{"-"}, strings.NewReader(text.String())); err != nil || len(d.Problems) > 0 {
		t.Fatal(err, d.Problems)
	}
	return text.String(), d.Items
}

// cut is a log that refuses to append after some appends: the process has died.
type cut struct {
	events.Appender
	left int
}

var errDied = errors.New("died")

func (c *cut) Append(ctx context.Context, batch []events.Event, fence events.Fence) (events.Ack, error) {
	if c.left--; c.left < 0 {
		return events.Ack{}, fmt.Errorf("%w: %w", events.ErrClosed, errDied)
	}
	return c.Appender.Append(ctx, batch, fence)
}

// pastOf returns what readShard reads of a mesh.
func pastOf(t *testing.T, m *operatetest.Mesh) *past.Past {
	t.Helper()
	chain := openChain(t, m)
	return &past.Past{Name: "test", Log: openLog(t, m), Versions: chain, Blobs: chain, Live: true}
}

func read(t *testing.T, p *past.Past) *shard {
	t.Helper()
	s, err := readShard(t.Context(), p, api, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// API-1: a crash at any append before the last one leaves nothing, and the next apply
// does not mind.
func TestCrash(t *testing.T) {
	t.Parallel()
	m := operatetest.Start(t, nil)
	must(t, m, nil, shop, "apply", "-f", "-")
	p := pastOf(t, m)
	log := openLog(t, m)
	_, items := workloads(t, "w", 1100)
	for appends := 1; appends <= 3; appends++ { // of 4: three of objects, and the alive
		s := read(t, p)
		if _, err := s.write(t.Context(), &cut{log, appends}, draft.NewChange(s.Shard, items, false).Writes()); !errors.Is(err, errDied) || !strings.Contains(err.Error(), "changed") {
			t.Fatalf("after %d appends: %v", appends, err)
		}
		if got := slices.Sorted(maps.Keys(names(read(t, p)))); len(got) != 2 {
			t.Fatalf("an apply that died after %d appends left %v", appends, got)
		}
	}

	// The next apply waits until it is sure that the one before does not go on.
	waited := 0
	if err := awaitEnd(t.Context(), log, api, 300*time.Millisecond, func() { waited++ }); err != nil || waited != 1 {
		t.Errorf("waited %d times for the interrupted apply, %v", waited, err)
	}
	text, _ := workloads(t, "w", 3)
	runJob(t, m, text, 300*time.Millisecond)
	if n := len(names(read(t, p))); n != 5 {
		t.Errorf("%d objects after the next apply, want 5", n)
	}
	if err := awaitEnd(t.Context(), log, api, time.Hour, func() { t.Error("waits after the end") }); err != nil {
		t.Error(err)
	}
}

func names(s *shard) map[string]bool {
	all := map[string]bool{}
	for k := range s.Offers {
		all[k.Kind+" "+k.Name] = true
	}
	return all
}

// runJob applies documents as the command does.
func runJob(t *testing.T, m *operatetest.Mesh, text string, silence time.Duration) {
	t.Helper()
	target := &command.Target{Data: m.Data, Bus: process.DefaultBus(), Stderr: io.Discard}
	defer target.Close()
	d := &draft.Documents{Shard: api}
	if err := readFiles(d, []string{"-"}, strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	env := &command.Env{Target: target, Output: command.NewOutput(io.Discard, command.JSON)}
	j := &job{options: options{timeout: 30 * time.Second}, env: env, shard: api, items: d.Items, silence: silence}
	if err := j.run(t.Context(), d.Problems); err != nil {
		t.Fatal(err)
	}
}

// API-2: of two applies that read the same state one is repeated, and none is lost.
func TestConcurrentApplies(t *testing.T) {
	t.Parallel()
	m := operatetest.Start(t, nil)
	p, log := pastOf(t, m), openLog(t, m)
	_, few := workloads(t, "few", 2)
	_, many := workloads(t, "many", 700)
	first, second, third := read(t, p), read(t, p), read(t, p)
	if _, err := first.write(t.Context(), log, draft.NewChange(first.Shard, few, false).Writes()); err != nil {
		t.Fatal(err)
	}
	for _, items := range [][]*draft.Item{few[:1], many} {
		s := map[bool]*shard{true: second, false: third}[len(items) == 1]
		if _, err := s.write(t.Context(), log, draft.NewChange(s.Shard, items, false).Writes()); !errors.Is(err, events.ErrConflict) {
			t.Errorf("an apply of %d objects on an older state: %v", len(items), err)
		}
	}
	// One that begins while another one writes ends it.
	slow := read(t, p)
	if _, err := slow.write(t.Context(), &cut{log, 1}, draft.NewChange(slow.Shard, many, false).Writes()); !errors.Is(err, errDied) {
		t.Fatal(err)
	}
	if got := names(read(t, p)); len(got) != 2 {
		t.Errorf("%d objects, want those of the first apply", len(got))
	}

	var all sync.WaitGroup
	for n := range 4 {
		text, _ := workloads(t, fmt.Sprintf("at-once-%d-", n), 600)
		all.Go(func() { runJob(t, m, text, time.Second) })
	}
	all.Wait()
	if got := names(read(t, p)); len(got) != 2+4*600 {
		t.Errorf("%d objects after 4 applies at once, want %d", len(got), 2+4*600)
	}
}

// API-1, M3: however a session is split into appends, the fold comes to the same content
// and the same problems.
func TestPartsMakeTheSameContent(t *testing.T) {
	_, items := workloads(t, "w", 1200)
	var steps []draft.Step
	for n, i := range items {
		st := draft.Step{Item: i, Action: draft.Created}
		if n%7 == 0 {
			st.Action = draft.Deleted
		}
		steps = append(steps, st)
	}
	whole := draft.Session(api, "s", "me", steps)
	var want map[string]string
	for seed := range uint64(5) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		f := fold.New("A", fold.KindJudge{})
		var seq uint64
		apply := func(body events.Body) {
			t.Helper()
			seq++
			if _, _, err := f.Apply(events.Record{Seq: seq, Event: events.Event{Body: body}}, nil); err != nil {
				t.Fatal(err)
			}
		}
		apply(&events.Segment{Epoch: 1, Build: "A"})
		n := 0
		for _, part := range parts(whole) {
			for _, e := range part {
				apply(e.Body)
				n++
				if rnd.IntN(100) == 0 { // records of other sources lie between
					other := ident.Shard{Source: "file", Instance: "x"}
					apply(&events.Begin{Shard: other, Session: fmt.Sprint(seq), Holder: "h"})
				}
				if _, ends := e.Body.(*events.Alive); !ends && len(f.Offers(api)) > 0 {
					t.Fatal("a part of an apply counts before its end")
				}
			}
		}
		if n != len(whole) {
			t.Fatalf("the parts have %d events, want %d", n, len(whole))
		}
		got := map[string]string{}
		for _, r := range f.Content().Rows {
			got[r.Row] = string(r.Value)
		}
		if seed == 0 {
			want = got
		}
		if diff := cmp.Diff(want, got); diff != "" || len(got) != 1200-172 {
			t.Fatalf("%d rows, %s", len(got), diff)
		}
		if d := f.Diagnostics(); len(d) > 0 || len(f.Needs()) > 1 {
			t.Errorf("problems %v, needs %v", d, f.Needs())
		}
	}
	for n, part := range parts(whole) {
		for _, e := range part {
			if o, ok := e.Body.(*events.Object); ok && o.Low != part[min(1, len(part)-1)].Body.(*events.Object).Pseq-map[bool]uint64{true: 0, false: 1}[n == 0] {
				t.Fatalf("part %d: low %d", n, o.Low)
			}
		}
	}
}

// API-4: after a loss of the log the source has what a checkpoint had, and the command
// says that newer objects are lost, until the next apply.
func TestSinceLoss(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	log := memlog.New(func() time.Time { return now })
	f := fold.New("A", fold.KindJudge{})
	var base []fold.Row
	apply := func(body events.Body) {
		t.Helper()
		ack, err := log.Append(t.Context(), []events.Event{command.NewEvent("test", body)}, events.Fence{})
		if err != nil {
			t.Fatal(err)
		}
		rec, err := log.Get(t.Context(), ack.Seq)
		if err != nil {
			t.Fatal(err)
		}
		rows := func(yield func(string, []byte) bool) {
			for _, r := range base {
				if !yield(r.Key, r.Value) {
					return
				}
			}
		}
		if _, _, err := f.Apply(rec, rows); err != nil {
			t.Fatal(err)
		}
	}
	said := func() string {
		t.Helper()
		s := &shard{Shard: &draft.Shard{Name: api, Fold: f}}
		text, err := s.sinceLoss(t.Context(), log)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	_, items := workloads(t, "w", 2)
	change := func(i *draft.Item) {
		for _, e := range draft.Session(api, draft.NewSession(), "me", []draft.Step{{Item: i, Action: draft.Created}}) {
			apply(e.Body)
		}
	}
	apply(&events.Segment{Epoch: 1, Build: "A"})
	change(items[0])
	if text := said(); text != "" {
		t.Errorf("without a loss: %s", text)
	}
	rows, err := f.EpochBase(ident.Position{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range rows {
		base = append(base, fold.Row{Key: k, Value: v})
	}
	apply(&events.Segment{Epoch: 2, Build: "A", Base: ident.Hash{1}})
	says(t, "after a loss", said(), "epoch 2 began on 2026-11-21 12:00:00 UTC", "The 1 objects of api/default are those of a checkpoint", "apply it again")

	// A document from before is refused, whatever its object is now.
	s := &draft.Shard{Name: api, Fold: f}
	s.Keep()
	items[0].ResourceVersion = ident.Position{Epoch: 1, Seq: 3}
	items[1].ResourceVersion = ident.Position{Epoch: 1, Seq: 9}
	problems := draft.NewChange(s, items, false).Problems
	if len(problems) != 2 {
		t.Fatalf("documents of another epoch: %v", problems)
	}
	says(t, "an object of the checkpoint", problems[0].Reason, "made from 1.3", "has changed since, at 2.0")
	says(t, "a lost object", problems[1].Reason, "made from 1.9", "lost with the log")

	change(items[1])
	if text := said(); text != "" {
		t.Errorf("after the next apply: %s", text)
	}
}
