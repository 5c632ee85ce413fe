package why

import (
	"cmp"
	"errors"
	"slices"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
)

// ErrNoResource says that the proxy has no such resource, ErrNoField that the resource has no
// such field.
var (
	ErrNoResource = errors.New("the proxy has no such resource")
	ErrNoField    = errors.New("no such field")
)

// explainer answers one question.
type explainer struct {
	*scene
	name  string // of the resource
	base  *node
	field string
	found []trial
	read  []*object // what generation has read for the resource
}

// trial is what another value of one field of an object does.
type trial struct {
	Setter
	valid bool // the object is valid with that value
	clear bool // the field was removed
	diff  *difference
	// cleared is what the resource would be without the field.
	cleared *difference
	// without is what the resource would be without the object.
	without *difference
}

// differs returns what is different of the resource in another world.
func (e *explainer) differs(rows ...world.RowChange) (*difference, error) {
	r, err := e.scene.try(e.name, rows)
	if errors.Is(err, errUnread) {
		return compare(e.base, e.base), nil
	}
	if err != nil {
		return nil, err
	}
	is, err := e.docs.of(e.t, r)
	if err != nil {
		return nil, err
	}
	return compare(e.base, is), nil
}

// matter reports whether the field would be different without some objects, or with
// other values in all fields of them.
func (e *explainer) matter(objects []*object) (bool, error) {
	var gone, varied []world.RowChange
	for _, o := range objects {
		gone = append(gone, o.without())
		if o.fields == nil {
			continue
		}
		if row, _, err := o.varied(o.leaves, 0); err == nil {
			varied = append(varied, row)
		}
	}
	for _, rows := range [][]world.RowChange{gone, varied} {
		if len(rows) == 0 {
			continue
		}
		if d, err := e.differs(rows...); err != nil || d.touches(e.field) {
			return err == nil, err
		}
	}
	return false, nil
}

// without finds out what the resource would be without an object.
func (e *explainer) without(o *object, a *Answer) (*difference, error) {
	d, err := e.differs(o.without())
	if err != nil {
		return nil, err
	}
	is, differs := d.fields[""]
	made := Object{Key: o.key, Whole: differs && is == nil}
	for path := range d.fields {
		if path != "" && (within(path, e.field) || within(e.field, path)) {
			made.Fields = append(made.Fields, path)
		}
	}
	slices.Sort(made.Fields)
	a.Objects = append(a.Objects, made)
	return d, nil
}

// try finds out what each field of an object does to the resource. Without is what is
// different without the object.
func (e *explainer) try(o *object, without *difference) error {
	if o.own == nil {
		if err := e.rename(o, without); err != nil {
			return err
		}
	}
	leaves, err := bisect(o.leaves, func(some []leaf) (bool, error) {
		for _, way := range []int{0, cleared} {
			row, _, err := o.varied(some, way)
			if err != nil {
				continue
			}
			if d, err := e.differs(row); err != nil || d.touches(e.field) {
				return err == nil, err
			}
		}
		return false, nil
	})
	if err != nil {
		return err
	}
	for _, l := range leaves {
		var gone *difference
		for way := cleared; way < min(l.ways, mostWays); way++ {
			row, v, err := o.varied([]leaf{l}, way)
			if err != nil {
				continue // no such object can be
			}
			d, err := e.differs(row)
			if err != nil {
				return err
			}
			if way == cleared {
				gone = d
			}
			set := Setter{Key: o.key, Field: l.path, Value: l.text, Default: o.own != nil && !o.own[l.path]}
			e.found = append(e.found, trial{set, isValid(o.key, v), way == cleared, d, gone, without})
		}
	}
	return nil
}

// rename finds out what another name of an object does to the resource.
func (e *explainer) rename(o *object, without *difference) error {
	is := e.world.Served(o.key)
	if is == nil {
		return nil
	}
	k := o.key
	k.Name = "x" + k.Name
	d, err := e.differs(o.without(), world.RowChange{Row: k.Row(), Key: k, Value: world.MarshalValue(is.Value)})
	if err == nil {
		set := Setter{Key: o.key, Field: "metadata.name", Value: strconv.Quote(o.key.Name)}
		e.found = append(e.found, trial{set, true, false, d, nil, without})
	}
	return err
}

