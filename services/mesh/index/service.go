package index

import (
	"slices"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/proxy"
)

// ServiceID names a service: a host, which several namespaces may have.
type ServiceID struct{ Namespace, Hostname string }

// Service is a host that proxies may call, merged from the Services or
// ServiceEntries that claim it. It is immutable and has no endpoints, which
// change more often.
type Service struct {
	ServiceID
	// Key of its object, of several the winner's.
	Key     ident.Key
	Created time.Time
	// Kubernetes: it comes from a Service, not from a ServiceEntry.
	Kubernetes bool
	// Addresses are virtual IPs or CIDRs, in the source's order; none: it is
	// called by name only. Of several clusters they are the winner's.
	Addresses []string
	// Clusters that have the Kubernetes Service, by name.
	Clusters   []ServiceCluster
	Ports      []Port // of the TCP family, by number
	Resolution Resolution
	// Headless: a Kubernetes Service without virtual IP. Sidecars pass connections
	// through; routers find its endpoints (SVC-3).
	Headless bool
	// NodeLocal: proxies call endpoints on their own node only (SVC-10).
	NodeLocal bool
	// Distribution is PreferSameZone, PreferSameNode or empty (SVC-11).
	Distribution string
	// AliasOf is the host that an alias names; an alias has nothing else and is in
	// no list (SVC-4).
	AliasOf string
	// External: it is no part of the mesh (MESH_EXTERNAL).
	External bool
	// Labels of the object.
	Labels map[string]string
	// Selector holds the labels of the Pods that a Kubernetes Service selects;
	// empty: none.
	Selector map[string]string
	// Aliases are the hosts that name this one (SVC-4), sorted.
	Aliases []string
	// ExportTo are the namespaces that see it.
	ExportTo Visibility
	// SubjectAltNames are the expected names of its endpoints' certificates.
	SubjectAltNames []string
	// Clients in mutual TLS of the mesh accept certificates of these service accounts
	// (NAMESPACE/NAME) and of these full names (URIs), besides those of the accounts of the
	// endpoints (SVC-14). Sorted.
	Accounts, Identities []string
	// Partial: a Sidecar imports only some of its ports, and Ports has no others (SC-4).
	Partial bool
}

// ServiceCluster is a Kubernetes cluster of a service, with the service's
// virtual IPs there (SVC-2).
type ServiceCluster struct {
	Name      string
	Addresses []string
}

// In returns s as a Kubernetes cluster sees it: with its virtual IPs there. If
// it is not there, or the cluster is unknown (""), it returns s.
func (s *Service) In(cluster string) *Service {
	if i := s.cluster(cluster); i >= 0 && !slices.Equal(s.Clusters[i].Addresses, s.Addresses) {
		local := *s
		local.Addresses = s.Clusters[i].Addresses
		return &local
	}
	return s
}

// IsIn reports whether that cluster has the service.
func (s *Service) IsIn(cluster string) bool { return s.cluster(cluster) >= 0 }

func (s *Service) cluster(name string) int {
	return slices.IndexFunc(s.Clusters, func(c ServiceCluster) bool { return c.Name == name })
}

// Apart reports whether no cluster has both services, so that they may have the
// same virtual IP.
func (s *Service) Apart(o *Service) bool {
	return len(s.Clusters) > 0 && len(o.Clusters) > 0 &&
		!slices.ContainsFunc(s.Clusters, func(c ServiceCluster) bool { return o.IsIn(c.Name) })
}

// Port returns the port of that number.
func (s *Service) Port(number uint32) (Port, bool) {
	for _, p := range s.Ports {
		if p.Number == number {
			return p, true
		}
	}
	return Port{}, false
}

// Port of a service.
type Port struct {
	Number   uint32
	Name     string
	Protocol Protocol
	// Target is the port of endpoints that name no other; 0: Number.
	Target uint32
}

// Resolution is the way in which a service's endpoints are found.
type Resolution uint8

