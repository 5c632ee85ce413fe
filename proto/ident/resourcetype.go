package ident

// ResourceType is a type of xDS resources. Their order is the one in which a
// change is pushed: make before break. Filters that come apart from their listeners
// (ECDS) are before the listeners that name them, and after the clusters that they
// name. Secrets, and the names that agents answer by DNS (NDS), wait for nothing.
type ResourceType uint8

// The types that are served.
const (
	CDS ResourceType = iota
	EDS
	ECDS
	LDS
	RDS
	SDS
	NDS
	// ResourceTypes is how many there are.
	ResourceTypes
)

var resourceTypes = [ResourceTypes]struct{ short, url, message string }{
	CDS:  {"CDS", "type.googleapis.com/envoy.config.cluster.v3.Cluster", "Cluster"},
	EDS:  {"EDS", "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment", "ClusterLoadAssignment"},
	ECDS: {"ECDS", "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig", "TypedExtensionConfig"},
	LDS:  {"LDS", "type.googleapis.com/envoy.config.listener.v3.Listener", "Listener"},
	RDS:  {"RDS", "type.googleapis.com/envoy.config.route.v3.RouteConfiguration", "RouteConfiguration"},
	NDS:  {"NDS", "type.googleapis.com/istio.networking.nds.v1.NameTable", "NameTable"},
	SDS:  {"SDS", "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", "Secret"},
}

// String returns the service's short name: CDS.
func (t ResourceType) String() string { return resourceTypes[t].short }

// URL returns the type URL on the wire.
func (t ResourceType) URL() string { return resourceTypes[t].url }

// Message returns the message's short name, as users know it: Cluster.
func (t ResourceType) Message() string { return resourceTypes[t].message }

// Wildcard reports whether clients may ask for all resources of the type. Of the others
// they name each.
func (t ResourceType) Wildcard() bool { return t == CDS || t == LDS || t == NDS }

// ResourceTypeOf finds a type by its URL.
func ResourceTypeOf(url string) (ResourceType, bool) {
	for t := range ResourceTypes {
		if resourceTypes[t].url == url {
			return t, true
		}
	}
	return 0, false
}
