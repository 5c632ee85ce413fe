package index

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/table"
	"meshlog.dev/services/mesh/world"
)

// resourceKind is the kind of raw Envoy resources.
const resourceKind = "Resource"

// rawIndex holds the raw Envoy resources by the proxies that get them.
type rawIndex struct {
	names     table.Groups[nameKey, *RawResource] // the winner first
	cells     table.Groups[cellKey, *RawResource] // the winner of each name, sorted by name
	selectors []*Selector                         // of the cells, sorted by text
}

// RawResource is an Envoy resource from an object.
type RawResource struct {
	Key      ident.Key
	Created  time.Time
	Type     ident.ResourceType
	Name     string // Envoy's name of it
	Selector *Selector
	Value    []byte // as on the log; must not be changed
}

type (
	nameKey struct {
		Type ident.ResourceType
		Name string
	}
	// cellKey names the resources of one type and selector.
	cellKey struct {
		Type     ident.ResourceType
		Selector string
	}
)

// MemberKey returns the key of the object.
func (r *RawResource) MemberKey() ident.Key { return r.Key }

func (r *RawResource) nameKey() nameKey { return nameKey{r.Type, r.Name} }

func (r *RawResource) cellKey() cellKey { return cellKey{r.Type, r.Selector.text} }

func (x *rawIndex) one(t ident.ResourceType, selector, name string) *RawResource {
	list := x.cells.Get(cellKey{t, selector})
	i, ok := slices.BinarySearchFunc(list, name, func(r *RawResource, name string) int { return strings.Compare(r.Name, name) })
	if !ok {
		return nil
	}
	return list[i]
}

func (s *settings) compareRaw(a, b *RawResource) int {
	return world.Wins(s.priority, a.Key, a.Created, b.Key, b.Created)
}

// errNowhere refuses a resource without a namespace: a Selector without one selects
// all proxies (XDS-7).
var errNowhere = errors.New("it has no namespace, and raw resources reach the proxies of their namespace")

// newRawResource reads a raw resource.
func (s *settings) newRawResource(o world.Object) (*RawResource, error) {
	spec, ok := o.Message.(*configv1.Resource)
	if !ok {
		return nil, fmt.Errorf("holds %T", o.Message)
	}
	if o.Key.Namespace == "" {
		return nil, errNowhere
	}
	message, err := spec.GetResource().UnmarshalNew()
	if err != nil {
		return nil, err
	}
	t, name, ok := envoyName(message)
	if !ok {
		return nil, fmt.Errorf("type %s is not served", spec.GetResource().GetTypeUrl())
	}
	selector, err := newSelector(spec.GetNodes(), s.reach(o.Key.Namespace))
	if err != nil {
		return nil, fmt.Errorf("nodes: %w", err)
	}
	return &RawResource{o.Key, o.Created, t, name, selector, spec.GetResource().GetValue()}, nil
}

// unread reports a resource that newRawResource refused.
func unread(k ident.Key, err error) []problem.Diagnostic {
	d := problem.Diagnostic{
		Severity: problem.Error, Code: "invalid", Key: k, Field: "spec.resource", Reason: err.Error(),
		Advice: "correct the resource, which another build accepted", Effect: "it is not served",
	}
	if errors.Is(err, errNowhere) {
		d.Field, d.Advice = "metadata.namespace", "write a namespace"
	}
	return []problem.Diagnostic{d}
}

// reach returns the only namespace whose proxies get raw resources of a
// namespace; "": all do.
func (s *settings) reach(namespace string) string {
	if slices.Contains(s.rawResources, namespace) {
		return ""
	}
	return namespace
}

// unreachable reports a resource whose nodes are all in other namespaces than
// it reaches.
func (s *settings) unreachable(r *RawResource, nodes *configv1.NodeSelector) []problem.Diagnostic {
	own, wanted := s.reach(r.Key.Namespace), nodes.GetMetadata().GetFields()["NAMESPACE"].GetStringValue()
	if own == "" || wanted == "" || wanted == own {
		return nil
	}
	return []problem.Diagnostic{{
		Severity: problem.Warning, Code: "unreachable", Key: r.Key, Field: "spec.nodes.metadata.NAMESPACE",
		Reason: fmt.Sprintf("raw resources of namespace %s reach proxies of that namespace only, and none of namespace %s", own, wanted),
		Advice: fmt.Sprintf("move it to namespace %s, or add %s to rawResources of the MeshPolicy", wanted, own),
		Effect: "no proxy gets it",
	}}
}

func envoyName(m proto.Message) (ident.ResourceType, string, bool) {
	switch m := m.(type) {
	case *clusterv3.Cluster:
		return ident.CDS, m.GetName(), true
	case *endpointv3.ClusterLoadAssignment:
		return ident.EDS, m.GetClusterName(), true
	case *listenerv3.Listener:
		return ident.LDS, m.GetName(), true
	case *routev3.RouteConfiguration:
		return ident.RDS, m.GetName(), true
	}
	return 0, "", false
}
