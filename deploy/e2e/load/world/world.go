// Package world writes a large configuration to a watched directory, and makes
// the measured changes: an endpoint, a route's weights, a policy.
package world

import (
	"fmt"
	"strings"
	"time"

	"meshlog.dev/deploy/e2e/rig"
)

// Size describes how large a world is.
type Size struct {
	Services  int
	Endpoints int // of each service
	// Rules is how many services, from the first one on, have a VirtualService and
	// a DestinationRule.
	Rules int
	// Namespaces is how many namespaces the services are spread over.
	Namespaces int
	// Policies is how many AuthorizationPolicies select every proxy, besides one that
	// changes; 0: that one is not there either.
	Policies int
}

// World is a configuration that was written to a directory.
type World struct {
	*rig.ConfigDir
	size  Size
	saved int // changes so far
}

// Namespace returns the name of the i-th namespace; it wraps around.
func (w *World) Namespace(i int) string { return namespace(i % w.size.Namespaces) }

func namespace(i int) string { return fmt.Sprintf("ns-%d", i) }

// service is one of the services, by number.
type service int

func (s service) name() string { return fmt.Sprintf("svc-%d", int(s)) }

func (w *World) namespaceOf(s service) string { return w.Namespace(int(s)) }

// host returns Istio's name of a Kubernetes service.
func (w *World) host(s service) string {
	return fmt.Sprintf("%s.%s.svc.cluster.local", s.name(), w.namespaceOf(s))
}

// address is the vip of a service, and of its i-th endpoint.
func (s service) vip() string { return fmt.Sprintf("10.96.%d.%d", int(s)/250, int(s)%250+1) }

func (s service) endpoint(i int) string {
	return fmt.Sprintf("10.%d.%d.%d", 128+i, int(s)/250, int(s)%250+1)
}

// Change is a change that was saved.
type Change struct {
	Saved time.Time
	// Token occurs in the response that every proxy gets for the change, and in
	// no earlier response.
	Token []byte
}

// changing returns the two services that change: the last one's endpoints, the
// first one's routes.
func (w *World) changing() (endpoints, routes service) { return service(w.size.Services - 1), 0 }

// New writes a world to dir/config: a file for each namespace, and one for each
// object that changes.
func New(dir string, size Size) (*World, error) {
	c, err := rig.NewConfigDir(dir)
	if err != nil {
		return nil, err
	}
	w := &World{ConfigDir: c, size: size}
	files := map[string]*strings.Builder{}
	add := func(file, document string) {
		if files[file] == nil {
			files[file] = &strings.Builder{}
		}
		files[file].WriteString(document)
	}
	endpoints, routes := w.changing()
	for i := range size.Services {
		s := service(i)
		file := w.namespaceOf(s) + ".yaml"
		entryFile, virtualFile := file, file
		if s == endpoints {
			entryFile = endpointsFile
		}
		if s == routes {
			virtualFile = routesFile
		}
		add(entryFile, w.entry(s, s.endpoint(0)))
		if i < size.Rules {
			add(virtualFile, w.routes(s, 90))
			add(file, w.subsets(s))
		}
	}
	for i := range size.Policies {
		add("policies.yaml", policy(i))
	}
	if size.Policies > 0 {
		add(policyFile, audit(0))
	}
	for i := range size.Namespaces {
		add(namespace(i)+".yaml", w.private(i))
	}
	for name, text := range files {
		if _, err := w.Save(name, text.String()); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// The files that change.
const (
	endpointsFile = "changing-endpoints.yaml"
	routesFile    = "changing-routes.yaml"
	policyFile    = "changing-policy.yaml"
)

// ChangeEndpoint replaces the first endpoint of a service.
func (w *World) ChangeEndpoint() (Change, error) {
	w.saved++
	s, _ := w.changing()
	address := fmt.Sprintf("10.250.%d.%d", w.saved/250, w.saved%250+1)
	saved, err := w.Save(endpointsFile, w.entry(s, address))
	return Change{saved, []byte(address)}, err
}

// ChangeRoute changes the weights of a route.
func (w *World) ChangeRoute() (Change, error) {
	w.saved++
	_, s := w.changing()
	v1 := 1 + w.saved%99
	saved, err := w.Save(routesFile, w.routes(s, v1))
	// WeightedCluster.ClusterWeight: name, then weight, a message of one number.
	token := fmt.Appendf(nil, "outbound|80|v1|%s\x12\x02\x08%c", w.host(s), v1)
	return Change{saved, token}, err
}

// ChangePolicy changes what an AuthorizationPolicy of every proxy selects.
func (w *World) ChangePolicy() (Change, error) {
	w.saved++
	saved, err := w.Save(policyFile, audit(w.saved))
	return Change{saved, fmt.Appendf(nil, "/audited-%d/", w.saved)}, err
}
