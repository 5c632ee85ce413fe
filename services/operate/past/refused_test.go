package past_test

import (
	"context"
	"errors"
	"iter"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/events/archive"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store/memstore"
)

// forge appends what a watcher's key could say under its own subjects, and a message
// that a server made (BUS-1, BUS-2).
func (m *mesh) forge() (forged []uint64) {
	m.t.Helper()
	data := func(body events.Body) []byte {
		b, err := events.Encode(events.Event{ID: m.id(), Body: body})
		if err != nil {
			m.t.Fatal(err)
		}
		return b
	}
	ctl := events.ControlSubject(shard)
	served := key("VirtualService", "demo", "shop")
	for _, body := range []events.Body{
		&events.Segment{Epoch: math.MaxUint64, Build: "evil"},
		&events.Begin{Shard: ident.Shard{Source: "file", Instance: "other"}, Session: "evil", Holder: "evil"},
		&events.Object{Key: served, Op: events.Delete, Session: m.sessionName(), Pseq: m.pseq + 1, Low: 1},
		&events.Overlay{ID: "evil", Kind: ident.Rollback, Values: []ident.OverlayValue{{Key: served, Base: events.ContentHash(served, m.offered[served])}}},
	} {
		forged = append(forged, m.log.AppendRaw(ctl, data(body)))
	}
	forged = append(forged,
		m.log.AppendRaw(events.SegmentSubject, data(&events.Segment{Epoch: math.MaxUint64, Build: "evil"})),
		m.log.AppendForeign(ctl, data(&events.Begin{Shard: shard, Session: "evil", Holder: "evil"})),
	)
	m.settle()
	return forged
}

// TestRefused exports a log with records that are refused. The archive keeps each
// verdict: it folds to the roots of the log, and says which records they are.
func TestRefused(t *testing.T) {
	m := newMesh(t, "one")
	m.canary(2)
	before := m.versions()
	forged := m.forge()
	m.canary(2)
	if got, want := len(m.versions()), len(before)+2; got != want {
		t.Fatalf("%d versions, want %d: a refused record made one", got, want)
	}
	p, plan := archived(t, m.past(), 0)
	for name, in := range map[string]*past.Past{"log": m.past(), "archive": p} {
		v, err := past.Verify(t.Context(), in, "one", nil)
		if err != nil || v.Count(past.Broken) > 0 || v.Same != plan.Versions {
			t.Errorf("%s: verified %+v, %v", name, v, err)
		}
		r, err := past.Begin(t.Context(), in, 1)
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		err = r.To(t.Context(), plan.Last, nil, func(s past.Step) error {
			refused := errors.Is(s.Record.Err, events.ErrRefused)
			if !refused {
				return nil
			}
			if s.Record.Seq != forged[found] || past.What(s.Record) != "refused" || len(s.Changes) > 0 || s.Reset || len(s.Problems) != 1 || s.Problems[0].Code != "refused" {
				t.Errorf("%s: %+v, want record %d to be refused", name, s, forged[found])
			}
			found++
			return nil
		})
		if err != nil || found != len(forged) {
			t.Errorf("%s: %d records are refused, want %d; %v", name, found, len(forged), err)
		}
	}
}

// TestImportFarEpoch imports archives that name an epoch of the far future, which the
// times in the archive allow (BUS-1).
func TestImportFarEpoch(t *testing.T) {
	far := time.Now().Add(3 * 365 * 24 * time.Hour)
	path := filepath.Join(t.TempDir(), "archive")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := archive.NewWriter(f, 1)
	if err != nil {
		t.Fatal(err)
	}
	data, err := events.Encode(events.Event{ID: "x", Body: &events.Segment{Epoch: uint64(far.Unix()), Build: "evil"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{w.Append(events.Raw{Seq: 1, Time: far, Subject: events.SegmentSubject, Data: data}), w.Close()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	a, err := archive.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	none := func(context.Context, uint64, iter.Seq2[events.Raw, error]) error {
		t.Error("records were restored")
		return nil
	}
	if err := past.Import(t.Context(), a, memstore.NewChain(), none, nil); !errors.Is(err, past.ErrFarEpoch) {
		t.Errorf("import: %v", err)
	}
}
