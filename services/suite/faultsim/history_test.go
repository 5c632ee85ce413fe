package faultsim

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/builder"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

// moment is the complete state of a fold after a record.
type moment struct {
	record  ident.Hash
	content map[string]string
	fold    map[string]string
}

func momentOf(f *fold.Fold) moment {
	m := moment{f.RecordHash(), map[string]string{}, map[string]string{}}
	for _, r := range f.Content().Rows {
		m.content[r.Row] = string(r.Value)
	}
	for k, v := range f.Rows() {
		m.fold[k] = string(v)
	}
	return m
}

func (m moment) root() ident.Hash {
	var d store.Delta
	for k, v := range m.content {
		d.Put = append(d.Put, store.Row{Key: k, Value: []byte(v)})
	}
	return (*store.Snapshot)(nil).With(d).Root()
}

// TestAnyWayToRead checks that a log gives the same content, byte for byte, at
// every record: read at once, in any batches, with restarts anywhere, or from a
// checkpoint.
func TestAnyWayToRead(t *testing.T) {
	for _, set := range []string{"all", "rewind", "norewind"} {
		for seed := range uint64(6) {
			s, err := run(plan{seed: seed, faults: faultSets[set]})
			if err != nil {
				t.Fatalf("faults %s, seed %d: %v", set, seed, err)
			}
			for _, build := range []string{buildA, buildB} {
				h := history{t: t, s: s, build: build, rnd: rand.New(rand.NewPCG(seed, 1))}
				h.atOnce()
				h.fromEveryCheckpoint()
				h.fromSavedRows()
				for range 3 {
					h.byBuilder()
				}
				if t.Failed() {
					t.Fatalf("faults %s, seed %d, build %s", set, seed, build)
				}
			}
		}
	}
}

// history is one log as one build reads it.
type history struct {
	t       *testing.T
	s       *sim
	build   string
	rnd     *rand.Rand
	records []events.Record
	moments []moment // moments[n] is the state after n records
}

func (h *history) apply(f *fold.Fold, n int) {
	h.t.Helper()
	if _, _, err := f.Apply(h.records[n], h.s.baseOf(f, h.records[n])); err != nil {
		h.t.Fatalf("record %d: %v", n+1, err)
	}
}

func (h *history) compare(n int, way string, got moment) {
	h.t.Helper()
	if diff := cmp.Diff(h.moments[n], got, cmp.AllowUnexported(moment{})); diff != "" {
		h.t.Errorf("record %d, %s (-read at once +read this way):\n%s", n, way, diff)
	}
}

func (h *history) atOnce() {
	h.records = h.s.records()
	f := fold.New(h.build, judge{build: h.build})
	h.moments = []moment{momentOf(f)}
	for n := range h.records {
		h.apply(f, n)
		h.moments = append(h.moments, momentOf(f))
	}
}

// fromEveryCheckpoint folds one record from each checkpoint.
func (h *history) fromEveryCheckpoint() {
	for n := range h.records {
		f := h.restore(h.moments[n].fold)
		h.compare(n, "restored", momentOf(f))
		h.apply(f, n)
		h.compare(n+1, "restored one record before", momentOf(f))
	}
}

func (h *history) restore(rows map[string]string) *fold.Fold {
	h.t.Helper()
	f, err := fold.Restore(h.build, judge{build: h.build}, func(yield func(string, []byte) bool) {
		for k, v := range rows { // in any order
			if !yield(k, []byte(v)) {
				return
			}
		}
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return f
}

// fromSavedRows keeps a file up to date with the dirty rows that Checkpoint
// returns, and restarts from that file after every step.
func (h *history) fromSavedRows() {
	f := fold.New(h.build, judge{build: h.build})
	file := map[string]string{}
	for n := range h.records {
		h.apply(f, n)
		if h.rnd.IntN(5) > 0 {
			continue
		}
		c := f.Checkpoint()
		if c.Reset {
			clear(file)
		}
		for _, r := range c.Put {
			file[r.Key] = string(r.Value)
		}
		for _, k := range c.Remove {
			delete(file, k)
		}
		f = h.restore(file)
		h.compare(n+1, "from its file", momentOf(f))
	}
	if !maps.Equal(h.moments[len(h.records)].fold, momentOf(f).fold) {
		h.t.Errorf("at the end the fold with restarts has other rows")
	}
}

// byBuilder reads in batches with a builder that dies at random.
func (h *history) byBuilder() {
	ctx := context.Background()
	file := new(memstore.File)
	var m *builder.Machine
	for n := 0; n < len(h.records); {
		if m == nil || h.rnd.IntN(6) == 0 {
			var err error
			m, err = builder.Open(ctx, builder.Config{
				ID: "reader", Build: h.build, Log: h.s.log, Feed: headless{h.s.chain}, Store: memstore.Open(file, store.Retention{}),
				Fleet: silent{}, Judge: judge{build: h.build}, Now: h.s.time, Logger: h.s.logger("reader"),
			})
			if err != nil {
				h.t.Fatal(err)
			}
			after, err := m.Connect(ctx)
			if err != nil {
				h.t.Fatal(err)
			}
			n = int(after)
		}
		batch := slices.Clone(h.records[n:min(len(h.records), n+1+h.rnd.IntN(30))])
		if err := m.Read(ctx, batch); err != nil {
			h.t.Fatal(err)
		}
		n += len(batch)
		if record, root := m.Folded(); record != h.moments[n].record || root != h.moments[n].root() {
			h.t.Errorf("record %d, read in batches by a builder: the content differs", n)
		}
		if h.rnd.IntN(3) == 0 {
			if err := m.SaveFold(ctx); err != nil {
				h.t.Fatal(err)
			}
		}
	}
}

// headless is a chain that has blobs but no head. A builder that finds no head
// reads the log to its end.
type headless struct{ *memstore.Chain }

func (headless) Head(context.Context) (store.Head, error) { return store.Head{}, nil }

// silent is a fleet without listeners.
type silent struct{}

func (silent) Tick(context.Context, *reportv1.Tick) error                 { return nil }
func (silent) AskListing(context.Context, *reportv1.ListingRequest) error { return nil }
