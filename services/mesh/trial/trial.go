// Package trial generates the resources of one object alone and finds what
// Envoy would refuse of them, so that the object keeps its last good value
// instead of losing the hosts that it is about.
//
// It is pure.
package trial

import (
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"
	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
)

// Problems returns what Envoy would refuse of the resources that are generated
// from m, the message of a valid object; at most one problem for each route of
// a VirtualService and 20 in all, and one for any other object. All are errors. It is safe for
// concurrent use.
func Problems(m proto.Message) []problem.Diagnostic {
	switch m := m.(type) {
	case *networking.VirtualService:
		return virtualService(m)
	case *networking.DestinationRule:
		types := []ident.ResourceType{ident.CDS}
		if hashes(m) { // what is hashed is part of the routes (DR-11)
			types = append(types, ident.RDS)
		}
		clients := sidecars
		if namesCredential(m) { // which sidecars have only if the rule selects them (DR-17)
			clients = routers
		}
		return refused(worldOfRule(m), clients, types...)
	case *networking.ServiceEntry:
		return refused(worldOfEntry(m), sidecars, ident.CDS, ident.LDS, ident.RDS)
	case *networking.Gateway:
		return refused(worldOfGateway(m), routers, ident.LDS, ident.RDS)
	case *mesh.MeshConfig:
		return refused(worldOfMesh(m), append(sidecars, routers...), ident.CDS, ident.EDS, ident.LDS, ident.RDS, ident.ECDS)
	}
	return nil
}

// The clients of trials: what is made for routers differs from what is made for
// sidecars only for Gateways and a mesh.
var (
	sidecars = []index.Client{index.ClientSidecar}
	routers  = []index.Client{index.ClientRouter}
)

// object is an object of a trial's world.
type object struct {
	kind, name string
	message    proto.Message
}

// namespace is where objects of a trial are. It is no root namespace.
const namespace = "trial"

// refused makes the resources of a world and returns the first that Envoy would
// refuse.
func refused(objects []object, clients []index.Client, types ...ident.ResourceType) []problem.Diagnostic {
	var c world.Change
	for _, o := range objects {
		k := ident.Key{Source: "file", Instance: "trial", Kind: o.kind, Namespace: namespace, Name: o.name}
		if o.kind == "MeshConfig" {
			k.Namespace = ""
		}
		c.Rows = append(c.Rows, world.RowChange{Row: k.Row(), Key: k, Object: &world.Object{Key: k, Message: o.message}})
	}
	w, changed, err := empty().Apply(c)
	if err != nil {
		return []problem.Diagnostic{diagnostic("spec", "", err.Error())}
	}
	for _, r := range baseline().Refused(w, changed, clients, types...) {
		return []problem.Diagnostic{diagnostic("spec", r.Type.Message(), r.Reason)}
	}
	return nil
}

// The world that trials change, and what is made of it.
var (
	empty    = sync.OnceValue(world.NewWorld)
	baseline = sync.OnceValue(func() *xds.Baseline {
		return xds.NewBaseline(index.NewPushContext(empty()), ident.CDS, ident.EDS, ident.LDS, ident.RDS, ident.ECDS)
	})
)

// diagnostic reports a refusal of a resource of a type that field leads to.
func diagnostic(field, resource, reason string) problem.Diagnostic {
	return problem.Diagnostic{
		Severity: problem.Error, Code: "refused", Field: field,
		Reason: fmt.Sprintf("Envoy would refuse the %s made of it: %s", resource, reason),
		Advice: "correct the field that sets this",
	}
}
