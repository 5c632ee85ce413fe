package xds

import (
	"slices"
	"strings"

	"meshlog.dev/services/internal/model"
)

// Resource is one Envoy resource.
type Resource struct {
	Name  string
	Value []byte   // the message; must not be changed
	Hash  [32]byte // SHA-256 of Value
}

// Result is all resources of one type for one class.
type Result struct {
	// Resources, sorted by name; no name comes twice.
	Resources []Resource
	// Inputs are what was read: while they are as they were, so is the
	// result.
	Inputs []model.Input
}

// Generate makes the resources of type t for a class.
func Generate(pc *model.PushContext, class model.ProxyClass, t model.ResourceType) Result {
	g := generator{pc: pc}
	resources := g.raw(t, class.Raw(t))
	return Result{Resources: resources, Inputs: g.inputs}
}

// generator notes what is read.
type generator struct {
	pc     *model.PushContext
	inputs []model.Input
}

func (g *generator) read(in model.Input) []*model.RawResource {
	g.inputs = append(g.inputs, in)
	return g.pc.Raw(in)
}

// raw is the raw resources of the selectors that matched; their bytes are
// those on the log.
func (g *generator) raw(t model.ResourceType, selected model.SelectorSet) []Resource {
	var all []*model.RawResource
	for _, s := range selected.Selectors() {
		all = append(all, g.read(model.Input{Type: t, Selector: s})...)
	}
	slices.SortFunc(all, func(a, b *model.RawResource) int {
		switch {
		case a.Name != b.Name:
			return strings.Compare(a.Name, b.Name)
		case a == b:
			return 0
		case g.pc.Before(a, b):
			return -1
		}
		return 1
	})
	all = slices.CompactFunc(all, func(a, b *model.RawResource) bool { return a.Name == b.Name })
	resources := make([]Resource, len(all))
	for i, r := range all {
		resources[i] = Resource{Name: r.Name, Value: r.Value, Hash: r.Hash}
	}
	return resources
}
