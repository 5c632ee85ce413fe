package index

import (
	"reflect"
	"slices"
	"time"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/grant"
	"meshlog.dev/services/mesh/table"
	"meshlog.dev/services/mesh/world"
)

// grantKind is the kind of what permits references across namespaces.
const grantKind = "ReferenceGrant"

// grantIndex holds the ReferenceGrants of each namespace.
type grantIndex struct {
	byNamespace table.Groups[string, *referenceGrant]
}

type referenceGrant struct {
	ident.Key
	created time.Time
	grant   grant.Grant
}

// MemberKey returns the key of the ReferenceGrant.
func (g *referenceGrant) MemberKey() ident.Key { return g.Key }

// newGrant reads a ReferenceGrant; nil: it permits nothing.
func newGrant(o *world.Object) *referenceGrant {
	if o == nil {
		return nil
	}
	m, ok := o.Message.(*registryv1.Object)
	if !ok {
		return nil
	}
	g, err := grant.Read(m)
	if err != nil {
		return nil
	}
	return &referenceGrant{o.Key, o.Created, g}
}

// next returns the index after changes of ReferenceGrants.
func (x grantIndex) next(t *transition, changes []change) grantIndex {
	edit := x.byNamespace.Edit(func(a, b *referenceGrant) int {
		return world.Wins(t.priority, a.Key, a.created, b.Key, b.created)
	})
	for _, c := range changes {
		was, is := newGrant(c.was), newGrant(c.is)
		switch {
		case was == nil && is == nil:
		case is == nil:
			edit.Drop(c.Namespace, c.Key)
		case was == nil || !reflect.DeepEqual(was.grant, is.grant) || !was.created.Equal(is.created):
			edit.Put(c.Namespace, is)
		}
	}
	next := grantIndex{edit.Done()}
	for namespace := range edit.Moved {
		t.changed(Input{Kind: InputGrants, A: namespace})
	}
	return next
}

// Granted reports whether a ReferenceGrant of a namespace permits objects of from to
// refer to its object of that kind of the core of Kubernetes and that name.
func (r *Reader) Granted(from grant.From, kind, namespace, name string) bool {
	r.note(Input{Kind: InputGrants, A: namespace})
	return slices.ContainsFunc(r.pc.grants.byNamespace.Get(namespace), func(g *referenceGrant) bool {
		return g.grant.Permits(from, kind, name)
	})
}
