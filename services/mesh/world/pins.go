package world

import (
	"slices"

	"meshlog.dev/proto/ident"
)

// MaxPins is how many pins a world may have: each costs a frontend an index of its own.
const MaxPins = 8

// pin is an overlay of kind Pin with its values decoded. It is immutable.
type pin struct {
	Overlay
	words map[ident.Key]word
}

// newPins returns the pins among overlays, the latest first. Values that were decoded
// before stay the same objects.
func newPins(overlays map[string]Overlay, before []*pin) []*pin {
	var pins []*pin
	for id, o := range overlays {
		if o.Kind != ident.Pin {
			continue
		}
		p := &pin{Overlay: o, words: make(map[ident.Key]word, len(o.Values))}
		var was *pin
		if i := slices.IndexFunc(before, func(b *pin) bool { return b.ID == id }); i >= 0 {
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
			p.words[v.Key] = word{overlay: &p.Overlay, object: object, pinned: true}
		}
		pins = append(pins, p)
	}
	slices.SortFunc(pins, func(a, b *pin) int { return CompareOverlays(&a.Overlay, &b.Overlay) })
	return pins
}

// Pins returns the overlays that keep some proxies on earlier values, the latest first.
// Of the pins that select a proxy, the latest counts. The caller must not change them.
func (w *World) Pins() []Overlay {
	if len(w.pins) == 0 {
		return nil
	}
	all := make([]Overlay, len(w.pins))
	for i, p := range w.pins {
		all[i] = p.Overlay
	}
	return all
}

// SamePins reports whether w and o have the same pins for the same proxies, if one was
// made from the other. Their values may differ.
func (w *World) SamePins(o *World) bool {
	return slices.EqualFunc(w.pins, o.pins, func(a, b *pin) bool {
		return a == b || a.ID == b.ID && a.Proxies.String() == b.Proxies.String()
	})
}

// View returns the world as the proxies of the pin of that id see it, and the keys of the
// objects that are served otherwise in it: the pin's values lie over all others. The View
// has no pins. It shares everything else with w, and costs as much as the pin has values.
// Without such a pin it returns w.
func (w *World) View(id string) (*World, []ident.Key) {
	i := slices.IndexFunc(w.pins, func(p *pin) bool { return p.ID == id })
	if i < 0 {
		return w, nil
	}
	n := w.edit()
	n.pins = nil
	for k, word := range w.pins[i].words {
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
