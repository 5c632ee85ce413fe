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

// Apply returns the world after a change, and the sorted keys of the objects that
// are served differently: changed, new, gone, or a copy that began or ceased to
// count. Its cost depends on the size of the change; that of a Reset on the size
// of the world. On an error, which means that no fold wrote the rows, w stays
// valid.
func (w *World) Apply(c Change) (*World, []ident.Key, error) {
	rows := c.Rows
	if c.Reset {
		rows = w.withOthers(rows)
	}
	last := make(map[string]int, len(rows))
	for i, r := range rows {
		last[r.Row] = i
	}
	n := w.edit()
	for i, r := range rows {
		if last[r.Row] != i {
			continue // a later change of the row counts
		}
		if err := n.row(r); err != nil {
			return nil, nil, err
		}
	}
	for k := range n.touched {
		n.updateServed(k)
	}
	changed := n.settle()
	if n.quarantined {
		n.quarantines = newQuarantines(n.overlays)
	}
	if n.parted {
		n.views = newViews(n.overlays, w.views)
	}
	return n.made(), changed, nil
}

// made returns the World that n has become.
func (n *next) made() *World {
	made := n.World // a copy, since n refers to the World before
	made.places, made.contested, made.opaque = n.places.Table, n.contested.Table, n.opaque.Table
	return &made
}

// edit returns the beginning of a successor of w.
func (w *World) edit() *next {
	return &next{
		World: *w, was: w,
		places: w.places.Edit(), contested: w.contested.Edit(), opaque: w.opaque.Edit(),
		edits: map[string]*table.Edit[Name, []*Object]{}, touched: map[ident.Key]struct{}{}, moved: map[identity]struct{}{},
	}
}

// withOthers appends the removal of every row of w that is not in rows.
func (w *World) withOthers(rows []RowChange) []RowChange {
	kept := make(map[string]struct{}, len(rows))
	for _, r := range rows {
		kept[r.Row] = struct{}{}
	}
	rows = slices.Clip(rows)
	remove := func(row string, k ident.Key) {
		if _, ok := kept[row]; !ok {
			rows = append(rows, RowChange{Row: row, Key: k})
		}
	}
	for k, p := range w.places.All() {
		if p.good != nil {
			remove(k.Row(), k)
		}
	}
	for id := range w.overlays {
		remove(ident.OverlayRow(id), ident.Key{})
	}
	for row := range w.unknown {
		remove(row, ident.Key{})
	}
	return rows
}

// next is a World in the making.
type next struct {
	World
	was       *World
	places    *table.Edit[ident.Key, *place]
	contested *table.Edit[identity, struct{}]
	opaque    *table.Edit[ident.Key, string]
	edits     map[string]*table.Edit[Name, []*Object] // by kind

	touched map[ident.Key]struct{} // keys whose rows changed
	moved   map[identity]struct{}  // objects whose copies changed

	quarantined bool // quarantines changed
	parted      bool // overlays for some proxies changed
}

// row applies the change of one row.
func (n *next) row(r RowChange) error {
	k := r.Key
	if k == (ident.Key{}) {
		if !strings.HasPrefix(r.Row, ident.ValuePrefix) && !strings.HasPrefix(r.Row, ident.OverlayPrefix) {
			n.unknownRow(r)
			return nil
		}
		var id string
		var err error
		if k, id, err = ident.ParseRow(r.Row); err != nil {
			return err
		}
		if id != "" {
			return n.overlay(id, r.Value)
		}
	}
	is := r.Object
	if is == nil && r.Value != nil {
		v, err := UnmarshalValue(r.Value)
		if err != nil {
			return fmt.Errorf("%s: %w", k, err)
		}
		is = &Object{Key: k, Created: v.Created, Value: v}
	}
	p := n.place(k)
	if is == nil || p.good == nil || !sameValue(p.good, is) {
		p.good = is
	}
	n.setPlace(k, p)
	return nil
}

