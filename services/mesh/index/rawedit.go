package index

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/table"
	"meshlog.dev/services/mesh/world"
)

// rawEdit makes one rawIndex from another.
type rawEdit struct {
	*transition
	from    rawIndex
	byKey   *table.Edit[ident.Key, *RawResource]
	names   *table.Edit[nameKey, []*RawResource]
	touched map[nameKey]bool
	cells   map[cellKey]map[string]bool // and the names that may differ in them
}

func (x rawIndex) edit(t *transition) *rawEdit {
	return &rawEdit{
		transition: t, from: x, byKey: x.byKey.Edit(), names: x.names.Edit(),
		touched: map[nameKey]bool{}, cells: map[cellKey]map[string]bool{},
	}
}

// change applies the new object of k; nil: it is gone.
func (e *rawEdit) change(k ident.Key, is *world.Object) {
	unread := about{resourceKind, "", k.Row()}
	e.problem(unread, nil)
	if old := e.byKey.Get(k); old != nil {
		e.byKey.Remove(k)
		e.unlist(old)
	}
	if is == nil {
		return
	}
	r, err := newRawResource(*is)
	if err != nil {
		e.problem(unread, []problem.Diagnostic{{
			Severity: problem.Error, Code: "invalid", Key: k, Field: "spec.resource", Reason: err.Error(),
			Advice: "correct the resource, which another build accepted", Effect: "it is not served",
		}})
		return
	}
	e.byKey.Set(k, r)
	e.list(r)
}

func (e *rawEdit) list(r *RawResource) {
	k := e.touch(r)
	list := e.names.Get(k)
	i, _ := slices.BinarySearchFunc(list, r, e.compareRaw)
	e.names.Set(k, slices.Insert(slices.Clone(list), i, r))
}

func (e *rawEdit) unlist(r *RawResource) {
	k := e.touch(r)
	list := e.names.Get(k)
	list = slices.DeleteFunc(slices.Clone(list), func(o *RawResource) bool { return o == r })
	keep(e.names, k, list, len(list) > 0)
}

func (e *rawEdit) touch(r *RawResource) nameKey {
	k := nameKey{r.Type, r.Name}
	e.touched[k] = true
	c := cellKey{r.Type, r.Selector.text}
	if e.cells[c] == nil {
		e.cells[c] = map[string]bool{}
	}
	e.cells[c][r.Name] = true
	return k
}

func (e *rawEdit) done() rawIndex {
	if len(e.touched) == 0 {
		return e.from
	}
	x := e.from
	x.byKey, x.names = e.byKey.Table, e.names.Table
	for k := range e.touched {
		e.problem(about{"resource " + k.Type.String(), "", k.Name}, conflicts(x.names.Get(k)))
	}
	e.doneCells(&x)
	return x
}

// doneCells makes the cells that differ and records what differs in them.
func (e *rawEdit) doneCells(x *rawIndex) {
	cells := maps.Clone(e.from.cells)
	differ, regroup := false, false
	for k, names := range e.cells {
		old := e.from.list(k.Type, k.Selector)
		next := e.cell(old, x, k, names)
		if slices.Equal(old, next.resources) {
			continue
		}
		differ = true
		if !slices.EqualFunc(old, next.resources, sameWinner) {
			e.changed(RawInput(k.Type, k.Selector))
		}
		for name := range names {
			e.changed(RawOneInput(k.Type, k.Selector, name))
		}
		if len(next.resources) == 0 {
			delete(cells, k)
		} else {
			cells[k] = next
		}
		regroup = regroup || len(old) == 0 || len(next.resources) == 0
	}
	if !differ {
		return
	}
	x.cells = cells
	if regroup {
		x.selectors = selectorsOf(cells)
		e.reclassify(true)
	}
}

// sameWinner reports whether two resources can differ in their content only.
func sameWinner(a, b *RawResource) bool {
	return a.Name == b.Name && a.Key == b.Key && a.Created.Equal(b.Created)
}

// cell returns old with the current resources under the given names.
func (e *rawEdit) cell(old []*RawResource, x *rawIndex, k cellKey, names map[string]bool) *cell {
	next := &cell{slices.DeleteFunc(slices.Clone(old), func(r *RawResource) bool { return names[r.Name] })}
	for name := range names {
		list := x.names.Get(nameKey{k.Type, name})
		if i := slices.IndexFunc(list, func(r *RawResource) bool { return r.Selector.text == k.Selector }); i >= 0 {
			next.resources = append(next.resources, list[i])
		}
	}
	slices.SortFunc(next.resources, func(a, b *RawResource) int { return strings.Compare(a.Name, b.Name) })
	return next
}

func selectorsOf(cells map[cellKey]*cell) []*Selector {
	byText := map[string]*Selector{}
	for k, c := range cells {
		byText[k.Selector] = c.resources[0].Selector
	}
	return slices.SortedFunc(maps.Values(byText), func(a, b *Selector) int { return strings.Compare(a.text, b.text) })
}

// conflicts reports the resources of one name that lose it, for some proxies at
// least; the winner comes first in the list.
func conflicts(list []*RawResource) []problem.Diagnostic {
	var ds []problem.Diagnostic
	for i, loser := range list {
		if j := slices.IndexFunc(list[:i], func(r *RawResource) bool { return r.Selector.overlaps(loser.Selector) }); j >= 0 {
			ds = append(ds, problem.Diagnostic{
				Severity: problem.Warning, Code: "conflict", Key: loser.Key, Field: "spec.resource",
				Reason: fmt.Sprintf("%s %q is also defined by %s", loser.Type.Message(), loser.Name, list[j].Key),
				Advice: "rename one of them, or let their nodes exclude each other",
				Effect: "the other one is served to proxies that both select",
			})
		}
	}
	return ds
}
