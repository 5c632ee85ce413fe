package piece

import (
	"cmp"
	"fmt"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3" // Inspect finds the type by its URL
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"meshlog.dev/proto/ident"
	grpclookupv1 "meshlog.dev/proto/meshlog/grpclookup/v1"
	"meshlog.dev/services/mesh/anytype"
	"meshlog.dev/services/mesh/protosearch"
)

// Facts are the properties of a resource that the order of pushes depends on.
type Facts struct {
	// Endpoints is the ClusterLoadAssignment that a Cluster waits for; empty: it
	// is not of type EDS.
	Endpoints string
	// SlowWarm: a Cluster needs more than its endpoints to be warm, names to
	// resolve or secrets.
	SlowWarm bool
	// Secrets that a Cluster or Listener waits for, by name. Sorted.
	Secrets []string
	// Clusters that a filter, Listener or RouteConfiguration names. Sorted.
	Clusters []string
	// Key is the private key that a Secret names; nil: none.
	Key *Key
}

// Inspect returns the facts of an encoded resource of type t.
func Inspect(t ident.ResourceType, value []byte) (Facts, error) {
	if t == ident.EDS {
		return Facts{}, nil
	}
	m, err := (&anypb.Any{TypeUrl: t.URL(), Value: value}).UnmarshalNew()
	if err != nil {
		return Facts{}, fmt.Errorf("%s: %w", t.Message(), err)
	}
	return FactsOf(t, m), nil
}

// FactsOf returns the facts of a resource of type t.
func FactsOf(t ident.ResourceType, m proto.Message) Facts {
	var f Facts
	switch t {
	case ident.CDS:
		c := m.(*clusterv3.Cluster)
		if _, custom := c.GetClusterDiscoveryType().(*clusterv3.Cluster_ClusterType); custom {
			f.SlowWarm = true
			break
		}
		switch c.GetType() {
		case clusterv3.Cluster_EDS:
			f.Endpoints = cmp.Or(c.GetEdsClusterConfig().GetServiceName(), c.GetName())
		case clusterv3.Cluster_STRICT_DNS, clusterv3.Cluster_LOGICAL_DNS:
			f.SlowWarm = true
		}
		walk(secrets, m.ProtoReflect(), 0, f.addSecret)
		f.SlowWarm = f.SlowWarm || len(f.Secrets) > 0
	case ident.ECDS, ident.LDS, ident.RDS:
		walk(referrers, m.ProtoReflect(), 0, func(m protoreflect.Message) {
			if t == ident.LDS {
				f.addSecret(m)
			}
			for _, fd := range referenceFields(m.Descriptor()) {
				if name := m.Get(fd).String(); name != "" {
					f.Clusters = append(f.Clusters, name)
				}
			}
		})
		slices.Sort(f.Clusters)
		f.Clusters = slices.Compact(f.Clusters)
	case ident.SDS:
		f.Key = keyOf(m.(*tlsv3.Secret))
	}
	slices.Sort(f.Secrets)
	f.Secrets = slices.Compact(f.Secrets)
	return f
}

// addSecret adds the secret that m is a reference to.
func (f *Facts) addSecret(m protoreflect.Message) {
	if s, ok := m.Interface().(*tlsv3.SdsSecretConfig); ok && s.GetSdsConfig() != nil {
		f.Secrets = append(f.Secrets, s.GetName())
	}
}

// Empty returns a resource of that name without content. It answers an unknown
// name, because without an answer a listener or cluster would never be warm.
func Empty(t ident.ResourceType, name string) []byte {
	var m proto.Message
	switch t {
	case ident.EDS:
		m = &endpointv3.ClusterLoadAssignment{ClusterName: name}
	case ident.RDS:
		m = &routev3.RouteConfiguration{Name: name}
	default:
		panic("only EDS and RDS answer unknown names")
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil // not UTF-8, so no protobuf client sent it
	}
	return b
}

// maxNesting limits the depth of nested messages; Envoy's own are less deep.
const maxNesting = 64

// walk calls visit for m and every message in it that search may find, also
// inside an Any of a known type.
func walk(search *protosearch.Search, m protoreflect.Message, depth int, visit func(protoreflect.Message)) {
	if depth == maxNesting {
		return
	}
	if a, ok := m.Interface().(*anypb.Any); ok {
		if inner, err := anytype.Unmarshal(a); err == nil {
			walk(search, inner.ProtoReflect(), depth+1, visit)
		}
		return
	}
	visit(m)
	search.Each(m, func(m protoreflect.Message) { walk(search, m, depth+1, visit) })
}

var (
	secrets   = protosearch.For(isSecret)
	referrers = protosearch.For(func(d protoreflect.MessageDescriptor) bool { return isSecret(d) || len(referenceFields(d)) > 0 })
)

func isSecret(d protoreflect.MessageDescriptor) bool {
	return d.FullName() == (*tlsv3.SdsSecretConfig)(nil).ProtoReflect().Descriptor().FullName()
}

var (
	clusterWeight = (*routev3.WeightedCluster_ClusterWeight)(nil).ProtoReflect().Descriptor().FullName()
	lookup        = (*grpclookupv1.RouteLookupConfig)(nil).ProtoReflect().Descriptor().FullName()
	node          = (*corev3.Node)(nil).ProtoReflect().Descriptor().FullName()
)

// referenceFields returns the fields of a type that name a cluster. Envoy's API
// calls such a field cluster or cluster_name nearly everywhere; one name too
// many only keeps a cluster somewhat longer.
func referenceFields(d protoreflect.MessageDescriptor) (all []protoreflect.FieldDescriptor) {
	names := []protoreflect.Name{"cluster", "cluster_name", "collector_cluster"}
	switch d.FullName() {
	case clusterWeight:
		names = []protoreflect.Name{"name"}
	case lookup:
		names = []protoreflect.Name{"default_target"}
	case node:
		return nil // its cluster means something else
	}
	for _, name := range names {
		if fd := d.Fields().ByName(name); fd != nil && fd.Kind() == protoreflect.StringKind && !fd.IsList() {
			all = append(all, fd)
		}
	}
	return all
}
