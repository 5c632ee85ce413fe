// Package callee finds the services that proxies call themselves, for authorizers, keys of
// token issuers, access logs and traces, and the clusters by which proxies reach them.
//
// It is pure.
package callee

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"meshlog.dev/services/mesh/hostname"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/xds/piece"
)

// Provider names an extension provider of MeshConfig in a reason, as what names a service.
const Provider = "the provider"

// Caller is what proxies that call a service have in common. From makes it.
type Caller struct {
	Scope  index.Scope // in which they see services: Services or Imports
	Router bool
}

// From returns the proxies that see the services of a scope, or those that a Sidecar imports.
func From(services, imports string, router bool) Caller {
	return Caller{index.Scope{Services: services, Imports: imports}, router}
}

// sees names the proxies for people.
func (c Caller) sees() string {
	switch {
	case c.Scope.Imports != "":
		_, home, _ := strings.Cut(c.Scope.Imports, " ")
		return "namespace " + home
	case c.Scope.Services == "":
		return "all namespaces"
	}
	return "namespace " + c.Scope.Services
}

// Callee is a service as proxies can call it.
type Callee struct {
	Host    string
	Cluster string
}

// Find returns the service of a provider, NAMESPACE/HOST or HOST, or says why proxies cannot
// call it, and what to do. http2: it is called by gRPC.
func Find(r *index.Reader, service string, port uint32, http2 bool, from Caller) (found Callee, reason, advice string) {
	namespace, host, both := strings.Cut(service, "/")
	if !both {
		namespace, host = "", namespace
	}
	s, reason, advice := Service(r, namespace, host, from, Provider)
	if s == nil {
		return Callee{}, reason, advice
	}
	p, reason, advice := Port(s, host, port, from, Provider)
	switch {
	case reason != "":
		return Callee{}, reason, advice
	case http2 && !p.Protocol.IsHTTP2():
		return Callee{}, fmt.Sprintf("port %d of the service %s/%s is not known as HTTP/2, which gRPC needs", port, s.Namespace, host),
			"give the port a name that begins with grpc, or the protocol GRPC"
	}
	return Callee{host, piece.ClusterName(host, "", port)}, "", ""
}

// At returns the service at an address, HOST:PORT, or says why proxies cannot call it. A host
// may be NAME.NAMESPACE of a Kubernetes Service.
func At(r *index.Reader, address string, http2 bool, from Caller) (found Callee, reason, advice string) {
	const write = "write HOST:PORT of a service of the mesh"
	if address == "" {
		return Callee{}, "there is no address", write
	}
	host, text, _ := strings.Cut(address, ":")
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || host == "" {
		return Callee{}, fmt.Sprintf("%q is no host and port", address), write
	}
	if all, _ := r.ServicesOfHost(from.Scope, host); len(all) == 0 && strings.Count(host, ".") == 1 {
		host += hostname.Suffix(r.DomainSuffix())
	}
	return Find(r, host, uint32(port), http2, from)
}

// GRPC returns how Envoy calls the service by gRPC. Its host is the authority: Envoy's default
// is the cluster's name, whose bars servers refuse.
func (c Callee) GRPC() *corev3.GrpcService {
	return &corev3.GrpcService{
		TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: c.Cluster, Authority: c.Host}},
	}
}

// Port returns the port of a service whose cluster proxies can call themselves, or says
// why there is none. named is the field or object that names the port, for the advice.
func Port(s *index.Service, host string, port uint32, from Caller, named string) (p index.Port, reason, advice string) {
	name := s.Namespace + "/" + host
	p, known := s.Port(port)
	switch {
	case s.AliasOf != "":
		return p, fmt.Sprintf("the service %s is another name of %s", name, s.AliasOf), "write that host into " + named
	case !known:
		return p, fmt.Sprintf("the service %s has no port %d", name, port), "correct " + named + "'s port, or add it to the service"
	case s.Resolution == index.DynamicDNS, s.Resolution == index.Passthrough && !(from.Router && s.Headless):
		return p, fmt.Sprintf("the service %s has no endpoints of its own: callers choose the address", name),
			"name a service with an address, or one with resolution STATIC or DNS"
	}
	return p, "", ""
}

// Service returns the service that a provider or another object names. A proxy sees one service of a
// host, and its cluster has the host's name only: it must be the service that is meant,
// so that a namespace with a service of that host does not decide about its own requests.
// A host without namespace is that of the only service, as in Istio.
func Service(r *index.Reader, namespace, host string, from Caller, named string) (s *index.Service, reason, advice string) {
	all, seen := r.ServicesOfHost(from.Scope, host)
	if namespace != "" {
		all = slices.DeleteFunc(slices.Clone(all), func(s *index.Service) bool { return s.Namespace != namespace })
	}
	switch {
	case len(all) == 0 && namespace != "":
		return nil, fmt.Sprintf("namespace %s has no service %s", namespace, host), "add the service, or correct " + named
	case len(all) == 0:
		return nil, fmt.Sprintf("there is no service %s", host), "add the service, or correct " + named
	case len(all) > 1:
		var names []string
		for _, s := range all {
			names = append(names, s.Namespace)
		}
		slices.Sort(names)
		advice = "name a host that no other namespace has"
		if named == Provider {
			advice = "write NAMESPACE/" + host + " into the provider"
		}
		return nil, fmt.Sprintf("the namespaces %s have a service %s", strings.Join(names, ", "), host), advice
	case seen == nil && from.Scope.Imports != "":
		sidecar, _, _ := strings.Cut(from.Scope.Imports, " ")
		return nil, fmt.Sprintf("the egress hosts of Sidecar %s do not import %s/%s", sidecar, all[0].Namespace, host), "add the host to them"
	case seen == nil:
		return nil, fmt.Sprintf("the service %s/%s is not exported to %s", all[0].Namespace, host, from.sees()), "export it to them"
	case seen.ServiceID != all[0].ServiceID:
		return nil, fmt.Sprintf("for proxies of %s the host %s is a service of namespace %s", from.sees(), host, seen.Namespace),
			"name a host that no other namespace has"
	}
	return all[0], "", ""
}
