package index

import (
	"cmp"
	"slices"
	"strings"

	meshconfig "istio.io/api/mesh/v1alpha1"
)

// clusterLocal decides which hosts are cluster-local (NET-6). The most specific
// pattern wins, then the first.
type clusterLocal []localHosts

// localHosts is a pattern: a host, or a suffix behind a star.
type localHosts struct {
	pattern string // lower case
	local   bool
}

// clusterLocalOf reads MeshConfig, whose settings win over Istio's defaults:
// the parts of each cluster itself.
func clusterLocalOf(m *meshconfig.MeshConfig, domainSuffix string) clusterLocal {
	var all clusterLocal
	for _, s := range m.GetServiceSettings() {
		for _, h := range s.GetHosts() {
			all = append(all, localHosts{strings.ToLower(h), s.GetSettings().GetClusterLocal()})
		}
	}
	all = append(all, localHosts{"*.kube-system.svc." + domainSuffix, true}, localHosts{"kubernetes.default.svc." + domainSuffix, true})
	slices.SortStableFunc(all, func(a, b localHosts) int {
		if wild := isWildcard(a.pattern); wild != isWildcard(b.pattern) {
			if wild {
				return 1
			}
			return -1
		}
		return cmp.Compare(len(b.pattern), len(a.pattern))
	})
	return all
}

// has reports whether a host is cluster-local.
func (c clusterLocal) has(host string) bool {
	host = strings.ToLower(host)
	for _, p := range c {
		if p.pattern == host || isWildcard(p.pattern) && strings.HasSuffix(host, p.pattern[1:]) {
			return p.local
		}
	}
	return false
}
