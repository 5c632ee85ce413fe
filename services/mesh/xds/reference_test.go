package xds

import (
	"fmt"
	"slices"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
)

// Result has the resources of one type for a class.
type Result struct {
	Set *Set
	// Inputs that Generate read, sorted and without duplicates. While they do not
	// change, neither do the Set and the Diagnostics.
	Inputs      []index.Input
	Diagnostics []problem.Diagnostic // sorted, without duplicates
}

// Generate makes the resources of type t for a class from nothing. A Catalog makes
// the same Set with less work.
func Generate(pc *index.PushContext, class index.ProxyClass, t ident.ResourceType) Result {
	return generate(pc, partsOf, class, t)
}

func generate(pc *index.PushContext, parts partsFunc, class index.ProxyClass, t ident.ResourceType) Result {
	byName := map[string]*collected{}
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
		out := makePart(pc, partKey{t, clientOf(class, t), t == ident.RDS && class.RDS.LargeRegexes, class.Pin(t), p})
		inputs = append(inputs, out.inputs...)
		problems = append(problems, out.problems...)
		for _, m := range out.pieces {
			if byName[m.name] == nil {
				byName[m.name] = &collected{}
			}
			byName[m.name].add(m.Encoded, m.partial)
		}
	}
	s := &Set{Resources: make([]*Resource, 0, len(byName))}
	for name, row := range byName {
		all := PiecesOf(row.pieces...)
		r := newResource(t, name, all.sum(name), all)
		s.Resources = append(s.Resources, r)
		s.Sum = s.Sum.Add(r.Sum)
	}
	slices.SortFunc(s.Resources, func(a, b *Resource) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(problems, problem.Diagnostic.Compare)
	slices.SortFunc(inputs, index.Input.Compare)
	return Result{Set: s, Inputs: slices.Compact(inputs), Diagnostics: slices.Compact(problems)}
}

// Verify returns an error if a kept Set differs from the one that Generate makes,
// or if a part has another result when it is made again without changed inputs.
func (c *Catalog) Verify() error {
	for k, p := range c.parts {
		again := makePart(c.pc, k)
		if !again.failed && !p.gives(again.pieces) {
			return fmt.Errorf("%s of %+v: made again, it has other pieces", k.t, k.part)
		}
		if !slices.Equal(p.problems, again.problems) {
			return fmt.Errorf("%s of %+v: made again, it has other problems", k.t, k.part)
		}
	}
	if c.dry {
		return nil
	}
	for k, cl := range c.classes {
		want := generate(c.pc, c.generate, k.of, k.t).Set
		if d := differences(cl.list.set, want); d != "" {
			return fmt.Errorf("%s of class %+v: kept and generated differ: %s", k.t, k.of, d)
		}
	}
	return nil
}

func differences(a, b *Set) string {
	if names := Changed(a, b); len(names) > 0 {
		return strings.Join(names, ", ")
	}
	if a.Sum != b.Sum {
		return "the sum"
	}
	for i, r := range a.Resources {
		if string(r.Value()) != string(b.Resources[i].Value()) {
			return "the bytes of " + r.Name
		}
	}
	return ""
}

// Len returns the number of pieces.
func (p Pieces) Len() int {
	if len(p) == 0 {
		return 0
	}
	return (len(p)-1)*blockSize + len(p[len(p)-1].pieces)
}
