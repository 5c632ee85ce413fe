package past_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/operate/past"
)

// The history of a key is the same whether the whole log is folded or only the parts that are
// about the key, from whatever checkpoints: with listings that remove, overlays, refused values
// and a new segment.
func TestStretches(t *testing.T) {
	m := newMesh(t, "one")
	m.canary(6)
	m.checkpoint()
	m.put("VirtualService", "demo", "other", weights(1, 99))
	m.settle()
	m.canary(6)
	m.put("VirtualService", "demo", "other", weights(2, 98))
	shop := key("VirtualService", "demo", "shop")
	v := m.payload("VirtualService", weights(3, 97))
	m.append(&events.Overlay{ID: "back", Kind: ident.Rollback, Reason: "test", Values: []ident.OverlayValue{{Key: shop, Value: &v}}})
	m.settle()
	m.checkpoint()
	m.canary(3)
	m.append(&events.Overlay{ID: "back", Remove: true})
	m.settle()
	m.remove("VirtualService", "demo", "other")
	m.settle()
	m.put("VirtualService", "demo", "other", weights(5, 95))
	m.settle()
	delete(m.offered, key("VirtualService", "demo", "other"))
	m.list() // without it
	m.settle()
	m.put("VirtualService", "demo", "shop", weights(40, 60))
	m.alive() // in the same version
	m.settle()
	m.put("VirtualService", "demo", "shop", `{"hosts":["shop"],"http":[{"timeout":"-1s"}]}`)
	m.settle()
	m.put("VirtualService", "demo", "shop", weights(41, 59))
	m.put("VirtualService", "demo", "shop", weights(42, 58)) // two in one version
	m.settle()
	m.offered[shop] = m.payload("VirtualService", weights(43, 57))
	m.list() // with another value
	m.settle()
	for i, name := range []string{"shop", "pair"} {
		k := key("VirtualService", "demo", name)
		m.offered[k] = m.payload("VirtualService", weights(44+i, 56-i))
		m.pseq++
		m.append(&events.Object{
			Key: k, Op: events.Put, Value: m.offered[k], Session: m.sessionName(), Pseq: m.pseq, Low: m.pseq - uint64(i),
			Batch: events.Batch{ID: "two", Index: uint32(i), Total: 2},
		})
		m.settle()
	}
	m.canary(4)
	m.checkpoint()
	m.canary(2)
	m.start("two", fold.KindJudge{})
	m.settle()
	m.canary(3)
	m.put("VirtualService", "demo", "shop", weights(50, 50)) // no version has it yet
	archive, _ := archived(t, m.past(), 0)
	keys, err := past.Keys(t.Context(), m.past())
	if err != nil || len(keys) < 3 {
		t.Fatalf("keys %v, %v", keys, err)
	}
	for _, p := range []*past.Past{m.past(), archive} {
		for _, k := range keys {
			want, err := past.Of(t.Context(), p, []ident.Key{k}, nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := past.OfLong(t.Context(), p, []ident.Key{k})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(past.KeyEvent{})); diff != "" {
				t.Errorf("%s in %s (-whole +stretches):\n%s", k, p.Name, diff)
			}
		}
	}
}
