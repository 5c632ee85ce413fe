package world

import (
	"slices"

	"meshlog.dev/proto/ident"
)

// MaxPins is how many pins a world may have: each costs a frontend an index of its own.
const MaxPins = 8

// aside is an overlay for some proxies with its values decoded. It is immutable.
type aside struct {
	Overlay
	words map[ident.Key]word
}

// newAside returns the overlays for some proxies, the one that counts first. Values that
// were decoded before stay the same objects.
func newAside(overlays map[string]Overlay, before []*aside) []*aside {
	var all []*aside
	for id, o := range overlays {
		if !o.ForSome() {
			continue
		}
		p := &aside{Overlay: o, words: make(map[ident.Key]word, len(o.Values))}
		var was *aside
		if i := slices.IndexFunc(before, func(b *aside) bool { return b.ID == id }); i >= 0 {
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
	slices.SortFunc(all, func(a, b *aside) int { return CompareOverlays(&a.Overlay, &b.Overlay) })
	return all
}

// Views returns the overlays that some proxies are served otherwise because of: pins, the
// latest first, then the rollout that runs. Of those that are for a proxy, the first
// counts. The caller must not change them.
func (w *World) Views() []Overlay {
	if len(w.aside) == 0 {
		return nil
	}
	all := make([]Overlay, len(w.aside))
	for i, p := range w.aside {
		all[i] = p.Overlay
	}
	return all
}

// SameViews reports whether w and o have the same views for the same proxies, if one was
// made from the other. Their values may differ.
func (w *World) SameViews(o *World) bool {
	return slices.EqualFunc(w.aside, o.aside, func(a, b *aside) bool {
		return a == b || a.ID == b.ID && a.group() == b.group()
	})
}

func (p *aside) group() string {
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
	i := slices.IndexFunc(w.aside, func(p *aside) bool { return p.ID == id })
	if i < 0 {
		return w, nil
	}
	n := w.edit()
	n.aside = nil
	for k, word := range w.aside[i].words {
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
