package xds

import (
	"slices"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
)

// Result is the resources of one type for a class.
type Result struct {
	Set *Set
	// Inputs that were read; sorted, each once. While they do not change, neither
	// do the Set and the Diagnostics.
	Inputs      []index.Input
	Diagnostics []problem.Diagnostic // sorted, each once
}

// Generate makes the resources of type t for a class, from nothing. A Catalog
// comes to the same Set with less work.
func Generate(pc *index.PushContext, class index.ProxyClass, t ident.ResourceType) Result {
	return generate(pc, Parts, class, t)
}

// partsFunc is Parts, or a test's replacement.
type partsFunc func(*index.Reader, index.ProxyClass, ident.ResourceType) []piece.Part

func generate(pc *index.PushContext, parts partsFunc, class index.ProxyClass, t ident.ResourceType) Result {
	byName := map[string][]made{}
	var problems []problem.Diagnostic
	seen := map[piece.Part]bool{}
	r := pc.Read()
	list := parts(r, class, t)
	inputs := r.Inputs()
	for _, p := range list {
		if seen[p] {
			continue
		}
		seen[p] = true
		out := makePart(pc, partKey{t, clientOf(class, t), p})
		inputs = append(inputs, out.inputs...)
		problems = append(problems, out.problems...)
		for _, m := range out.pieces {
			byName[m.name] = join(byName[m.name], m, func(m made) bool { return m.partial })
		}
	}
	s := &Set{Resources: make([]*Resource, 0, len(byName))}
	for name, all := range byName {
		pieces := make([]*Encoded, len(all))
		for i, m := range all {
			pieces[i] = m.Encoded
		}
		all := PiecesOf(pieces...)
		r := newResource(t, name, all.sum(name), all)
		s.Resources = append(s.Resources, r)
		s.Sum = s.Sum.Add(r.Sum)
	}
	slices.SortFunc(s.Resources, func(a, b *Resource) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(problems, problem.Diagnostic.Compare)
	slices.SortFunc(inputs, index.Input.Compare)
	return Result{Set: s, Inputs: slices.Compact(inputs), Diagnostics: slices.Compact(problems)}
}
