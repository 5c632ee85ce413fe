// Package grant reads ReferenceGrants of the Gateway API: what objects of other
// namespaces may refer to.
//
// It is pure.
package grant

import (
	"encoding/json"
	"errors"
	"fmt"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
)

// From is a kind of objects of one namespace that refer.
type From struct {
	Group     string `json:"group"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
}

// To is a kind of objects of the grant's own namespace that they may refer to.
type To struct {
	Group string `json:"group"`
	Kind  string `json:"kind"`
	// Name of the one object; empty: all of the kind.
	Name string `json:"name"`
}

// Grant permits each of From to refer to each of To.
type Grant struct {
	From []From `json:"from"`
	To   []To   `json:"to"`
}

// Read reads the payload of a ReferenceGrant.
func Read(o *registryv1.Object) (Grant, error) {
	var doc struct {
		Spec Grant `json:"spec"`
	}
	if err := json.Unmarshal(o.GetJson(), &doc); err != nil {
		return Grant{}, fmt.Errorf("spec: %w", err)
	}
	g := doc.Spec
	switch {
	case len(g.From) == 0:
		return Grant{}, errors.New("spec.from is empty")
	case len(g.To) == 0:
		return Grant{}, errors.New("spec.to is empty")
	}
	for i, f := range g.From {
		if f.Kind == "" || f.Namespace == "" {
			return Grant{}, fmt.Errorf("spec.from[%d] needs kind and namespace", i)
		}
	}
	for i, t := range g.To {
		if t.Kind == "" {
			return Grant{}, fmt.Errorf("spec.to[%d] needs kind", i)
		}
	}
	return g, nil
}

// Permits reports whether objects of from may refer to an object of the grant's
// namespace, of a kind of the core of Kubernetes.
func (g Grant) Permits(from From, kind, name string) bool {
	for _, f := range g.From {
		if f != from {
			continue
		}
		for _, t := range g.To {
			if t.Group == "" && t.Kind == kind && (t.Name == "" || t.Name == name) {
				return true
			}
		}
	}
	return false
}
