package ident

// ResourceType is a type of xDS resources. Their order is the one in which a
// change is pushed: make before break. Secrets wait for nothing.
type ResourceType uint8

// The types that are served.
const (
	CDS ResourceType = iota
	EDS
	LDS
	RDS
	SDS
	// ResourceTypes is how many there are.
	ResourceTypes
)

var resourceTypes = [ResourceTypes]struct{ short, url, message string }{
	CDS: {"CDS", "type.googleapis.com/envoy.config.cluster.v3.Cluster", "Cluster"},
	EDS: {"EDS", "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment", "ClusterLoadAssignment"},
	LDS: {"LDS", "type.googleapis.com/envoy.config.listener.v3.Listener", "Listener"},
	RDS: {"RDS", "type.googleapis.com/envoy.config.route.v3.RouteConfiguration", "RouteConfiguration"},
	SDS: {"SDS", "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", "Secret"},
}

// String returns the service's short name: CDS.
func (t ResourceType) String() string { return resourceTypes[t].short }

// URL returns the type URL on the wire.
func (t ResourceType) URL() string { return resourceTypes[t].url }

// Message returns the message's short name, as users know it: Cluster.
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
