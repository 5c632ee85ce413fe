package patch

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
)

// cluster patches a Cluster. It returns false if the cluster is removed.
func (w *work) cluster(c *clusterv3.Cluster) bool {
	for _, p := range w.of(networking.EnvoyFilter_CLUSTER) {
		if !clusterMatch(w.name, p.Match.GetCluster()) {
			continue
		}
		w.done(p)
		if p.Operation == networking.EnvoyFilter_Patch_REMOVE {
			return false
		}
		w.mergeCluster(c, p)
		if c.GetName() != w.name {
			w.note(p, problem.Warning, "patch", "patch.value.name", "a cluster keeps its name: routes call it by that", "remove the name, or add a cluster", "the name is ignored")
			c.Name = w.name
		}
	}
	return true
}

// mergeCluster merges a patch into a cluster. The socket of a patch goes to that of the same
// name among those from which the cluster chooses: beside these Envoy would ignore it.
func (w *work) mergeCluster(c *clusterv3.Cluster, p *index.Patch) {
	v := p.Value.(*clusterv3.Cluster)
	if v.GetTransportSocket() == nil || len(c.GetTransportSocketMatches()) == 0 || len(v.GetTransportSocketMatches()) > 0 {
		merge(c, p)
		return
	}
	found := false
	for _, m := range c.GetTransportSocketMatches() {
		if m.GetTransportSocket().GetName() == v.GetTransportSocket().GetName() {
			merger{p.Operation == networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST}.message(m.GetTransportSocket().ProtoReflect(), v.GetTransportSocket().ProtoReflect())
			found = true
			break
		}
	}
	if !found {
		w.note(p, problem.Warning, "patch", "patch.value.transport_socket",
			"the cluster chooses its socket by transport_socket_matches, and none has the name "+v.GetTransportSocket().GetName(),
			"patch transport_socket_matches", "clusters that choose their socket keep it")
	}
	rest := *p
	without := value[*clusterv3.Cluster](p)
	without.TransportSocket = nil
	rest.Value = without
	merge(c, &rest)
}

// clusterMatch reports whether a cluster matches (EF-6). A name decides alone, as in Istio.
func clusterMatch(name string, m *networking.EnvoyFilter_ClusterMatch) bool {
	if m.GetName() != "" {
		return m.GetName() == name
	}
	_, subset, host, port := clusterParts(name)
	return (m.GetSubset() == "" || m.GetSubset() == subset) && (m.GetService() == "" || m.GetService() == host) &&
		(m.GetPortNumber() == 0 || m.GetPortNumber() == port)
}