func (n *next) unknownRow(r RowChange) {
	unknown := table.CloneMap(n.unknown)
	if n.unknown = unknown; r.Value == nil {
		delete(unknown, r.Row)
	} else {
		unknown[r.Row] = struct{}{}
	}
}

// place returns a copy of k's place.
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

// overlay replaces the overlay of an id by its new row.
func (n *next) overlay(id string, b []byte) error {
	was := n.overlays[id]
	for _, v := range was.Values {
		if v.Resource != nil || was.ForSome() {
			continue
		}
		p := n.place(v.Key)
		p.words = slices.DeleteFunc(slices.Clone(p.words), func(x word) bool { return x.overlay.ID == id })
		n.setPlace(v.Key, p)
	}
	overlays := table.CloneMap(n.overlays)
	n.overlays = overlays
	delete(overlays, id)
	n.quarantined = n.quarantined || was.Kind == ident.Quarantine
	n.parted = n.parted || was.ForSome()
	if b == nil {
		return nil
	}
	o, err := UnmarshalOverlay(id, b)
	if err != nil {
		return err
	}
	overlays[id] = o
	n.quarantined = n.quarantined || o.Kind == ident.Quarantine
	if o.ForSome() {
		n.parted = true
		return nil // other proxies are not served its values
	}
	for _, v := range o.Values {
		if v.Resource != nil {
			continue
		}
		p := n.place(v.Key)
		p.words = append(slices.Clone(p.words), word{overlay: &o, object: objectOf(v)})
		slices.SortFunc(p.words, compareWords)
		n.setPlace(v.Key, p)
	}
	return nil
}

// compareWords orders the words of overlays over one key, the effective one first.
func compareWords(a, b word) int { return CompareOverlays(a.overlay, b.overlay) }

// CompareOverlays orders overlays over one key, the effective one first: the pin of a
// view, a rollback, a rollout, a hold. Of rollouts the one that runs is first: its values
// are older. Then the later counts, then the greater id.
func CompareOverlays(a, b *Overlay) int {
	return cmp.Or(
		cmp.Compare(a.rank(), b.rank()),
		b.Observed.Compare(a.Observed),
		cmp.Compare(b.ID, a.ID),
	)
}

func (o *Overlay) rank() int {
	switch {
	case o.Kind == ident.Pin:
		return 0
	case o.Kind == ident.Rollback:
		return 1
	case o.ForSome():
		return 2
	case o.Kind == ident.Rollout:
		return 3
	}
	return 4
}

// ForSome reports whether only some proxies are served the values of o: those of a pin, and
// those that a rollout which runs has not reached.
func (o *Overlay) ForSome() bool {
	return o.Kind == ident.Pin || o.Kind == ident.Rollout && o.Rollout != nil && o.Rollout.State == ident.RolloutRunning
}

func objectOf(v ident.OverlayValue) *Object {
	if v.Value == nil {
		return nil
	}
	return &Object{Key: v.Key, Created: v.Value.Created, Value: *v.Value}
}

// updateServed decodes the value that is served for k, which an overlay may have
// put in place of the last good one.
func (n *next) updateServed(k ident.Key) {
	p := n.place(k)
	is := p.good
	if len(p.words) > 0 {
		is = p.words[0].object
	}
	old := p.object
	if old != nil && is != nil && sameValue(old, is) {
		return
	}
	object, unreadable := decode(is)
	p.object = object
	if p.object != nil && len(p.words) == 0 {
		p.good = p.object
	}
	n.places.Keep(k, &p, p.good != nil || len(p.words) > 0)
	n.opaque.Keep(k, unreadable, unreadable != "")
	if old == nil && p.object == nil {
		return
	}
	id := identityOf(k)
	copies := slices.DeleteFunc(slices.Clone(n.ofKind(id.kind).Get(id.Name)), func(o *Object) bool { return o.Key == k })
	if p.object != nil {
		copies = append(copies, p.object)
	}
	n.setCopies(id, copies)
}

