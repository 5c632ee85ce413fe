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

// Served is the result of discovery.
type Served struct {
	// Resources has the resource of each kind, by the kind's name, in the first of
	// the kind's versions that is served.
	Resources map[string]Resource
	// Names has all served resources as "plural.group", the names of definitions.
	Names map[string]bool
	// Broken has the groups whose discovery failed.
	Broken map[string]bool
}

// Resource is the resource of a kind's objects.
type Resource struct {
	schema.GroupVersionResource
	Namespaced bool
}

// String returns the name for kubectl: "virtualservices.networking.istio.io".
func (r Resource) String() string { return r.GroupResource().String() }

// Discover reads which resources the API server serves.
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

// resources finds the resources of all kinds.
func resources(lists []*metav1.APIResourceList) *Served {
	s := &Served{Resources: map[string]Resource{}, Names: map[string]bool{}, Broken: map[string]bool{}}
	watchable := map[schema.GroupVersionKind]Resource{} // the first of each
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			continue
		}
		for _, r := range l.APIResources {
			if strings.Contains(r.Name, "/") {
				continue // a subresource, which may have the kind of another resource
			}
			s.Names[gv.WithResource(r.Name).GroupResource().String()] = true
			_, known := watchable[gv.WithKind(r.Kind)]
			if !known && slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "watch") {
				watchable[gv.WithKind(r.Kind)] = Resource{gv.WithResource(r.Name), r.Namespaced}
			}
		}
	}
	for _, k := range kind.All() {
		for _, version := range slices.Backward(k.Versions) { // the preferred version last, so that it wins
			if r, ok := watchable[schema.GroupVersionKind{Group: k.Group, Version: version, Kind: k.DocumentKind()}]; ok {
				s.Resources[k.Name] = r
			}
		}
	}
	return s
}

// IsCustom reports whether a kind has a CustomResourceDefinition.
func IsCustom(k *kind.Kind) bool { return k.Form == kind.Spec || k.Form == kind.Whole }
