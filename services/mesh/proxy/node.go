package proxy

import (
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// Node returns a node from which NewProxy makes an equal Proxy: the part of the
// client's node that decides what it is served.
func (p *Proxy) Node() *corev3.Node {
	n := &corev3.Node{Id: p.ID, Cluster: p.Cluster, Metadata: p.Metadata}
	if p.Locality != (Locality{}) {
		n.Locality = &corev3.Locality{Region: p.Locality.Region, Zone: p.Locality.Zone, SubZone: p.Locality.SubZone}
	}
	name, version, _ := strings.Cut(p.UserAgent, " ")
	n.UserAgentName = name
	if version != "" {
		n.UserAgentVersionType = &corev3.Node_UserAgentVersion{UserAgentVersion: version}
	}
	return n
}
