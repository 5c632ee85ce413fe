package kube

import (
	"context"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"meshlog.dev/services/internal/kind"
)

// served is what an API server serves, by discovery.
type served struct {
	// resources are where the objects of a kind are, by its name: in the first
	// of its versions that is served.
	resources map[string]resource
	// names are those of all definitions that are served: "plural.group".
	names map[string]bool
	// broken are groups that could not be asked.
	broken map[string]bool
}

// resource is where the objects of a kind are.
type resource struct {
	schema.GroupVersionResource
	namespaced bool
}

// String is the resource as kubectl takes it: "virtualservices.networking.istio.io".
func (r resource) String() string { return r.GroupResource().String() }

// discover asks an API server for what it serves.
func (c *client) discover(ctx context.Context) (*served, error) {
	_, lists, err := c.discovery.ServerGroupsAndResourcesWithContext(ctx)
	broken, partial := discovery.GroupDiscoveryFailedErrorGroups(err)
	if err != nil && !partial {
		return nil, err
	}
	s := resources(lists)
	for gv := range broken {
		s.broken[gv.Group] = true
	}
	return s, nil
}

// resources finds the kinds of the table.
func resources(lists []*metav1.APIResourceList) *served {
	s := &served{resources: map[string]resource{}, names: map[string]bool{}, broken: map[string]bool{}}
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			continue
		}
		for _, r := range l.APIResources {
			if !strings.Contains(r.Name, "/") {
				s.names[gv.WithResource(r.Name).GroupResource().String()] = true
			}
		}
	}
	for _, k := range kind.All() {
		for _, version := range slices.Backward(k.Versions) { // the preferred one last
			if r, ok := find(lists, schema.GroupVersion{Group: k.Group, Version: version}, k.DocumentKind()); ok {
				s.resources[k.Name] = r
			}
		}
	}
	return s
}

func find(lists []*metav1.APIResourceList, gv schema.GroupVersion, document string) (resource, bool) {
	for _, l := range lists {
		if l.GroupVersion != gv.String() {
			continue
		}
		for _, r := range l.APIResources {
			// Subresources have the kind of others; what cannot be watched is no resource here.
			if r.Kind == document && !strings.Contains(r.Name, "/") && slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "watch") {
				return resource{gv.WithResource(r.Name), r.Namespaced}, true
			}
		}
	}
	return resource{}, false
}

// isCustom says that objects of a kind are there if its definition is.
func isCustom(k *kind.Kind) bool { return k.Form != kind.Converted }

// customGroups are those of the kinds that have definitions.
var customGroups = func() map[string]bool {
	groups := map[string]bool{}
	for _, k := range kind.All() {
		if isCustom(k) {
			groups[k.Group] = true
		}
	}
	return groups
}()
