package world

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/table"
)

// Apply returns the world after a change, and the keys of the objects that
// are served otherwise than before: changed, new, gone, or no longer (or only
// now) a copy that counts; sorted. It costs what the change costs, not what
// the world does; a Reset costs the world. The error means that rows are not
// what a fold writes; the world is as it was.
func (w *World) Apply(c Change) (*World, []ident.Key, error) {
	rows := make(map[string][]byte, len(c.Rows))
	for _, r := range c.Rows {
		rows[r.Row] = r.Value // the last one counts
	}
	if c.Reset {
		w.removeOthers(rows)
	}
	n := &next{
		World: *w, was: w,
		places: w.places.Edit(), contested: w.contested.Edit(), opaque: w.opaque.Edit(),
		touched: map[ident.Key]struct{}{}, moved: map[identity]struct{}{},
	}
	for row, value := range rows {
		if err := n.row(row, value); err != nil {
			return nil, nil, err
		}
	}
	for k := range n.touched {
		n.serve(k)
	}
	changed := n.settle()
	if n.quarantined {
		n.quarantines = newQuarantines(n.overlays)
	}
	made := n.World // a copy: n holds on to w
	made.places, made.contested, made.opaque = n.places.Table, n.contested.Table, n.opaque.Table
	return &made, changed, nil
}

// removeOthers adds the end of every row of w that is not in rows.
func (w *World) removeOthers(rows map[string][]byte) {
	end := func(row string) {
		if _, ok := rows[row]; !ok {
			rows[row] = nil
		}
	}
	for k, p := range w.places.All() {
		if p.good != nil {
			end(k.Row())
		}
	}
	for id := range w.overlays {
		end(ident.OverlayRow(id))
	}
	for row := range w.unknown {
		end(row)
	}
}

// next is a World being made.
type next struct {
	World
	was       *World
	places    *table.Edit[ident.Key, *place]
	contested *table.Edit[identity, struct{}]
	opaque    *table.Edit[ident.Key, string]
	edits     map[string]*table.Edit[Name, []*Object] // of kinds

	touched map[ident.Key]struct{} // keys of which rows changed
	moved   map[identity]struct{}  // objects of which copies changed

	quarantined bool // quarantines changed
}

// row takes one row; nil: it is gone.
func (n *next) row(row string, b []byte) error {
	if !strings.HasPrefix(row, ident.ValuePrefix) && !strings.HasPrefix(row, ident.OverlayPrefix) {
		n.unknown = maps.Clone(n.unknown)
		if b == nil {
			delete(n.unknown, row)
			return nil
		}
		if n.unknown == nil {
			n.unknown = map[string]struct{}{}
		}
		n.unknown[row] = struct{}{}
		return nil
	}
	k, id, err := ident.ParseRow(row)
	if err != nil {
		return err
	}
	if id != "" {
		return n.overlay(id, b)
	}
	p := n.place(k)
	p.good = nil
	if b != nil {
		v, err := UnmarshalValue(b)
		if err != nil {
			return fmt.Errorf("%s: %w", k, err)
		}
		p.good = &v
	}
	n.setPlace(k, p)
	return nil
}

// place is a copy of what is known of k.
func (n *next) place(k ident.Key) place {
	if p := n.places.Get(k); p != nil {
		return *p
	}
	return place{}
}

func (n *next) setPlace(k ident.Key, p place) {
	n.places.Set(k, &p)
	n.touched[k] = struct{}{}
}

// overlay takes the row of an overlay in place of what its id said before.
func (n *next) overlay(id string, b []byte) error {
	was := n.overlays[id]
	for _, v := range was.Values {
		if v.Resource != nil {
			continue
		}
		p := n.place(v.Key)
		p.words = slices.DeleteFunc(slices.Clone(p.words), func(x word) bool { return x.overlay.ID == id })
		n.setPlace(v.Key, p)
	}
	overlays := maps.Clone(n.overlays)
	if overlays == nil {
		overlays = map[string]Overlay{}
	}
	n.overlays = overlays
	delete(overlays, id)
	n.quarantined = n.quarantined || was.Kind == ident.Quarantine
	if b == nil {
		return nil
	}
	o, err := UnmarshalOverlay(id, b)
	if err != nil {
		return err
	}
	overlays[id] = o
	n.quarantined = n.quarantined || o.Kind == ident.Quarantine
	for _, v := range o.Values {
		if v.Resource != nil {
			continue
		}
		p := n.place(v.Key)
		p.words = append(slices.Clone(p.words), word{&o, v.Value})
		slices.SortFunc(p.words, compareWords)
		n.setPlace(v.Key, p)
	}
	return nil
}

// compareWords orders what overlays say of one key, the one that counts first:
// an operator's word before a hold's, then the later, then the greater id.
func compareWords(a, b word) int {
	return cmp.Or(
		cmp.Compare(a.overlay.Kind, b.overlay.Kind), // Rollback, then Hold
		b.overlay.Observed.Compare(a.overlay.Observed),
		cmp.Compare(b.overlay.ID, a.overlay.ID),
	)
}

