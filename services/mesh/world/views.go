package world

import (
	"slices"

	"meshlog.dev/proto/ident"
)

// MaxPins is how many pins a world may have: each costs a frontend an index of its own.
const MaxPins = 8

// view is an overlay for some proxies with its values decoded. It is immutable.
type view struct {
	Overlay
	words map[ident.Key]word
}

// newViews returns the overlays for some proxies, the one that counts first. Values that
// were decoded before stay the same objects.
func newViews(overlays map[string]Overlay, before []*view) []*view {
	var all []*view
	for id, o := range overlays {
		if !o.ForSome() {
			continue
		}
		p := &view{Overlay: o, words: make(map[ident.Key]word, len(o.Values))}
		var was *view
		if i := slices.IndexFunc(before, func(b *view) bool { return b.ID == id }); i >= 0 {
			was = before[i]
		}
		for _, v := range o.Values {
			object := objectOf(v)
			if was != nil {
				if had := was.words[v.Key].object; had != nil && object != nil && sameValue(had, object) {
					object = had
				}
			}
			if decoded, unreadable := decode(object); unreadable == "" {
				object = decoded
			}
			p.words[v.Key] = word{overlay: &p.Overlay, object: object}
		}
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *view) int { return CompareOverlays(&a.Overlay, &b.Overlay) })
	return all
}

// Views returns the overlays that some proxies are served otherwise because of: pins, the
// latest first, then the rollout that runs. Of those that are for a proxy, the first
// counts. The caller must not change them.
func (w *World) Views() []Overlay {
	if len(w.views) == 0 {
		return nil
	}
	all := make([]Overlay, len(w.views))
	for i, p := range w.views {
		all[i] = p.Overlay
	}
	return all
}

// SameViews reports whether w and o have the same views for the same proxies, if one was
// made from the other. Their values may differ.
func (w *World) SameViews(o *World) bool {
	return slices.EqualFunc(w.views, o.views, func(a, b *view) bool {
		return a == b || a.ID == b.ID && a.group() == b.group()
	})
}

func (p *view) group() string {
	if p.Rollout != nil {
		return p.Rollout.Reached.String()
	}
	return p.Proxies.String()
}

// View returns the world as the proxies of the view of that id see it, and the keys of the
// objects that are served otherwise in it. The values of a pin lie over all others, those
// of a rollout under rollbacks. The View has no views. It shares everything else with w,
// and costs as much as the overlay has values. Without such an overlay it returns w.
func (w *World) View(id string) (*World, []ident.Key) {
	i := slices.IndexFunc(w.views, func(p *view) bool { return p.ID == id })
	if i < 0 {
		return w, nil
	}
	n := w.edit()
	n.views = nil
	for k, word := range w.views[i].words {
		p := n.place(k)
		p.words = append(slices.Clone(p.words), word)
		slices.SortFunc(p.words, compareWords)
		n.setPlace(k, p)
	}
	for k := range n.touched {
		n.updateServed(k)
	}
	differ := n.settle()
	return n.made(), differ
}
