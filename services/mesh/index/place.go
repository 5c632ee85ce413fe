package index

import (
	"cmp"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
)

// Place is where a proxy is among the endpoints that it calls: near ones come first
// (LOC-2, SVC-11, DR-14), or are the only ones (SVC-10). It holds what makes a difference
// in the world, so that proxies of one zone share a class.
type Place struct {
	Locality proxy.Locality `json:",omitzero"`
	// Labels are lines of label=value: those that rules compare with the labels of endpoints,
	// without those of Locality. Sorted.
	Labels string `json:",omitempty"`
	// Node is the proxy's, set only if some Service is called on its own node (SVC-10).
	Node string `json:",omitempty"`
}

// Labels that stand for where a workload is. Kubernetes' and Istio's.
const (
	RegionLabel  = "topology.kubernetes.io/region"
	ZoneLabel    = "topology.kubernetes.io/zone"
	SubZoneLabel = "topology.istio.io/subzone"
	NetworkLabel = "topology.istio.io/network"
	ClusterLabel = "topology.istio.io/cluster"
	HostLabel    = "kubernetes.io/hostname"
)

// Values of Service.Distribution.
const (
	PreferSameZone = "PreferSameZone"
	PreferSameNode = "PreferSameNode"
)

// nodeLocal stands among the distributions for internalTrafficPolicy Local.
const nodeLocal = "Local"

// nodeName is the metadata that says on which node a proxy is.
const nodeName = "NODE_NAME"

// distributions returns what a Service says about near endpoints.
func (s *Service) distributions() []string {
	var all []string
	if s.NodeLocal {
		all = append(all, nodeLocal)
	}
	if s.Distribution != "" {
		all = append(all, s.Distribution)
	}
	return all
}

// distributionAnnotation of a Namespace counts for its Services that say nothing themselves.
const distributionAnnotation = "networking.istio.io/traffic-distribution"

// distributionOf returns what a Namespace says about near endpoints; "": nothing.
func distributionOf(o *world.Object) string {
	switch d := metadataOf(o).Metadata.Annotations[distributionAnnotation]; d {
	case "PreferClose":
		return PreferSameZone
	case PreferSameZone, PreferSameNode:
		return d
	}
	return ""
}

// placeOfProxy returns where a proxy is, as far as it makes a difference.
func (pc *PushContext) placeOfProxy(p *proxy.Proxy) Place {
	var at Place
	if pc.services.places.Get(nodeLocal) > 0 {
		at.Node = p.Text(nodeName)
	}
	if !pc.ranks() {
		return at
	}
	at.Locality = localityOfProxy(p)
	keys := pc.rules.compared.Names()
	for _, c := range pc.mesh.GetLocalityLbSetting().GetFailoverPriority() {
		keys = append(keys, labelOf(c))
	}
	if pc.services.places.Get(PreferSameZone)+pc.services.places.Get(PreferSameNode) > 0 && pc.endpoints.networks.Len() > 0 {
		keys = append(keys, NetworkLabel)
	}
	if pc.services.places.Get(PreferSameNode) > 0 {
		keys = append(keys, HostLabel)
	}
	var lines []string
	for _, key := range sortUnique(keys) {
		if value := pc.labelOfProxy(p, key); value != "" {
			lines = append(lines, key+"="+value)
		}
	}
	at.Labels = strings.Join(lines, "\n")
	return at
}

// labelOfProxy returns the value of a label, "" for those of its locality.
func (pc *PushContext) labelOfProxy(p *proxy.Proxy, label string) string {
	switch label {
	case RegionLabel, ZoneLabel, SubZoneLabel:
		return ""
	case NetworkLabel:
		return pc.networkOf(p)
	case ClusterLabel:
		return p.ClusterID
	case HostLabel:
		return p.Text(nodeName)
	}
	return p.Labels[label]
}

// localityOfProxy returns the locality that a proxy's labels name, else that of its Pod and its node
// message (LOC-1).
func localityOfProxy(p *proxy.Proxy) proxy.Locality {
	text := cmp.Or(p.Labels["topology.istio.io/locality"], p.Labels["istio-locality"])
	if text == "" {
		return p.Locality
	}
	if !strings.Contains(text, "/") {
		text = strings.ReplaceAll(text, ".", "/")
	}
	return parseLocality(text)
}

