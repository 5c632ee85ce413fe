package registry

import (
	"slices"

	"meshlog.dev/services/watcher"
)

// Catalog remembers the names of the objects that each service was published as. From
// them it makes the deletions when a service changes: of a slice that was joined with
// another one, or of the form that the service had before. It keeps no content. It is not
// safe for concurrent use.
type Catalog struct {
	services map[id]published
	counts   Counts
}

// id names a service of a registry.
type id struct{ namespace, name string }

type published struct {
	objects   []objectID
	instances int
}

type objectID struct{ kind, name string }

// Set notes that a service is these objects now. It returns the change set: the objects,
// and deletions of those that the service was before and is no more. If there are no
// objects, because the service is invalid, Set changes nothing, and the last good objects
// stay in service.
func (c *Catalog) Set(v *Service, objects []watcher.Object) []watcher.Object {
	if len(objects) == 0 {
		return nil
	}
	is := published{instances: len(v.Instances)}
	for _, o := range objects {
		is.objects = append(is.objects, objectID{o.Kind, o.Name})
	}
	return append(slices.Clip(objects), c.replace(id{v.Namespace, v.Name}, is)...)
}

// Remove notes that a service is gone, and returns the deletions of its objects.
func (c *Catalog) Remove(namespace, name string) []watcher.Object {
	return c.replace(id{namespace, name}, published{})
}

func (c *Catalog) replace(of id, is published) []watcher.Object {
	was, had := c.services[of]
	if c.services == nil {
		c.services = map[id]published{}
	}
	c.counts.Instances += is.instances - was.instances
	if had {
		c.counts.Services--
	}
	if len(is.objects) > 0 {
		c.counts.Services++
		c.services[of] = is
	} else {
		delete(c.services, of)
	}
	var gone []watcher.Object
	for _, o := range was.objects {
		if !slices.Contains(is.objects, o) {
			gone = append(gone, watcher.Object{Kind: o.kind, Namespace: of.namespace, Name: o.name, Delete: true})
		}
	}
	return gone
}

// Counts returns how many services and instances there are.
func (c *Catalog) Counts() Counts { return c.counts }
