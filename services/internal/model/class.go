package model

import (
	"fmt"
	"strings"
)

// ResourceType is a type of xDS resources. Their order is the one in which a
// change is pushed: make before break.
type ResourceType uint8

// The types that are served.
const (
	CDS ResourceType = iota
	EDS
	LDS
	RDS
	// ResourceTypes is how many there are.
	ResourceTypes
)

var resourceTypes = [ResourceTypes]struct{ short, url, message string }{
	CDS: {"CDS", "type.googleapis.com/envoy.config.cluster.v3.Cluster", "Cluster"},
	EDS: {"EDS", "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment", "ClusterLoadAssignment"},
	LDS: {"LDS", "type.googleapis.com/envoy.config.listener.v3.Listener", "Listener"},
	RDS: {"RDS", "type.googleapis.com/envoy.config.route.v3.RouteConfiguration", "RouteConfiguration"},
}

// String is the service's short name: CDS.
func (t ResourceType) String() string { return resourceTypes[t].short }

// URL is the type URL on the wire.
func (t ResourceType) URL() string { return resourceTypes[t].url }

// Message is the message's short name, as users know it: Cluster.
func (t ResourceType) Message() string { return resourceTypes[t].message }

// ResourceTypeOf finds a type by its URL.
func ResourceTypeOf(url string) (ResourceType, bool) {
	for t := range ResourceTypes {
		if resourceTypes[t].url == url {
			return t, true
		}
	}
	return 0, false
}

// SelectorSet is which node selectors matched a proxy: their texts, sorted, a
// line each. Labels and other words of a proxy never enter a class, only
// which selectors they match.
type SelectorSet string

// Selectors are the texts in the set.
func (s SelectorSet) Selectors() []string {
	if s == "" {
		return nil
	}
	return strings.Split(string(s), "\n")
}

// ProxyClass is all that generation may know of a proxy, by type. Proxies of
// equal class get the same bytes.
type ProxyClass struct {
	CDS CDSClass
	EDS EDSClass
	LDS LDSClass
	RDS RDSClass
}

// Client is what kind of client a proxy is, as far as it matters to what it is
// served.
type Client uint8

// The kinds of clients.
const (
	ClientRouter Client = iota
	ClientSidecar
	ClientGRPC
)

// CDSClass is what Clusters depend on.
type CDSClass struct {
	Client Client
	Scope  Scope // Services, Rules
	Raw    SelectorSet
}

// EDSClass is what ClusterLoadAssignments depend on.
type EDSClass struct {
	Client Client
	Scope  Scope // Services, Rules
	Raw    SelectorSet
}

// LDSClass is what Listeners depend on.
type LDSClass struct {
	Client Client
	Scope  Scope // Services, VirtualServices
	// Bind says that nothing redirects a sidecar's connections, so that its
	// listeners have ports of their own (LSN-12: INTERCEPTION_MODE NONE).
	Bind bool
	// Sources is which sourceLabels and sourceNamespaces of VirtualServices
	// with routes for connections match (VST-3).
	Sources SelectorSet
	// Gateways is which selectors of Gateways match a router.
	Gateways SelectorSet
	Raw      SelectorSet
}

// RDSClass is what RouteConfigurations depend on.
type RDSClass struct {
	Client Client
	Scope  Scope // all
	// Namespace is in which services are called by their bare names; empty
	// where there are none.
	Namespace string
	// Sources is which sourceLabels and sourceNamespaces of VirtualServices
	// match (VSM-10).
	Sources  SelectorSet
	Gateways SelectorSet
	Raw      SelectorSet
}

// Only is c with what concerns other types than t left out: the class of t.
func (c ProxyClass) Only(t ResourceType) ProxyClass {
	switch t {
	case CDS:
		return ProxyClass{CDS: c.CDS}
	case EDS:
		return ProxyClass{EDS: c.EDS}
	case LDS:
		return ProxyClass{LDS: c.LDS}
	case RDS:
		return ProxyClass{RDS: c.RDS}
	}
	return ProxyClass{}
}

// Raw is the selectors of raw resources of type t that matched.
func (c ProxyClass) Raw(t ResourceType) SelectorSet {
	return [ResourceTypes]SelectorSet{CDS: c.CDS.Raw, EDS: c.EDS.Raw, LDS: c.LDS.Raw, RDS: c.RDS.Raw}[t]
}

// String is for people: the selectors that matched, whatever their type.
func (c ProxyClass) String() string {
	var all []string
	seen := map[string]bool{}
	for t := range ResourceTypes {
		for _, s := range c.Raw(t).Selectors() {
			if !seen[s] {
				seen[s] = true
				all = append(all, s)
			}
		}
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, "; ")
}

// Classify says which class p is of. It costs one match a distinct selector.
func Classify(pc *PushContext, p *Proxy) ProxyClass {
	var sets [ResourceTypes]strings.Builder
	for _, s := range pc.selectors {
		if !s.Matches(p) {
			continue
		}
		for t := range ResourceTypes {
			if _, used := pc.cells[cellKey{t, s.text}]; !used {
				continue
			}
			if sets[t].Len() > 0 {
				sets[t].WriteByte('\n')
			}
			sets[t].WriteString(s.text)
		}
	}
	return ProxyClass{
		CDS: CDSClass{Raw: SelectorSet(sets[CDS].String())},
		EDS: EDSClass{Raw: SelectorSet(sets[EDS].String())},
		LDS: LDSClass{Raw: SelectorSet(sets[LDS].String())},
		RDS: RDSClass{Raw: SelectorSet(sets[RDS].String())},
	}
}

func versionString(major, minor, patch uint32) string {
	return fmt.Sprintf("%d.%d.%d", major, minor, patch)
}