func sameValue(a, b *Object) bool {
	return a == b || a.Value.Type == b.Value.Type && a.Created.Equal(b.Created) && bytes.Equal(a.Value.Bytes, b.Value.Bytes)
}

// decode returns o with its Message, or why this build cannot read it.
func decode(o *Object) (*Object, string) {
	if o == nil || o.Message != nil {
		return o, ""
	}
	kd, ok := kind.ByName(o.Key.Kind)
	if !ok {
		return nil, fmt.Sprintf("this build knows no kind %q", o.Key.Kind)
	}
	m, err := kd.Decode(o.Value.Type, o.Value.Bytes)
	if err != nil {
		return nil, err.Error()
	}
	return &Object{Key: o.Key, Created: o.Created, Value: o.Value, Message: m}, ""
}

// ofKind returns the edit of a kind's objects.
func (n *next) ofKind(kind string) *table.Edit[Name, []*Object] {
	if n.edits[kind] == nil {
		n.edits[kind] = n.kinds[kind].Edit()
	}
	return n.edits[kind]
}

// setCopies sets the copies of an object, in any order.
func (n *next) setCopies(id identity, copies []*Object) {
	n.ofKind(id.kind).Keep(id.Name, copies, len(copies) > 0)
	n.contested.Keep(id, struct{}{}, len(copies) > 1)
	n.moved[id] = struct{}{}
}

// settle finds the policy, then the winners, and returns the keys of the objects
// that are served differently.
func (n *next) settle() []ident.Key {
	policy := identity{policyKind, Name{"", CountedName}}
	if _, ok := n.moved[policy]; ok {
		n.policy = policyOf(message[*configv1.MeshPolicy](n.order(policy)))
	}
	if !slices.Equal(n.policy.SourcePriority, n.was.policy.SourcePriority) {
		for id := range n.contested.All() {
			n.setCopies(id, slices.Clone(n.ofKind(id.kind).Get(id.Name)))
		}
	}
	changed := map[ident.Key]struct{}{}
	for id := range n.moved {
		was, is := counting(id.kind, n.was.copies(id)), counting(id.kind, n.order(id))
		for _, list := range [][]*Object{was, is} {
			for _, o := range list {
				if !slices.Contains(was, o) || !slices.Contains(is, o) {
					changed[o.Key] = struct{}{}
				}
			}
		}
	}
	n.closeKinds()
	config := identity{configKind, Name{"", CountedName}}
	if _, ok := n.moved[config]; ok || n.policy.RootNamespace != n.was.policy.RootNamespace {
		n.config = meshConfigOf(message[*meshconfig.MeshConfig](n.copies(config)), n.policy)
	}
	return slices.SortedFunc(maps.Keys(changed), CompareKeys)
}

// order returns the copies of a moved object, the winning one first. It sorts
// them in place: until the edit is done, no other world has the slice.
func (n *next) order(id identity) []*Object {
	priority, copies := n.priority(id.kind), n.ofKind(id.kind).Get(id.Name)
	slices.SortFunc(copies, func(a, b *Object) int { return Wins(priority, a.Key, a.Created, b.Key, b.Created) })
	return copies
}

// closeKinds puts the edited kinds into the world.
func (n *next) closeKinds() {
	if len(n.edits) == 0 {
		return
	}
	kinds := table.CloneMap(n.kinds)
	for k, e := range n.edits {
		kinds[k] = e.Table
		if e.Len() == 0 {
			delete(kinds, k)
		}
	}
	n.kinds = kinds
}

// message returns the winner's message, or nil.
func message[M proto.Message](copies []*Object) M {
	var m M
	if len(copies) > 0 {
		m, _ = copies[0].Message.(M)
	}
	return m
}

// CompareKeys orders keys by kind, namespace, name, source and instance.
func CompareKeys(a, b ident.Key) int {
	return cmp.Or(
		cmp.Compare(a.Kind, b.Kind),
		cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.Source, b.Source),
		cmp.Compare(a.Instance, b.Instance),
	)
}
