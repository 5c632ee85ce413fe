package xds

import (
	"fmt"
	"slices"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
)

// Refusal is a piece that Envoy would refuse.
type Refusal struct {
	Type ident.ResourceType
	Name string // of the resource
	// Reason starts with the field of the resource, if it is known.
	Reason string
}

// Refused makes everything of some types for the classes of some clients,
// sidecars or routers, and returns what Envoy would refuse of it. It keeps
// nothing; its cost grows with the world. If the generator panics, that is a
// refusal too.
func Refused(pc *index.PushContext, clients []index.Client, types ...ident.ResourceType) []Refusal {
	var all []Refusal
	made := map[partKey]bool{}
	for _, t := range types {
		seen := map[index.ProxyClass]bool{}
		for _, class := range pc.Classes() {
			client := clientOf(class, t)
			if class = class.Only(t); !slices.Contains(clients, kindOfClient(class, t)) || seen[class] {
				continue
			}
			seen[class] = true
			guard(&all, t, "", func() {
				for _, p := range partsOf(pc.Read(), class, t) {
					if k := (partKey{t, client, t == ident.RDS && class.RDS.LargeRegexes, p}); !made[k] {
						made[k] = true
						all = append(all, refusedOf(pc, k)...)
					}
				}
			})
		}
	}
	return all
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
