package index

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
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
	// Own: it reaches only the proxies of its own namespace. It replaces no listener of a
	// Gateway, in which policies and TLS of the mesh's operators decide (POL-17).
	Own bool
	// touches says which policies or TLS of generated listeners it takes the place of; "":
	// none.
	touches string
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
	r := &RawResource{
		Key: o.Key, Created: o.Created, Type: t, Name: name, Selector: selector, Value: spec.GetResource().GetValue(),
		Own: s.reach(o.Key.Namespace) != "", touches: touched(message),
	}
	if r.Own && r.touches != "" {
		return nil, touchError(r.touches)
	}
	return r, nil
}

// touchError says what a resource would touch whose namespace may not (POL-17).
type touchError string

func (e touchError) Error() string {
	return string(e) + ", which only raw resources of the root namespace and of those in rawResources of the MeshPolicy may do"
}

// touched says which policies or TLS of generated listeners a Listener takes the place of:
// each inbound listener of a sidecar or of a gRPC server decides about callers, and so do
// the slots of policies in any listener. It returns "" if there are none.
func touched(m proto.Message) string {
	l, ok := m.(*listenerv3.Listener)
	if !ok {
		return ""
	}
	if name := l.GetName(); name == "virtualInbound" || strings.HasPrefix(name, "inbound_") {
		return "it replaces the listener " + name + ", in whose chains policies and mutual TLS decide"
	}
	if name := l.GetName(); strings.HasPrefix(name, GRPCServer) {
		return "it replaces the listener " + name + " of a gRPC server, in which policies and mutual TLS decide"
	}
	for _, chain := range append(slices.Clone(l.GetFilterChains()), l.GetDefaultFilterChain()) {
		for _, f := range chain.GetFilters() {
			names := []string{f.GetName()}
			manager := new(hcmv3.HttpConnectionManager)
			if f.GetTypedConfig().MessageIs(manager) && f.GetTypedConfig().UnmarshalTo(manager) == nil {
				for _, h := range manager.GetHttpFilters() {
					names = append(names, h.GetName())
				}
			}
			for _, name := range names {
				if strings.HasPrefix(name, policySlots) {
					return "its filter " + name + " has the name of a slot of policies"
				}
			}
		}
	}
	return ""
}

// GRPCServer begins the name of the Listener of a gRPC server (MTLS-17): the rest is the
// address on which it listens.
const GRPCServer = "grpc/server?xds.resource.listening_address="

// policySlots begins the names of the filters of policies.
const policySlots = "meshlog.authz."

// touching reports a resource that takes the place of policies or TLS, and one that would
// if routers let it (POL-17).
func (r *RawResource) touching() []problem.Diagnostic {
	d := problem.Diagnostic{Severity: problem.Warning, Code: "touches-policies", Key: r.Key, Field: "spec.resource", Reason: r.touches}
	address, port, _ := strings.Cut(r.Name, "_")
	_, badAddress := netip.ParseAddr(address)
	_, badPort := strconv.ParseUint(port, 10, 16)
	switch {
	case r.touches != "":
		d.Advice = "write policies into AuthorizationPolicies, RequestAuthentications and PeerAuthentications, or see that the resource has all that they say"
		d.Effect = "for the proxies that get it, it decides instead of policies"
	case r.Type == ident.LDS && r.Own && badAddress == nil && badPort == nil:
		d.Severity, d.Reason = problem.Info, "it has the name of a listener as Gateways make them"
		d.Advice = "give it another name and port, or put it into a namespace in rawResources of the MeshPolicy"
		d.Effect = "routers whose Gateway has that listener keep theirs, in which policies decide"
	default:
		return nil
	}
	return []problem.Diagnostic{d}
}

// unread reports a resource that newRawResource refused.
func unread(k ident.Key, err error) []problem.Diagnostic {
	d := problem.Diagnostic{
		Severity: problem.Error, Code: "invalid", Key: k, Field: "spec.resource", Reason: err.Error(),
		Advice: "correct the resource, which another build accepted", Effect: "it is not served",
	}
	var touches touchError
	switch {
	case errors.Is(err, errNowhere):
		d.Field, d.Advice = "metadata.namespace", "write a namespace"
	case errors.As(err, &touches):
		d.Severity, d.Code, d.Advice = problem.Warning, "touches-policies", "write policies, or add the namespace to rawResources of the MeshPolicy"
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
