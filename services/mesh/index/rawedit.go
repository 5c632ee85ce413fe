package index

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/table"
)

// next returns the index after changes of raw resources.
func (x rawIndex) next(t *transition, changes []change) rawIndex {
	if len(changes) == 0 {
		return x
	}
	next, names := x, x.names.Edit(t.compareRaw)
	for _, c := range changes {
		var found []problem.Diagnostic
		for o, after := range c.versions() {
			r, err := t.newRawResource(*o)
			switch {
			case err == nil:
				names.Keep(r.nameKey(), r, after)
				if after {
					found = append(t.unreachable(r, o.Message.(*configv1.Resource).GetNodes()), r.touching()...)
				}
			case after:
				found = unread(c.Key, err)
			}
		}
		t.problem(about{resourceKind, "", c.Row()}, found)
	}
	next.names = names.Done()
	next.remakeCells(t, x, names)
	return next
}

// remakeCells remakes the cells in which changed names have another winner.
func (x *rawIndex) remakeCells(t *transition, from rawIndex, names *table.GroupsEdit[nameKey, *RawResource]) {
	cells := x.cells.Edit(func(a, b *RawResource) int { return strings.Compare(a.Name, b.Name) })
	var came []*RawResource
	for k := range names.Moved {
		t.problem(about{"resource " + k.Type.String(), "", k.Name}, conflicts(x.names.Get(k)))
		was, is := winners(from.names.Get(k)), winners(x.names.Get(k))
		for at, r := range was {
			if r != is[at] {
				t.winnerChanged(at, r, is[at])
				cells.Drop(at, r.Key)
			}
		}
		for at, r := range is {
			if r != was[at] {
				t.winnerChanged(at, was[at], r)
				came = append(came, r)
			}
		}
	}
	// An object that took another name is in the cell again.
	for _, r := range came {
		cells.Put(r.cellKey(), r)
	}
	x.cells = cells.Done()
	for at := range cells.Moved {
		if (len(from.cells.Get(at)) == 0) != (len(x.cells.Get(at)) == 0) {
			x.selectors = selectorsOf(x.cells)
			t.reclassify(true)
			break
		}
	}
}

// winners returns the winner of one name in each cell.
func winners(list []*RawResource) map[cellKey]*RawResource {
	first := make(map[cellKey]*RawResource, len(list))
	for _, r := range list {
		if first[r.cellKey()] == nil {
			first[r.cellKey()] = r
		}
	}
	return first
}

// winnerChanged records what differs if a name has another winner in a cell;
// nil: none.
func (t *transition) winnerChanged(at cellKey, was, is *RawResource) {
	t.changed(RawOneInput(at.Type, at.Selector, cmp.Or(was, is).Name))
	if was == nil || is == nil || was.Key != is.Key || !was.Created.Equal(is.Created) {
		t.changed(RawInput(at.Type, at.Selector)) // not only the content differs
	}
}

func selectorsOf(cells table.Groups[cellKey, *RawResource]) []*Selector {
	byText := map[string]*Selector{}
	for at, list := range cells.All() {
		byText[at.Selector] = list[0].Selector
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