// words describe the place for people.
func (at Place) words() []string {
	var all []string
	if l := at.Locality; l != (proxy.Locality{}) {
		all = append(all, "in "+strings.TrimRight(l.Region+"/"+l.Zone+"/"+l.SubZone, "/"))
	}
	if at.Node != "" {
		all = append(all, "on "+at.Node)
	}
	if at.Labels != "" {
		all = append(all, "with "+strings.ReplaceAll(at.Labels, "\n", ", "))
	}
	return all
}

// Label returns the value of a label of the proxy; "": it has none.
func (at Place) Label(label string) string {
	switch label {
	case RegionLabel:
		return at.Locality.Region
	case ZoneLabel:
		return at.Locality.Zone
	case SubZoneLabel:
		return at.Locality.SubZone
	}
	for line := range strings.SplitSeq(at.Labels, "\n") {
		if value, ok := strings.CutPrefix(line, label+"="); ok {
			return value
		}
	}
	return ""
}

// Label returns the value of a label of the endpoint, or of where it is.
func (e *Endpoint) Label(label string) string {
	switch label {
	case RegionLabel:
		return e.Locality.Region
	case ZoneLabel:
		return e.Locality.Zone
	case SubZoneLabel:
		return e.Locality.SubZone
	case NetworkLabel:
		return e.Network
	case ClusterLabel:
		return e.ClusterID
	case HostLabel:
		return e.Node
	}
	return e.Labels[label]
}

// labelOf returns the label of an entry of failoverPriority, which may have a value too.
func labelOf(entry string) string {
	label, _, _ := strings.Cut(entry, "=")
	return label
}

// ranks reports whether some proxies prefer some endpoints of some service.
func (pc *PushContext) ranks() bool {
	return pc.rules.placed.Len() > 0 || pc.services.places.Get(PreferSameZone)+pc.services.places.Get(PreferSameNode) > 0 || pc.meshRanks()
}

// meshRanks reports whether the MeshConfig makes proxies prefer endpoints of any service.
func (pc *PushContext) meshRanks() bool {
	return len(pc.mesh.GetLocalityLbSetting().GetDistribute()) > 0 || pc.mesh.GetDefaultTrafficPolicy().GetOutlierDetection() != nil
}

// PlaceFor returns the part of a proxy's place on which the endpoints of a service depend,
// with the DestinationRules that count for it.
func (r *Reader) PlaceFor(at Place, s *Service, rule RuleID) Place {
	if at == (Place{}) {
		return at
	}
	r.note(Input{Kind: InputPlaces})
	var part Place
	if s.NodeLocal {
		part.Node = at.Node
	}
	if s.Distribution != "" || r.pc.meshRanks() || slices.Contains(r.pc.rules.placed.Get(ruleHost{rule.Namespace, rule.Host}), rule) {
		part.Locality, part.Labels = at.Locality, at.Labels
	}
	return part
}

// placing returns those of merged rules that make proxies prefer endpoints.
func placing(merged []*mergedRule) []RuleID {
	var all []RuleID
	for _, m := range merged {
		if slices.ContainsFunc(policiesOf(m.spec), ranksEndpoints) {
			all = append(all, m.id)
		}
	}
	return all
}

// comparedLabels returns the labels that merged rules compare, each as often as they name it.
func comparedLabels(merged []*mergedRule) []string {
	var all []string
	for _, m := range merged {
		for _, p := range policiesOf(m.spec) {
			for _, entry := range p.GetLoadBalancer().GetLocalityLbSetting().GetFailoverPriority() {
				all = append(all, labelOf(entry))
			}
		}
	}
	return all
}

func ranksEndpoints(p endpointPolicy) bool {
	return p.GetOutlierDetection() != nil || p.GetLoadBalancer().GetLocalityLbSetting() != nil
}

// endpointPolicy is the part of a policy that the choice of endpoints depends on.
type endpointPolicy interface {
	connectionPolicy
	GetOutlierDetection() *networking.OutlierDetection
}

// policiesOf returns the policies of a rule, of its ports and of its subsets.
func policiesOf(rule *networking.DestinationRule) []endpointPolicy {
	var all []endpointPolicy
	add := func(p *networking.TrafficPolicy) {
		if p == nil {
			return
		}
		all = append(all, p)
		for _, port := range p.GetPortLevelSettings() {
			all = append(all, port)
		}
	}
	add(rule.GetTrafficPolicy())
	for _, s := range rule.GetSubsets() {
		add(s.GetTrafficPolicy())
	}
	return all
}