// mostWays is how many other values of an enum are tried.
const mostWays = 8

// causes says what set each leaf of the target.
func (e *explainer) causes(target *node, a *Answer) error {
	made, missing := e.found, false
	target.leavesOf(e.field, func(path string, l *node) {
		c := Cause{Path: path, Value: l.String(), Set: setters(made, path, l)}
		missing = missing || len(c.Set) == 0
		a.Causes = append(a.Causes, c)
	})
	if !missing {
		return nil
	}
	e.found = nil
	if err := e.defaults(); err != nil {
		return err
	}
	e.node()
	i := 0
	var failed error
	target.leavesOf(e.field, func(path string, l *node) {
		if c := &a.Causes[i]; len(c.Set) == 0 && c.Value == strconv.Quote(e.name) {
			c.IsName = true
		} else if len(c.Set) == 0 {
			if c.Set = setters(e.found, path, l); len(c.Set) == 0 {
				var err error
				if c.Several, err = e.several(path, l); err != nil {
					failed = err
				} else if len(c.Several) == 0 {
					c.Within, c.Brought = brought(made, path)
				}
			}
		}
		i++
	})
	return failed
}

// defaults tries other values of what MeshConfig has by default.
func (e *explainer) defaults() error {
	const kindName = "MeshConfig"
	k := ident.Key{Source: "meshlog", Instance: "default", Kind: kindName, Name: world.CountedName}
	is := e.world.Winner(k)
	own := map[string]bool{}
	if is != nil {
		k = is.Key
		for _, l := range newObject(k, is.Value).leaves {
			own[l.path] = true
		}
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(e.world.MeshConfig())
	if err != nil {
		return err
	}
	o := newObject(k, ident.Value{Type: typeURL(e.world.MeshConfig()), Bytes: b})
	o.own = own
	o.leaves = slices.DeleteFunc(o.leaves, func(l leaf) bool { return own[l.path] })
	return e.try(o, compare(e.base, e.base))
}

// node tries other values of the fields of the proxy's node.
func (e *explainer) node() {
	n := e.proxy.Node()
	diff := func(some []leaf, way int) *difference {
		m := proto.CloneOf(n)
		for _, l := range slices.Backward(some) {
			change(m.ProtoReflect(), l.steps, min(way, l.ways-1))
		}
		p, err := proxy.New(m)
		if err != nil {
			return compare(e.base, e.base)
		}
		p.Identity, p.Delta = e.proxy.Identity, e.proxy.Delta
		is, err := e.docs.of(e.t, e.tryProxy(e.name, p))
		if err != nil {
			return compare(e.base, e.base)
		}
		return compare(e.base, is)
	}
	leaves, _ := bisect(nodeLeaves(n), func(some []leaf) (bool, error) {
		return diff(some, 0).touches(e.field) || diff(some, cleared).touches(e.field), nil
	})
	none := compare(e.base, e.base)
	for _, l := range leaves {
		gone := diff([]leaf{l}, cleared)
		e.found = append(e.found, trial{Setter{Field: l.path, Value: l.text, Node: true}, true, true, gone, gone, none})
		for way := range min(l.ways, mostWays) {
			e.found = append(e.found, trial{Setter{Field: l.path, Value: l.text, Node: true}, true, false, diff([]leaf{l}, way), gone, none})
		}
	}
}

// several returns the fields that set a leaf only together: each has the value of the leaf,
// and none of them sets it alone. It returns none if there are no such fields.
func (e *explainer) several(path string, l *node) ([]Setter, error) {
	type place struct {
		o *object
		l leaf
	}
	var same []place
	for _, o := range e.read {
		for _, x := range o.leaves {
			if x.text == l.text && x.text != "" {
				same = append(same, place{o, x})
			}
		}
	}
	sets := func(some []place) (bool, error) {
		var rows []world.RowChange
		for _, o := range e.read {
			var leaves []leaf
			for _, p := range some {
				if p.o == o {
					leaves = append(leaves, p.l)
				}
			}
			if len(leaves) == 0 {
				continue
			}
			row, _, err := o.varied(leaves, 0)
			if err != nil {
				return false, err
			}
			rows = append(rows, row)
		}
		d, err := e.differs(rows...)
		if err != nil {
			return false, err
		}
		is, differs := d.at(path)
		return differs && is != nil, nil
	}
	if len(same) < 2 || len(same) > mostSame {
		return nil, nil
	}
	if yes, err := sets(same); err != nil || !yes {
		return nil, err
	}
	for i := 0; i < len(same); { // without those that are not needed
		fewer := slices.Delete(slices.Clone(same), i, i+1)
		switch yes, err := sets(fewer); {
		case err != nil:
			return nil, err
		case yes:
			same = fewer
		default:
			i++
		}
	}
	var all []Setter
	for _, p := range same {
		all = append(all, Setter{Key: p.o.key, Field: p.l.path, Value: p.l.text})
	}
	return all, nil
}

// mostSame is how many fields with one value are tried together.
const mostSame = 50

func nodeLeaves(n *corev3.Node) []leaf { return leavesOf(n, "node") }

// effect is what a field of an object does to one leaf, over all of its other values.
type effect struct {
	Setter
	flows   bool // another value gives the leaf another value
	allowed bool // so does one with which the object is valid
	valid   bool
	leaves  int // the fewest other leaves that one of its trials changed
}

// effects sums up trials by field. Of each it asks of counts whether it matters, and whether
// another value gives another value.
func effects(found []trial, counts func(trial) (matters, flows bool)) (all []effect) {
	for _, t := range found {
		matters, flows := counts(t)
		if !matters {
			continue
		}
		i := slices.IndexFunc(all, func(o effect) bool { return o.Setter == t.Setter })
		if i < 0 {
			i, all = len(all), append(all, effect{Setter: t.Setter, leaves: t.diff.leaves})
		}
		o := &all[i]
		o.flows, o.allowed, o.valid = o.flows || flows, o.allowed || flows && t.valid, o.valid || t.valid
		o.leaves = min(o.leaves, t.diff.leaves)
	}
	return all
}

// best returns the fields of the best effects: of those that flow, or of those that change
// least.
func best(all []effect) (set []Setter) {
	keep := func(is func(effect) bool) {
		if slices.ContainsFunc(all, is) {
			all = slices.DeleteFunc(all, func(x effect) bool { return !is(x) })
		}
	}
	keep(func(x effect) bool { return x.flows })
	keep(func(x effect) bool { return x.allowed })
	keep(func(x effect) bool { return x.valid })
	if len(all) > 0 && !all[0].flows {
		least := slices.MinFunc(all, func(a, b effect) int { return cmp.Compare(a.leaves, b.leaves) }).leaves
		keep(func(x effect) bool { return x.leaves == least })
	}
	slices.SortStableFunc(all, func(a, b effect) int { return cmp.Compare(a.leaves, b.leaves) })
	for _, x := range all {
		set = append(set, x.Setter)
	}
	return set
}

// setters returns the fields that set a leaf (WHY-1, WHY-2).
func setters(found []trial, path string, is *node) []Setter {
	return best(effects(found, func(t trial) (matters, flows bool) {
		now, differs := t.diff.at(path)
		if !differs {
			return false, false
		}
		flows = !t.clear && now != nil && now.hash != is.hash
		for _, d := range []*difference{t.without, t.cleared} {
			if d == nil {
				continue
			}
			if other, changes := d.at(path); flows && changes && other != nil {
				flows = other.hash != now.hash // else it is what the leaf is without the field
			}
		}
		return true, flows
	}))
}

// brought returns the innermost field around a leaf that an object brought, and what in the
// object did; "": none did.
func brought(found []trial, path string) (within string, set []Setter) {
	for _, t := range found {
		if at := t.diff.around(path); len(at) > len(within) {
			within = at
		}
	}
	if within == "" {
		return "", nil
	}
	return within, best(effects(found, func(t trial) (matters, flows bool) { return t.diff.around(path) == within, false }))
}
