package index

import (
	"slices"
	"strings"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/proxy"
)

// ServiceID names a service: a host name, which several namespaces may hold.
type ServiceID struct{ Namespace, Hostname string }

// Service is a host that proxies may call, as registries and ServiceEntries
// give it, several of one host merged. It is immutable, and knows nothing of
// its endpoints: those change more often.
type Service struct {
	ServiceID
	// Key is the object that it comes from, of several the one that wins.
	Key     ident.Key
	Created time.Time
	// Kubernetes says that it comes from a registry of services, not from a
	// ServiceEntry.
	Kubernetes bool
	// Addresses are virtual IPs or CIDRs, in the source's order; none: it is
	// called by name alone. Of several clusters they are those of the one that
	// wins.
	Addresses []string
	// Clusters is where a Service of Kubernetes is, by name.
	Clusters   []ServiceCluster
	Ports      []Port // of the TCP family, by number
	Resolution Resolution
	// Headless: a Kubernetes service without a virtual IP, which sidecars pass
	// through and routers find endpoints of (SVC-3).
	Headless bool
	// AliasOf is the host that this one stands for; such a service has nothing
	// else and is listed nowhere (SVC-4).
	AliasOf string
	// External says that it is no part of the mesh (MESH_EXTERNAL).
	External bool
	// Labels are those of the object.
	Labels map[string]string
	// Aliases are the hosts that stand for this one (SVC-4), sorted.
	Aliases []string
	// ExportTo is who may see it.
	ExportTo Visibility
	// SubjectAltNames are to be expected of its endpoints' certificates.
	SubjectAltNames []string
}

// ServiceCluster is a Kubernetes cluster that has a service, and the service's
// virtual IPs there (SVC-2).
type ServiceCluster struct {
	Name      string
	Addresses []string
}

// In is s as it is called in a Kubernetes cluster: by the virtual IPs that it
// has there, if it is there. Empty: in none that is known.
func (s *Service) In(cluster string) *Service {
	if i := s.cluster(cluster); i >= 0 && !slices.Equal(s.Clusters[i].Addresses, s.Addresses) {
		local := *s
		local.Addresses = s.Clusters[i].Addresses
		return &local
	}
	return s
}

// IsIn says whether it is a Service of that cluster.
func (s *Service) IsIn(cluster string) bool { return s.cluster(cluster) >= 0 }

func (s *Service) cluster(name string) int {
	return slices.IndexFunc(s.Clusters, func(c ServiceCluster) bool { return c.Name == name })
}

// Apart says whether two services of Kubernetes are in no cluster together, so
// that they may have the same virtual IP.
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
	// Target is the port of endpoints that do not say another; 0: Number.
	Target uint32
}

// Resolution says how the endpoints of a service are found.
type Resolution uint8

// Resolutions of services.
const (
	// Static: endpoints are addresses, which come by EDS (SVC-1, SE-5).
	Static Resolution = iota
	// DNS: endpoints are names, which proxies resolve (SE-6).
	DNS
	// DNSRoundRobin: one name, of which one address at a time is used (SE-7).
	DNSRoundRobin
	// Passthrough: proxies connect to where the caller wanted to (SVC-3, SE-4).
	Passthrough
	// DynamicDNS: the name is that of each request (SE-8).
	DynamicDNS
)

// Protocol is what is spoken on a port (SVC-7).
type Protocol uint8

// Protocols. The zero value is what is found out by looking (SVC-8).
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

// IsHTTP says whether requests can be seen: plain HTTP of any version.
func (p Protocol) IsHTTP() bool { return p == HTTP || p.IsHTTP2() || p == GRPCWeb }

// IsHTTP2 says whether endpoints are spoken to in HTTP/2.
func (p Protocol) IsHTTP2() bool { return p == HTTP2 || p == GRPC || p == GRPCWeb }

// IsTLS says whether what is spoken is encrypted by the caller.
func (p Protocol) IsTLS() bool { return p == HTTPS || p == TLS }

// IsTCP says whether only connections can be seen.
func (p Protocol) IsTCP() bool { return p >= HTTPS }

// Visibility is who may see an object: namespaces, "." its own, "*" all, "~"
// nobody (VIS-1). Sorted; never empty in a PushContext.
type Visibility []string

// Health of an endpoint.
type Health uint8

// Health of endpoints.
const (
	Healthy Health = iota
	Unhealthy
	Draining
)

// Endpoint is one place where a service's port is reached. It is immutable.
type Endpoint struct {
	// Address is an IP, "unix://path", or with DNS resolution a host name;
	// empty: it is reached by the gateways of its network only.
	Address  string
	Port     uint32 // of the endpoint
	Labels   map[string]string
	Locality proxy.Locality
	Weight   uint32 // at least 1
	Health   Health
	// Network that it is in (NET-4); empty: every proxy can call it.
	Network string
	// ClusterID is the Kubernetes cluster, or other instance, of its source.
	ClusterID string
	// Kubernetes says that ClusterID is that of a Kubernetes cluster.
	Kubernetes     bool
	Node           string
	ServiceAccount string
	// MutualTLS: it speaks Istio's mutual TLS.
	MutualTLS bool
	// Workload is namespace and name of what it belongs to, for people.
	WorkloadNamespace, Workload string
}

// Endpoints are those of one service, by the number of the service's port.
// Sorted by address, port and network, without doubles (EPS-3).
type Endpoints map[uint32][]Endpoint

// VirtualServiceHead is what decides where a VirtualService applies; its
// content is read by itself.
type VirtualServiceHead struct {
	Key     ident.Key
	Created time.Time
	// Hosts in full (VS-1), as the object orders them.
	Hosts []string
	// Gateways: "mesh", or namespace/name (VS-2). Sorted.
	Gateways []string
	// HTTP, TLS and TCP say which kinds of routes it has.
	HTTP, TLS, TCP bool
	// Delegates: some of its routes are what another VirtualService says
	// (VS-4), with destinations and sources that are not listed here.
	Delegates bool
	// Destinations are the hosts that it names as destinations, mirrors
	// included, in full. Sorted.
	Destinations []string
	// Sources are the selectors of sources that its matches name (VSM-10),
	// those of SourceSelector but the empty one. Sorted.
	Sources []string
}

// RuleID names DestinationRules of one host that are merged (DR-2).
type RuleID struct {
	Namespace, Host string
	// Name is that of the oldest one.
	Name string
}

// Scope is from where a proxy looks at the mesh: for each kind the namespace
// whose view differs from what everybody sees, or "" where it does not. Equal
// scopes see equal objects. (A Sidecar resource will have a scope of its own.)
type Scope struct {
	Services, VirtualServices, Rules string
}

// FQDN completes a short host name with the namespace of the object that says
// it: names without a dot are Kubernetes services (VS-1, DR-3), but IPv6 addresses
// are not.
func FQDN(host, namespace, domainSuffix string) string {
	if host == "" || host == "*" || strings.ContainsAny(host, ".:") {
		return host
	}
	return host + "." + namespace + ".svc." + domainSuffix
}