// Resolutions of services.
const (
	// Static: endpoints are addresses and come by EDS (SVC-1, SE-5).
	Static Resolution = iota
	// DNS: endpoints are names that proxies resolve (SE-6).
	DNS
	// DNSRoundRobin: one name, used one address at a time (SE-7).
	DNSRoundRobin
	// Passthrough: proxies connect to the address that the caller chose (SVC-3,
	// SE-4).
	Passthrough
	// DynamicDNS: each request names the host (SE-8).
	DynamicDNS
)

// Protocol of a port (SVC-7).
type Protocol uint8

// Protocols. The zero value is detected from the connection (SVC-8).
const (
	Sniffed Protocol = iota
	HTTP
	HTTP2
	GRPC
	GRPCWeb
	HTTPS
	TLS
	TCP
	Mongo
	MySQL
	Redis
)

// IsHTTP reports whether a proxy can see requests: plain HTTP of any version.
func (p Protocol) IsHTTP() bool { return p == HTTP || p.IsHTTP2() || p == GRPCWeb }

// IsHTTP2 reports whether endpoints are called in HTTP/2.
func (p Protocol) IsHTTP2() bool { return p == HTTP2 || p == GRPC || p == GRPCWeb }

// IsTLS reports whether the caller encrypts.
func (p Protocol) IsTLS() bool { return p == HTTPS || p == TLS }

// Visibility are the namespaces that see an object: "." its own, "*" all, "~"
// none (VIS-1). Sorted; never empty in a PushContext.
type Visibility []string

// Health of an endpoint.
type Health uint8

// Health of endpoints.
const (
	Healthy Health = iota
	Unhealthy
	Draining
)

// Endpoint is one address of a service's port. Immutable.
type Endpoint struct {
	// Address is an IP, "unix://path", or with DNS resolution a host; empty: only
	// the gateways of its network reach it.
	Address  string
	Port     uint32 // of the endpoint
	Labels   map[string]string
	Locality proxy.Locality
	Weight   uint32 // at least 1
	Health   Health
	// Network of the endpoint (NET-4); empty: every proxy can call it.
	Network string
	// ClusterID is the Kubernetes cluster, or other instance, of its source.
	ClusterID string
	// Kubernetes: ClusterID is a Kubernetes cluster.
	Kubernetes bool
	Node       string
	// MutualTLS: it speaks Istio's mutual TLS.
	MutualTLS bool
	// ServiceAccount of its workload, in the workload's namespace; empty: unknown.
	ServiceAccount string
	// Hostname is its name within a headless service; empty: none.
	Hostname string
	// WorkloadNamespace and Workload name its Pod or WorkloadEntry, for people.
	WorkloadNamespace, Workload string
}

// Endpoints of one service, by the number of the service's port. Sorted by
// address, port and network, each once (EPS-3).
type Endpoints map[uint32][]Endpoint

// VirtualServiceHead decides where a VirtualService applies; its content is
// read separately.
type VirtualServiceHead struct {
	Key     ident.Key
	Created time.Time
	// Hosts in full (VS-1), in the object's order.
	Hosts []string
	// Gateways: "mesh", or namespace/name (VS-2). Sorted.
	Gateways []string
	// HTTP, TLS and TCP: it has routes of that kind.
	HTTP, TLS, TCP bool
	// Delegates: some routes come from another VirtualService (VS-4), whose
	// destinations and sources are not listed here.
	Delegates bool
	// Destinations are the hosts of its destinations and mirrors, in full. Sorted.
	Destinations []string
	// Sources are the texts of SourceSelector for its matches (VSM-10), without
	// the empty one. Sorted.
	Sources []string
}

// RuleID names DestinationRules of one host that are merged (DR-2).
type RuleID struct {
	Namespace, Host string
	// Name of the oldest.
	Name string
}

// Scope is a proxy's view of the mesh: for each kind its namespace if that sees
// something of its own, or "" for the common view. Equal scopes see equal
// objects.
type Scope struct {
	Services, VirtualServices, Rules string
	// Selected are the workload selectors of DestinationRules in Rules that the
	// proxy matches (DR-23).
	Selected SelectorSet `json:",omitempty"`
	// Imports is the Sidecar that says what the proxy imports, with the proxy's namespace:
	// "NAMESPACE/NAME NAMESPACE". Services and VirtualServices are then empty. Empty: it
	// imports all that it sees.
	Imports string `json:",omitempty"`
}
