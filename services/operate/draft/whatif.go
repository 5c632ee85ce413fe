package draft

import (
	"fmt"
	"slices"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/builder/jury"
	"meshlog.dev/services/builder/ledger"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// Ground is a mesh on which drafts are judged, one after another: none of them changes it. It
// keeps the resources of the classes of proxies that were asked about, so that the second
// question about a large mesh costs little. It is for one goroutine.
type Ground struct {
	fold    *fold.Fold
	content *store.Snapshot
	world   *world.World
	pc      *index.PushContext
	// catalogs have the resources, one catalog for each type: they are made side by side.
	catalogs map[ident.ResourceType]*xds.Catalog
	// away are the keys in which the push context differs from the world; none: it is of it.
	away []ident.Key
	// base has the resources of the world for each class that a question was about.
	base map[setKey]*xds.Set
	// moved has the sets of the push context that may differ from those in base.
	moved map[setKey]*moved
	// all are the classes of the world; nil: they are not found yet.
	all []index.ProxyClass
	// known are the problems of the world.
	known map[problem.Diagnostic]bool
}

// NewGround returns the mesh of a fold, with what waits for a rollout given to all proxies. The
// fold is not changed.
func NewGround(f *fold.Fold) (*Ground, error) {
	g := &Ground{catalogs: map[ident.ResourceType]*xds.Catalog{}, base: map[setKey]*xds.Set{}, moved: map[setKey]*moved{}}
	g.take(f)
	change := g.fold.Content()
	g.content = ledger.Content(change)
	var err error
	if g.world, _, err = world.NewWorld().Apply(change); err != nil {
		return nil, err
	}
	g.pc = index.NewPushContext(g.world)
	for t := range ident.ResourceTypes {
		g.catalogs[t] = xds.NewCatalog(g.pc)
	}
	return g, nil
}

// take copies a fold for drafts: their records count as signed, and no rollout holds them back.
func (g *Ground) take(f *fold.Fold) {
	g.fold = f.Clone()
	g.fold.AssumeSigned()
	g.fold.Unstage()
}

// Move makes the ground the mesh of another fold, and makes only what differs. After an error
// the ground is of no use.
func (g *Ground) Move(f *fold.Fold) error {
	g.take(f)
	content := ledger.Content(g.fold.Content())
	var rows []world.RowChange
	d := store.Diff(g.content, content)
	for _, r := range d.Put {
		rows = append(rows, world.RowChange{Row: r.Key, Value: r.Value})
	}
	for _, r := range d.Remove {
		rows = append(rows, world.RowChange{Row: r})
	}
	w, keys, err := g.world.Apply(world.Change{Rows: rows})
	if err != nil {
		return err
	}
	g.content, g.world, g.away = content, w, append(g.away, keys...)
	g.base, g.all = map[setKey]*xds.Set{}, nil
	return nil
}

// classes returns the classes of proxies of the world of the ground.
func (g *Ground) classes() []index.ProxyClass {
	if g.all == nil {
		g.back()
		g.all = g.pc.Classes()
	}
	return g.all
}

// back moves the resources to the world of the ground.
func (g *Ground) back() {
	if len(g.away) == 0 {
		return
	}
	slices.SortFunc(g.away, world.CompareKeys)
	pc, inputs := g.pc.Next(g.world, slices.Compact(g.away))
	g.update(pc, inputs)
	g.away = nil
	clear(g.moved)
}

// Question is what would happen with a draft.
type Question struct {
	Documents *Documents
	Deletes   []string    // objects that go, as KIND/NAMESPACE/NAME
	As        ident.Shard // the source of objects that no source serves
	// Proxy is the only proxy that is asked about; nil: all classes.
	Proxy *proxy.Proxy
}

// Ask judges a draft, as the mesh would after the last record of the log. problems are those of
// the objects of the draft: with an error among them, it was not judged further.
func (g *Ground) Ask(q *Question) (v *View, problems []problem.Diagnostic, err error) {
	w := &whatIf{Ground: g, Question: q, next: g.fold.Clone(), keys: map[ident.Key]bool{}, view: newView()}
	w.view.Position = g.fold.Position()
	w.view.add(q.Documents.Problems)
	if problems, err = w.change(); err != nil || Failed(problems) {
		return w.view, problems, err
	}
	return w.view, problems, w.weigh()
}

// whatIf is one draft.
type whatIf struct {
	*Ground
	*Question
	next *fold.Fold         // with the draft
	keys map[ident.Key]bool // of the draft
	rows []world.RowChange
	view *View
}

// change has the fold apply the change, and notes the problems.
func (w *whatIf) change() (problems []problem.Diagnostic, err error) {
	byShard := map[ident.Shard][]*Item{}
	for _, i := range w.Documents.Items {
		i.take(w.shardOf(i.Key))
		w.keys[i.Key] = true
		byShard[i.Key.Shard()] = append(byShard[i.Key.Shard()], i)
	}
	deletes, err := w.deleted()
	if err != nil {
		return nil, err
	}
	for _, k := range deletes {
		w.keys[k] = true
		if _, ok := byShard[k.Shard()]; !ok {
			byShard[k.Shard()] = nil
		}
	}
	for _, name := range sortedShards(byShard) {
		s := &Shard{Name: name, Fold: w.next}
		s.Keep()
		c := NewChange(s, byShard[name], false)
		for _, k := range deletes {
			if k.Shard() == name {
				if o, ok := s.Offers[k]; ok {
					c.Steps = append(c.Steps, Step{Item: &Item{Key: k}, Action: Deleted, Before: &o})
				}
			}
		}
		if err := c.Judge(s); err != nil {
			return nil, err
		}
		w.rows = append(w.rows, c.rows...)
		problems = append(problems, c.Problems...)
		w.view.Problems = append(w.view.Problems, Diagnostics(c.Others)...) // of other objects: no reason to stop
	}
	w.view.add(problems)
	return problems, nil
}

// shardOf returns the source whose object one of that name takes the place of.
func (w *whatIf) shardOf(k ident.Key) ident.Shard {
	if served := w.world.Winner(k); served != nil {
		return served.Key.Shard()
	}
	return w.As
}

// staged reports whether a rollout gives k to some proxies before the others.
func staged(k ident.Key) bool {
	kd, ok := kind.ByName(k.Kind)
	return ok && kd.Staged()
}

// deleted returns the keys that the draft removes.
func (w *whatIf) deleted() (keys []ident.Key, err error) {
	if len(w.Deletes) == 0 {
		return nil, nil
	}
	var known []ident.Key
	for _, s := range w.next.Shards() {
		for _, o := range w.next.Offers(s.Shard) {
			known = append(known, o.Key)
		}
	}
	for _, name := range w.Deletes {
		only, err := command.ParseKey(name, command.Objects{})
		if err != nil {
			return nil, err
		}
		some, err := only.Find(name, known, "`meshlog show latest` lists the objects")
		if err != nil {
			return nil, err
		}
		keys = append(keys, some...)
	}
	return keys, nil
}

// delta returns the rows of the content that differ.
func (w *whatIf) delta() (d store.Delta) {
	last := map[string][]byte{}
	for _, r := range w.rows {
		last[r.Row] = r.Value
	}
	for row, value := range last {
		was, had := w.content.Get(row)
		switch {
		case value == nil && had:
			d.Remove = append(d.Remove, row)
		case value != nil && (!had || string(was) != string(value)):
			d.Put = append(d.Put, store.Row{Key: row, Value: value})
		}
	}
	slices.Sort(d.Remove)
	slices.SortFunc(d.Put, func(a, b store.Row) int { return strings.Compare(a.Key, b.Key) })
	return d
}

// weigh finds what the change does to objects, to proxies, and to the guard.
func (w *whatIf) weigh() error {
	after, changed, err := w.world.Apply(world.Change{Rows: w.rows})
	if err != nil {
		return err
	}
	for _, k := range changed {
		was, is := w.world.Served(k), after.Served(k)
		var values [2]*ident.Value
		for i, o := range []*world.Object{was, is} {
			if o != nil {
				values[i] = &o.Value
			}
		}
		if values[0] != nil || values[1] != nil {
			w.view.Objects = append(w.view.Objects, past.CompareValues(k, values[0], values[1]))
		}
	}
	withheld := w.next.Withheld(func(k ident.Key) bool { return w.keys[k] })
	w.view.withheld = len(withheld) > 0
	w.view.Problems = append(w.view.Problems, Diagnostics(withheld)...)
	hold, err := jury.Guard(w.next, w.world.Policy().Guard, w.view.Position, w.content, w.delta())
	if err != nil {
		return err
	}
	if hold != nil {
		w.view.Held = hold.Reason
	}
	if steps := w.world.Policy().Rollout; len(steps) > 0 && slices.ContainsFunc(changed, staged) {
		w.view.Staged = fmt.Sprintf("in %s, the first of which reaches %s", command.Plural(len(steps), "step", "steps"), steps[0].Reached)
	}
	classes := w.classes()
	if w.Proxy != nil {
		w.view.Proxy = w.Proxy.ID
		w.back()
		classes = []index.ProxyClass{index.Classify(w.pc, w.Proxy)}
	}
	i := w.impact(after, changed, classes)
	w.view.Classes = i.classes
	w.view.Problems = append(w.view.Problems, Diagnostics(i.problems)...)
	return nil
}
