package xds

import (
	"slices"
	"strings"

	"meshlog.dev/services/internal/model"
	"meshlog.dev/services/internal/xds/piece"
)

// Parts says which parts the resources of type t for a class are made of, in
// the order in which they count. It reads what decides which parts there are;
// what is in them they read themselves.
func Parts(r *model.Reader, class model.ProxyClass, t model.ResourceType) []piece.Part {
	return rawParts(r, t, class.Raw(t))
}

// rawPart is a raw resource, served with the bytes that are on the log.
type rawPart struct {
	t        model.ResourceType
	selector string
	name     string
}

// rawParts is the raw resources of the selectors that matched.
func rawParts(r *model.Reader, t model.ResourceType, selected model.SelectorSet) []piece.Part {
	var all []*model.RawResource
	for _, s := range selected.Selectors() {
		all = append(all, r.Raw(t, s)...)
	}
	slices.SortFunc(all, func(a, b *model.RawResource) int {
		switch {
		case a.Name != b.Name:
			return strings.Compare(a.Name, b.Name)
		case a == b:
			return 0
		case r.Before(a, b):
			return -1
		}
		return 1
	})
	all = slices.CompactFunc(all, func(a, b *model.RawResource) bool { return a.Name == b.Name })
	parts := make([]piece.Part, len(all))
	for i, raw := range all {
		parts[i] = rawPart{t, raw.Selector.String(), raw.Name}
	}
	return parts
}

// Make implements piece.Part.
func (p rawPart) Make(r *model.Reader) ([]piece.Piece, []model.Diagnostic) {
	raw := r.RawOne(p.t, p.selector, p.name)
	if raw == nil {
		return nil, nil
	}
	return []piece.Piece{{Name: p.name, Value: raw.Value}}, nil
}

// Result is what a class is served of one type.
type Result struct {
	Set *Set
	// Inputs are what was read: while they are as they were, so is the Set.
	Inputs      []model.Input
	Diagnostics []model.Diagnostic
}

// Generate makes the resources of type t for a class, from nothing. A Catalog
// comes to the same Set with less work.
func Generate(pc *model.PushContext, class model.ProxyClass, t model.ResourceType) Result {
	r := pc.Read()
	var made []made
	var problems []model.Diagnostic
	for _, p := range Parts(r, class, t) {
		pieces, ds := p.Make(r)
		problems = append(problems, ds...)
		for _, one := range pieces {
			made = append(made, encode(t, one))
		}
	}
	slices.SortFunc(problems, model.Diagnostic.Compare)
	return Result{Set: assemble(t, made), Inputs: r.Inputs(), Diagnostics: problems}
}
