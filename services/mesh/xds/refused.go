package xds

import (
	"fmt"
	"slices"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds/piece"
)

// Refusal is a piece that Envoy would refuse.
type Refusal struct {
	Type ident.ResourceType
	Name string // of the resource
	// Reason starts with the field of the resource, if it is known.
	Reason string
}

// Baseline is a world that Envoys would accept, to try changes of it. It is safe for
// concurrent use.
type Baseline struct {
	pc *index.PushContext
	// inputs are those of each part of the world. A part of which none has changed is the
	// same, and is not made again.
	inputs map[partKey][]index.Input
}

// NewBaseline makes everything of some types for the classes of proxies in a world.
func NewBaseline(pc *index.PushContext, types ...ident.ResourceType) *Baseline {
	b := &Baseline{pc, map[partKey][]index.Input{}}
	for _, t := range types {
		eachPart(pc, []index.Client{index.ClientSidecar, index.ClientRouter}, t, func(k partKey) {
			r := pc.Read()
			k.part.Make(r)
			b.inputs[k] = r.Inputs()
		})
	}
	return b
}

// Refused makes what differs in another world, of some types for the classes of some
// clients, sidecars or routers, and returns what Envoy would refuse of it. The other world
// came from that of b by a change of these keys. Refused keeps nothing. If the generator
// panics, that is a refusal too.
func (b *Baseline) Refused(w *world.World, changed []ident.Key, clients []index.Client, types ...ident.ResourceType) (all []Refusal) {
	pc, inputs := b.pc.Next(w, changed)
	differs := func(in index.Input) bool {
		_, is := slices.BinarySearchFunc(inputs, in, index.Input.Compare)
		return is
	}
	for _, t := range types {
		guard(&all, t, "", func() {
			eachPart(pc, clients, t, func(k partKey) {
				if before, was := b.inputs[k]; !was || slices.ContainsFunc(before, differs) {
					all = append(all, refusedOf(pc, k)...)
				}
			})
		})
	}
	return all
}

// eachPart calls f with each part of a type for the classes of some clients.
func eachPart(pc *index.PushContext, clients []index.Client, t ident.ResourceType, f func(partKey)) {
	classes, parts := map[index.ProxyClass]bool{}, map[partKey]bool{}
	for _, class := range pc.Classes() {
		client := clientOf(class, t)
		if class = class.Only(t); !slices.Contains(clients, kindOfClient(class, t)) || classes[class] {
			continue
		}
		classes[class] = true
		for _, p := range partsOf(pc.Read(), class, t) {
			if k := (partKey{t, client, t == ident.RDS && class.RDS.LargeRegexes, "", p}); !parts[k] {
				parts[k] = true
				f(k)
			}
		}
	}
}

// refusedOf returns what Envoy would refuse of a part.
func refusedOf(pc *index.PushContext, k partKey) (all []Refusal) {
	guard(&all, k.t, fmt.Sprintf("%+v", k.part), func() {
		pieces, _ := k.part.Make(pc.Read())
		for _, p := range pieces {
			all = append(all, RefusedPiece(k.t, p)...)
		}
	})
	return all
}

// guard calls f and turns a panic into a Refusal.
func guard(all *[]Refusal, t ident.ResourceType, name string, f func()) {
	defer func() {
		if v := recover(); v != nil {
			*all = append(*all, Refusal{t, name, fmt.Sprintf("making it panicked: %v", v)})
		}
	}()
	f()
}

// RefusedPiece returns why Envoy would refuse a generated piece.
func RefusedPiece(t ident.ResourceType, p piece.Piece) (all []Refusal) {
	if p.Message == nil {
		return nil // a raw resource, judged as an object
	}
	for _, d := range validate.CheckEnvoy(p.Message) {
		if d.Severity == problem.Error {
			all = append(all, Refusal{t, p.Name, d.Error()})
		}
	}
	return all
}
