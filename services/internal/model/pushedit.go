package model

import (
	"fmt"
	"slices"
	"strings"
)

// pushEdit makes one PushContext from another.
type pushEdit struct {
	from    *PushContext
	raw     *edit[Key, *RawResource]
	names   *edit[nameKey, []*RawResource]
	unread  map[Key]Diagnostic
	touched map[nameKey]bool
	cells   map[cellKey]map[string]bool // and the names in them that may differ
}

// change takes in what w serves for k now.
func (e *pushEdit) change(w *World, k Key) {
	delete(e.unread, k)
	if old := e.raw.get(k); old != nil {
		e.raw.remove(k)
		e.unlist(old)
	}
	o, ok := w.Served(k)
	if !ok {
		return
	}
	r, err := newRawResource(o)
	if err != nil {
		e.unread[k] = Diagnostic{
			Severity: Error, Code: "invalid", Key: k, Field: "spec.resource", Reason: err.Error(),
			Advice: "correct the resource; was it checked by another build?", Effect: "it is not served",
		}
		return
	}
	e.raw.set(k, r)
	e.list(r)
}

func (e *pushEdit) list(r *RawResource) {
	k := e.touch(r)
	list := e.names.get(k)
	i, _ := slices.BinarySearchFunc(list, r, e.from.compare)
	e.names.set(k, slices.Insert(slices.Clone(list), i, r))
}

func (e *pushEdit) unlist(r *RawResource) {
	k := e.touch(r)
	list := e.names.get(k)
	list = slices.DeleteFunc(slices.Clone(list), func(o *RawResource) bool { return o == r })
	if len(list) == 0 {
		e.names.remove(k)
		return
	}
	e.names.set(k, list)
}

func (e *pushEdit) touch(r *RawResource) nameKey {
	k := nameKey{r.Type, r.Name}
	e.touched[k] = true
	c := cellKey{r.Type, r.Selector.text}
	if e.cells[c] == nil {
		e.cells[c] = map[string]bool{}
	}
	e.cells[c][r.Name] = true
	return k
}

func (e *pushEdit) done() (*PushContext, []Input) {
	pc := &PushContext{
		priority: e.from.priority, mesh: e.from.mesh, domainSuffix: e.from.domainSuffix, unread: e.unread, conflicts: e.from.conflicts,
		cells: e.from.cells, selectors: e.from.selectors,
		raw: e.raw.table, names: e.names.table,
	}
	if len(e.touched) > 0 {
		pc.conflicts = cloneMap(pc.conflicts)
		for k := range e.touched {
			list := pc.names.get(k)
			if ds := conflicts(list); len(ds) > 0 {
				pc.conflicts[k] = ds
			} else {
				delete(pc.conflicts, k)
			}
		}
	}
	return pc, e.doneCells(pc)
}

// doneCells makes the cells that differ, and returns which they are.
func (e *pushEdit) doneCells(pc *PushContext) []Input {
	var changed []Input
	cells := cloneMap(e.from.cells)
	regroup := false
	for k, names := range e.cells {
		old := e.from.Raw(RawInput(k.Type, k.Selector))
		next := e.cell(old, pc, k, names)
		if slices.Equal(old, next.resources) {
			continue
		}
		changed = append(changed, RawInput(k.Type, k.Selector))
		if len(next.resources) == 0 {
			delete(cells, k)
		} else {
			cells[k] = next
		}
		regroup = regroup || len(old) == 0 || len(next.resources) == 0
	}
	if len(changed) == 0 {
		return nil
	}
	pc.cells = cells
	if regroup {
		pc.selectors = selectorsOf(cells)
	}
	slices.SortFunc(changed, compareInputs)
	return changed
}

// cell is old with what is served now under the given names.
func (e *pushEdit) cell(old []*RawResource, pc *PushContext, k cellKey, names map[string]bool) *cell {
	next := &cell{slices.DeleteFunc(slices.Clone(old), func(r *RawResource) bool { return names[r.Name] })}
	for name := range names {
		list := pc.names.get(nameKey{k.Type, name})
		for _, r := range list {
			if r.Selector.text == k.Selector {
				next.resources = append(next.resources, r) // the first wins
				break
			}
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
	list := make([]*Selector, 0, len(byText))
	for _, s := range byText {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *Selector) int { return strings.Compare(a.text, b.text) })
	return list
}

// conflicts says which of the resources of one name lose it, to some proxies
// at least; the one that wins comes first in the list.
func conflicts(list []*RawResource) []Diagnostic {
	var ds []Diagnostic
	for i, loser := range list {
		for _, winner := range list[:i] {
			if !winner.Selector.overlaps(loser.Selector) {
				continue
			}
			ds = append(ds, Diagnostic{
				Severity: Warning, Code: "conflict", Key: loser.Key, Field: "spec.resource",
				Reason: fmt.Sprintf("%s %q is also given by %s", loser.Type.Message(), loser.Name, winner.Key),
				Advice: "rename one of them, or let their nodes exclude each other",
				Effect: "the other one is served to proxies that both select",
			})
			break
		}
	}
	return ds
}
