package why

import (
	"fmt"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
)

// Question asks why a proxy has a resource, or a field of it.
type Question struct {
	World    *world.World
	Proxy    *proxy.Proxy
	Type     ident.ResourceType
	Resource string
	Field    string // empty: the whole resource
}

// Answer says what made a resource.
type Answer struct {
	Field string // with indexes in place of names
	Value string // of the field; JSON
	// Causes says of each leaf of the field what set it, if there are few; Leaves is how many there are.
	Causes []Cause
	Leaves int
	// Objects made the field: without one of them, or with another value of one, it
	// would be different.
	Objects []Object
	// Read counts further objects that generation read for the resource, and that make
	// no difference to the field.
	Read int
	// Tried counts the worlds in which the resource was made again.
	Tried int
}

// Object is one that made a field.
type Object struct {
	Key ident.Key
	// Fields of the resource that would differ without the object.
	Fields []string
	// Whole: without the object there would be no such resource.
	Whole bool
}

// Cause says what set a leaf of a resource.
type Cause struct {
	Path, Value string
	// Set is empty if no single field sets it.
	Set []Setter
	// Several are fields of equal value that set it together: each suffices.
	Several []Setter
	// IsName: it is the name of the resource, so with another one it is another resource.
	IsName bool
	// Within is the innermost field around a default that an object brought, and Brought what
	// in the object did; empty: it is there in any case.
	Within  string
	Brought []Setter
}

// Setter is a field that set a leaf of a resource.
type Setter struct {
	Key   ident.Key
	Field string
	Value string
	// Default: the field is not set, and has this value by default.
	Default bool
	// Node: it is a field of the proxy's own node, and Key is zero.
	Node bool
}

// MostLeaves is how many leaves of a field Causes has at most.
const MostLeaves = 60

// Why answers a question.
func Why(q Question) (*Answer, error) {
	e := &explainer{scene: newScene(q.World, q.Proxy, q.Type), name: q.Resource}
	var err error
	if e.base, err = e.docs.of(q.Type, e.set.Find(q.Resource)); err != nil {
		return nil, err
	}
	if e.base == nil {
		return nil, fmt.Errorf("%w: %s %q", ErrNoResource, q.Type.Message(), q.Resource)
	}
	target, field, err := e.base.find(q.Field)
	if err != nil {
		return nil, err
	}
	e.field = field
	a := &Answer{Field: field, Value: target.String(), Leaves: target.leaves}
	if err := e.shrink(target); err != nil {
		return nil, err
	}
	if target, _, err = e.base.find(e.field); err != nil {
		return nil, err
	}
	parts, search := e.catalog.Inputs(e.class, q.Type, q.Resource)
	of, others, err := e.readers(parts, search)
	if err != nil {
		return nil, err
	}
	e.read = of
	makers, err := bisect(of, e.matter)
	if err != nil {
		return nil, err
	}
	found, err := bisect(others, e.matter)
	if err != nil {
		return nil, err
	}
	makers = append(makers, found...)
	a.Read = len(of) - (len(makers) - len(found))
	few := target.leaves <= MostLeaves
	for _, o := range makers {
		without, err := e.without(o, a)
		if err == nil && few {
			err = e.try(o, without)
		}
		if err != nil {
			return nil, err
		}
	}
	if few {
		err = e.causes(target, a)
	}
	a.moved(e.field)
	a.Tried = e.tried
	return a, err
}

// String describes a setter: "OBJECT FIELD: VALUE".
func (s Setter) String() string {
	of := s.Key.String()
	switch {
	case s.Node:
		of = "the proxy's"
	case s.Default:
		of = "default of " + s.Key.Kind
	}
	if s.Value == "" {
		return of + " " + s.Field
	}
	return of + " " + s.Field + ": " + s.Value
}
