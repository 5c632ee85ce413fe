package index

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/table"
	"meshlog.dev/services/mesh/world"
)

const (
	meshNetworksKind = "MeshNetworks"
	networkLabel     = "topology.istio.io/network"
	// kubernetesSource is the source whose instances are Kubernetes clusters.
	kubernetesSource = "kubernetes"
)

// networkIndex finds the network of an endpoint and the gateways that lead to it.
type networkIndex struct {
	mesh       *meshconfig.MeshNetworks             // nil: there is none
	meshKey    ident.Key                            // its object
	registries map[string]string                    // networks by instance, from mesh
	blocks     []networkBlock                       // from mesh, the smallest first
	labelled   map[ident.Shard]string               // by the label of the root namespace
	entrances  table.Table[ident.Key, *entrance]    // Services that may be gateways
	nodes      table.Table[ident.Key, *outsideNode] // with external addresses
	gateways   NetworkGateways
}

type networkBlock struct {
	prefix  netip.Prefix
	network string
}

// outsideNode is a Node with external IPs.
type outsideNode struct {
	labels    map[string]string
	addresses []string
}

// of returns the network of a workload (NET-4): its own, else its cluster's,
// else the one of MeshNetworks. Empty: unknown.
func (x *networkIndex) of(s ident.Shard, said, address string) string {
	return cmp.Or(said, x.ofShard(s), x.ofAddress(address))
}

// ofShard returns the network of a shard's workloads that name none.
func (x *networkIndex) ofShard(s ident.Shard) string {
	return cmp.Or(x.labelled[s], x.registries[s.Instance])
}

// ofAddress returns the network of an IP by the blocks of MeshNetworks.
func (x *networkIndex) ofAddress(address string) string {
	if len(x.blocks) == 0 {
		return ""
	}
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return ""
	}
	for _, b := range x.blocks {
		if b.prefix.Contains(ip.Unmap()) {
			return b.network
		}
	}
	return ""
}

// read reads MeshNetworks; nil: none.
func (x *networkIndex) read(m *meshconfig.MeshNetworks) {
	x.mesh, x.registries, x.blocks = m, make(map[string]string), nil
	for _, name := range slices.Sorted(maps.Keys(m.GetNetworks())) {
		for _, e := range m.GetNetworks()[name].GetEndpoints() {
			if r := e.GetFromRegistry(); r != "" && x.registries[r] == "" {
				x.registries[r] = name
			}
			if p, err := netip.ParsePrefix(e.GetFromCidr()); err == nil {
				x.blocks = append(x.blocks, networkBlock{p.Masked(), name})
			}
		}
	}
	slices.SortStableFunc(x.blocks, func(a, b networkBlock) int { return cmp.Compare(b.prefix.Bits(), a.prefix.Bits()) })
}

// networkEdit makes one networkIndex from another.
type networkEdit struct {
	*transition
	from       networkIndex
	entrances  *table.Edit[ident.Key, *entrance]
	nodes      *table.Edit[ident.Key, *outsideNode]
	relabelled map[ident.Shard]string // shards whose root namespace changed
	outside    bool                   // external addresses may differ
}

// next returns the index after changes. Moved reports the shards whose workloads
// may be in other networks than before; nil: none.
func (x networkIndex) next(t *transition, w *world.World, changes map[string][]change) (next networkIndex, moved func(ident.Shard) bool) {
	e := &networkEdit{
		transition: t, from: x, entrances: x.entrances.Edit(), nodes: x.nodes.Edit(), relabelled: make(map[ident.Shard]string),
	}
	for _, c := range changes[world.NamespaceKind] {
		if c.Name == t.rootNamespace { // its label is its cluster's network (NS-1)
			e.relabelled[c.Shard()] = metadataOf(c.is).Metadata.Labels[networkLabel]
		}
	}
	for _, c := range changes[world.NodeKind] {
		var n *outsideNode
		if m := metadataOf(c.is); len(m.ExternalIPs) > 0 {
			n = &outsideNode{m.Metadata.Labels, m.ExternalIPs}
		}
		setOutside(e, e.nodes, c.Key, n)
	}
	for _, c := range changes[world.ServiceKind] {
		var s *entrance
		if c.is != nil {
			if m, ok := c.is.Message.(*registryv1.Service); ok {
				s = t.newEntrance(c.Key, m)
			}
		}
		setOutside(e, e.entrances, c.Key, s)
	}
	return e.done(w)
}

// setOutside sets the value of a key; nil: none. External addresses differ
// unless there was none either.
func setOutside[V any](e *networkEdit, to *table.Edit[ident.Key, *V], k ident.Key, v *V) {
	if v != nil || to.Get(k) != nil {
		to.Keep(k, v, v != nil)
		e.outside = true
	}
}

func (e *networkEdit) done(w *world.World) (x networkIndex, moved func(ident.Shard) bool) {
	x = e.from
	var mesh *meshconfig.MeshNetworks
	if o := w.Winner(ident.Key{Kind: meshNetworksKind, Name: world.CountedName}); o != nil {
		mesh, _ = o.Message.(*meshconfig.MeshNetworks)
		e.outside = e.outside || o.Key != x.meshKey
		x.meshKey = o.Key
	}
	if mesh != x.mesh && !proto.Equal(mesh, x.mesh) {
		x.read(mesh)
		moved = func(ident.Shard) bool { return true }
		e.outside = true
	}
	for shard, network := range e.relabelled {
		if network == x.labelled[shard] {
			delete(e.relabelled, shard)
		}
	}
	if len(e.relabelled) > 0 {
		x.labelled = table.CloneMap(x.labelled)
		maps.Copy(x.labelled, e.relabelled)
		maps.DeleteFunc(x.labelled, func(_ ident.Shard, network string) bool { return network == "" })
		if moved == nil {
			moved = func(s ident.Shard) bool { _, ok := e.relabelled[s]; return ok }
		}
	}
	e.reclassify(moved != nil)
	if e.outside {
		x.entrances, x.nodes = e.entrances.Table, e.nodes.Table
		e.doneGateways(&x)
	}
	return x, moved
}

// metadata of a Node or Namespace, which are registry.v1.Objects.
type metadata struct {
	Metadata struct {
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	ExternalIPs []string `json:"externalIPs"`
}

func metadataOf(o *world.Object) (m metadata) {
	if o == nil {
		return m
	}
	if whole, ok := o.Message.(*registryv1.Object); ok && json.Unmarshal(whole.GetJson(), &m) != nil {
		return metadata{} // another kind of object
	}
	return m
}

// networkOf returns the network of a proxy: by its metadata or labels, else its
// cluster's, else by its address.
func (pc *PushContext) networkOf(p *proxy.Proxy) string {
	said := cmp.Or(p.Text("NETWORK"), p.Labels[networkLabel])
	var address string
	if ips := p.Addresses(); len(ips) > 0 {
		address = ips[0].String()
	}
	return pc.networks.of(ident.Shard{Source: kubernetesSource, Instance: p.ClusterID}, said, address)
}
