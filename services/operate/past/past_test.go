package past_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/builder/ledger"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// Of returns the records about a key, and the effect of each.
func TestOf(t *testing.T) {
	m := newMesh(t, "one")
	first := m.put("VirtualService", "demo", "shop", weights(90, 10))
	m.settle()
	again := m.put("VirtualService", "demo", "shop", weights(90, 10))
	second := m.put("VirtualService", "demo", "shop", weights(50, 50))
	m.settle()
	bad := m.put("VirtualService", "demo", "shop", `{"hosts":["shop"],"http":[{"route":[{"destination":{"host":"shop"},"weight":-1}]}]}`)
	m.settle()
	m.put("VirtualService", "demo", "other", weights(1, 99)) // another key
	gone := m.remove("VirtualService", "demo", "shop")
	m.settle()
	stranger := m.append(&events.Object{Key: key("VirtualService", "demo", "shop"), Op: events.Put, Value: m.payload("VirtualService", weights(2, 98)), Session: "nobody", Pseq: 1, Low: 1})
	m.begin()
	listed := m.put("VirtualService", "demo", "shop", weights(80, 20))
	m.begin() // a new session: the listing so far has no effect
	for k, p := range m.offered {
		if k.Name != "shop" {
			m.object(k, events.Put, p)
		}
	}
	applied := m.put("VirtualService", "demo", "shop", weights(80, 20))
	m.alive()
	m.settle()

	type row struct {
		Seq    uint64
		Effect past.Effect
		Fields []string
		New    bool // a version has the change
	}
	want := []row{
		{first, past.Served, nil, true},
		{again, past.Unchanged, nil, false},
		{second, past.Served, []string{"spec.http[0].route[0].weight: 90 -> 50", "spec.http[0].route[1].weight: 10 -> 50"}, true},
		{bad, past.Refused, nil, false},
		{gone, past.Gone, nil, true},
		{stranger, past.Ignored, nil, false},
		{listed, past.Ignored, nil, false},
		{applied, past.Served, nil, true},
	}
	copied, _ := archived(t, m.past(), 0)
	for _, p := range []*past.Past{m.past(), copied} {
		all, err := past.Of(t.Context(), p, []ident.Key{key("VirtualService", "demo", "shop")}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var got []row
		for _, e := range all {
			r := row{Seq: e.Seq, Effect: e.Effect, New: !e.Version.IsZero()}
			for _, f := range e.Fields {
				r.Fields = append(r.Fields, f.String())
			}
			got = append(got, r)
			if e.Effect == past.Refused && len(e.Problems) == 0 {
				t.Error("a refused record has no problem")
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", p.Name, diff)
		}
		last := all[len(all)-1]
		if last.Applied.Seq != applied+1 || last.Applied != last.Version {
			t.Errorf("%s: the listing is applied at %s, in version %s; want %d", p.Name, last.Applied, last.Version, applied+1)
		}
	}
}

// A hold covers the keys that a source lost, until it is approved.
func TestOfHeld(t *testing.T) {
	m := newMesh(t, "one")
	for i := range 10 {
		m.put("VirtualService", "demo", fmt.Sprint("v", i), weights(90, 10))
	}
	m.settle()
	for i := range 10 {
		delete(m.offered, key("VirtualService", "demo", fmt.Sprint("v", i)))
	}
	m.list()
	m.settle()
	hold := ""
	for rec, err := range past.Records(t.Context(), m.log, 1, m.after) {
		if err != nil {
			t.Fatal(err)
		}
		if o, ok := rec.Event.Body.(*events.Overlay); ok {
			hold = o.ID
		}
	}
	m.append(&events.Overlay{ID: hold, Remove: true})
	m.settle()
	all, err := past.Of(t.Context(), m.past(), []ident.Key{key("VirtualService", "demo", "v3")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range all {
		got = append(got, fmt.Sprintf("%s %s", e.Effect, e.Overlay))
	}
	if diff := cmp.Diff([]string{"served ", "gone ", "covered " + hold, "uncovered " + hold}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	keys, err := past.Keys(t.Context(), m.past())
	if err != nil || len(keys) != 11 {
		t.Errorf("%d keys, %v; want the policy and ten", len(keys), err)
	}
}

// At returns the world at every position, even between versions. At a published
// version, it is the published world.
func TestAt(t *testing.T) {
	m := newMesh(t, "one")
	one := m.put("VirtualService", "demo", "shop", weights(90, 10))
	m.put("VirtualService", "demo", "other", weights(1, 99))
	m.settle() // one version of both
	m.canary(2)
	all := m.versions()
	between := ident.Position{Epoch: all[1].GetVersion().GetEpoch(), Seq: one}
	at, err := past.At(t.Context(), m.past(), between)
	if err != nil || at.Manifest != nil {
		t.Fatalf("a position between versions: %+v, %v", at.Manifest, err)
	}
	w, err := ledger.World(at.Snapshot)
	if err != nil {
		t.Fatal(err)
	}
	if w.Winner(ident.Key{Kind: "VirtualService", Namespace: "demo", Name: "shop"}) == nil {
		t.Error("the world at that position lacks an earlier object")
	}
	if w.Winner(ident.Key{Kind: "VirtualService", Namespace: "demo", Name: "other"}) != nil {
		t.Error("the world at that position has a later object")
	}
	last := all[len(all)-1]
	changes := past.Diff(at.Snapshot, mustAt(t, m, store.VersionOf(last.GetVersion())).Snapshot)
	var got []string
	for _, c := range changes {
		got = append(got, fmt.Sprintf("%s %s %v", c.Object, c.Change, len(c.Fields)))
	}
	if diff := cmp.Diff([]string{"VirtualService demo/other (file/default) added 0", "VirtualService demo/shop (file/default) changed 2"}, got); diff != "" {
		t.Errorf("diff (-want +got):\n%s", diff)
	}
	if _, err := past.At(t.Context(), m.past(), ident.Position{Epoch: 1, Seq: one}); !errors.Is(err, past.ErrNotThere) {
		t.Errorf("another epoch: %v", err)
	}
	noLog := &past.Past{Name: "file", Versions: m.chain}
	if _, err := past.At(t.Context(), noLog, between); !errors.Is(err, past.ErrNotPublished) {
		t.Errorf("without a log: %v", err)
	}
	if err := noLog.HasLog(); !errors.Is(err, past.ErrNoLog) {
		t.Errorf("without a log: %v", err)
	}
}

func mustAt(t *testing.T, m *mesh, v ident.Position) store.Stored {
	t.Helper()
	at, err := past.At(t.Context(), m.past(), v)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// An archive has every version with its content, even if it begins late in the log.
func TestArchive(t *testing.T) {
	m := newMesh(t, "one")
	m.canary(3)
	m.checkpoint()
	m.canary(4)
	all := m.versions()
	late := all[4].GetVersion().GetSeq() + 1
	for _, c := range []struct {
		since uint64
		want  []*store.Manifest
		first uint64
	}{
		{0, all, 1},
		{late, all[3:], all[3].GetVersion().GetSeq() + 1}, // begins at the checkpoint, with the world at that position
	} {
		p, plan := archived(t, m.past(), c.since)
		if plan.First != c.first || plan.Versions != len(c.want) {
			t.Errorf("since %d: from %d on, %d versions; want %d and %d", c.since, plan.First, plan.Versions, c.first, len(c.want))
		}
		got := oldestFirst(t, p.Versions)
		if len(got) != len(c.want) {
			t.Fatalf("since %d: %d versions, want %d", c.since, len(got), len(c.want))
		}
		for i, man := range c.want {
			v := store.VersionOf(man.GetVersion())
			at, err := p.Versions.Fetch(t.Context(), v)
			if err != nil || at.Snapshot.Root() != store.RootOf(man) || store.VersionOf(got[i].GetVersion()) != v {
				t.Errorf("since %d: version %s: %v", c.since, v, err)
			}
		}
		if _, err := p.Versions.Fetch(t.Context(), ident.Position{Epoch: 1, Seq: 1}); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("a version that is not there: %v", err)
		}
		v, err := past.Verify(t.Context(), p, "one", nil)
		if err != nil || v.Count(past.Broken) > 0 || v.Same != len(c.want) {
			t.Errorf("since %d: verified %+v, %v", c.since, v, err)
		}
		again, _ := archived(t, p, 0) // an archive of an archive
		if v, err := past.Verify(t.Context(), again, "one", nil); err != nil || v.Same != len(c.want) {
			t.Errorf("since %d: again: %+v, %v", c.since, v, err)
		}
	}
}