// serve finds out what is served for k now.
func (n *next) serve(k ident.Key) {
	p := n.place(k)
	v := p.good
	if len(p.words) > 0 {
		v = p.words[0].value
	}
	old := p.object
	if old != nil && v != nil && sameValue(old.Value, *v) {
		return
	}
	p.object, p.problem = decode(k, v)
	switch {
	case p.good == nil && len(p.words) == 0:
		n.places.Remove(k)
	default:
		n.places.Set(k, &p)
	}
	if p.problem != "" {
		n.opaque.Set(k, p.problem)
	} else {
		n.opaque.Remove(k)
	}
	if old == nil && p.object == nil {
		return
	}
	id := identityOf(k)
	copies := slices.DeleteFunc(slices.Clone(n.current(id)), func(o *Object) bool { return o.Key == k })
	if p.object != nil {
		copies = append(copies, p.object)
	}
	n.setCopies(id, copies)
}

func sameValue(a, b ident.Value) bool {
	return a.Type == b.Type && a.Created.Equal(b.Created) && bytes.Equal(a.Bytes, b.Bytes)
}

// decode reads v as an object of k's kind, or says why it cannot.
func decode(k ident.Key, v *ident.Value) (*Object, string) {
	if v == nil {
		return nil, ""
	}
	kd, ok := kind.ByName(k.Kind)
	if !ok {
		return nil, fmt.Sprintf("this build knows no kind %q", k.Kind)
	}
	m, err := kd.Decode(v.Type, v.Bytes)
	if err != nil {
		return nil, err.Error()
	}
	return &Object{Key: k, Created: v.Created, Value: *v, Message: m}, ""
}

// current is the copies of an object as they are by now.
func (n *next) current(id identity) []*Object {
	if e, ok := n.edits[id.kind]; ok {
		return e.Get(id.Name)
	}
	return n.copies(id)
}

// setCopies says which copies of an object there are now, in any order.
func (n *next) setCopies(id identity, copies []*Object) {
	e, ok := n.edits[id.kind]
	if !ok {
		t, ok := n.kinds[id.kind]
		if !ok {
			t = table.New[Name, []*Object](HashName)
		}
		if n.edits == nil {
			n.edits = map[string]*table.Edit[Name, []*Object]{}
		}
		e = t.Edit()
		n.edits[id.kind] = e
	}
	if len(copies) == 0 {
		e.Remove(id.Name)
	} else {
		e.Set(id.Name, copies)
	}
	if len(copies) > 1 {
		n.contested.Set(id, struct{}{})
	} else {
		n.contested.Remove(id)
	}
	n.moved[id] = struct{}{}
}

// settle finds the policy, then the winners, and returns the keys of what is
// served otherwise than before.
func (n *next) settle() []ident.Key {
	policy := identity{policyKind, Name{"", CountedName}}
	if _, ok := n.moved[policy]; ok {
		n.order(policy)
		n.policy = policyOf(message[*configv1.MeshPolicy](n.current(policy)))
	}
	if !slices.Equal(n.policy.SourcePriority, n.was.policy.SourcePriority) {
		for id := range n.contested.All() {
			n.setCopies(id, slices.Clone(n.current(id)))
		}
	}
	changed := map[ident.Key]struct{}{}
	for id := range n.moved {
		n.order(id)
		was, is := counting(id.kind, n.was.copies(id)), counting(id.kind, n.current(id))
		for _, o := range was {
			if !slices.Contains(is, o) {
				changed[o.Key] = struct{}{}
			}
		}
		for _, o := range is {
			if !slices.Contains(was, o) {
				changed[o.Key] = struct{}{}
			}
		}
	}
	n.closeKinds()
	config := identity{configKind, Name{"", CountedName}}
	if _, ok := n.moved[config]; ok || n.policy.RootNamespace != n.was.policy.RootNamespace {
		n.config = meshConfigOf(message[*meshconfig.MeshConfig](n.copies(config)), n.policy)
	}
	keys := slices.Collect(maps.Keys(changed))
	slices.SortFunc(keys, CompareKeys)
	return keys
}

// order puts the copy that wins first. The slice is not yet shared.
func (n *next) order(id identity) {
	priority := n.priority(id.kind)
	slices.SortFunc(n.current(id), func(a, b *Object) int { return Wins(priority, a.Key, a.Created, b.Key, b.Created) })
}

// closeKinds makes what was edited the world's.
func (n *next) closeKinds() {
	if len(n.edits) == 0 {
		return
	}
	kinds := maps.Clone(n.kinds)
	if kinds == nil {
		kinds = map[string]table.Table[Name, []*Object]{}
	}
	for k, e := range n.edits {
		kinds[k] = e.Table
		if e.Len() == 0 {
			delete(kinds, k)
		}
	}
	n.kinds = kinds
}

// message is the winner's, or nil.
func message[M proto.Message](copies []*Object) M {
	var none M
	if len(copies) == 0 {
		return none
	}
	m, _ := copies[0].Message.(M)
	return m
}

func CompareKeys(a, b ident.Key) int {
	return cmp.Or(
		cmp.Compare(a.Kind, b.Kind),
		cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.Source, b.Source),
		cmp.Compare(a.Instance, b.Instance),
	)
}
