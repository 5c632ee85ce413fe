package apiserver

import (
	"context"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"meshlog.dev/services/mesh/kind"
)

// Served is what an API server serves, by discovery.
type Served struct {
	// Resources are where the objects of a kind are, by its name: in the first
	// of its versions that is served.
	Resources map[string]Resource
	// Names are those of all definitions that are served: "plural.group".
	Names map[string]bool
	// Broken are groups that could not be asked.
	Broken map[string]bool
}

// Resource is where the objects of a kind are.
type Resource struct {
	schema.GroupVersionResource
	Namespaced bool
}

// String is the resource as kubectl takes it: "virtualservices.networking.istio.io".
func (r Resource) String() string { return r.GroupResource().String() }

// Discover asks an API server for what it serves.
func (c *Client) Discover(ctx context.Context) (*Served, error) {
	_, lists, err := c.discovery.ServerGroupsAndResourcesWithContext(ctx)
	broken, partial := discovery.GroupDiscoveryFailedErrorGroups(err)
	if err != nil && !partial {
		return nil, err
	}
	s := resources(lists)
	for gv := range broken {
		s.Broken[gv.Group] = true
	}
	return s, nil
}

// resources finds the kinds of the table.
func resources(lists []*metav1.APIResourceList) *Served {
	s := &Served{Resources: map[string]Resource{}, Names: map[string]bool{}, Broken: map[string]bool{}}
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			continue
		}
		for _, r := range l.APIResources {
			if !strings.Contains(r.Name, "/") {
				s.Names[gv.WithResource(r.Name).GroupResource().String()] = true
			}
		}
	}
	for _, k := range kind.All() {
		for _, version := range slices.Backward(k.Versions) { // the preferred one last
			if r, ok := find(lists, schema.GroupVersion{Group: k.Group, Version: version}, k.DocumentKind()); ok {
				s.Resources[k.Name] = r
			}
		}
	}
	return s
}

func find(lists []*metav1.APIResourceList, gv schema.GroupVersion, document string) (Resource, bool) {
	for _, l := range lists {
		if l.GroupVersion != gv.String() {
			continue
		}
		for _, r := range l.APIResources {
			// Subresources have the kind of others; what cannot be watched is no resource here.
			if r.Kind == document && !strings.Contains(r.Name, "/") && slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "watch") {
				return Resource{gv.WithResource(r.Name), r.Namespaced}, true
			}
		}
	}
	return Resource{}, false
}

// IsCustom says that objects of a kind are there if its definition is.
func IsCustom(k *kind.Kind) bool { return k.Form != kind.Converted }
