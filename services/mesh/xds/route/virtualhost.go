package route

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/hostname"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
)

// virtualHost is the part for a sidecar's virtual host: a service, or a host
// that only a VirtualService has.
type virtualHost struct {
	routes  string
	service index.ServiceID // zero: none
	host    string
	port    uint32
	// own: the service is in the callers' namespace, so its bare name is a domain.
	own bool
	// cluster of the callers, if the service has other virtual IPs there.
	cluster string
	// alone: no other service's requests arrive, so the host does not matter.
	alone bool
	// grpc: for gRPC clients.
	grpc bool
	// withPort: domains contain the port, because hosts of other ports are in the
	// same RouteConfiguration.
	withPort bool
	// without are the domains that other virtual hosts have, one per line.
	without string

	// rule of the service, which counts if no VirtualService decides.
	rule index.RuleID
	// virtualService decides for these callers, unless it is zero.
	virtualService ident.Key
	caller         Caller
}

func (h virtualHost) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	var service *index.Service
	if h.service != (index.ServiceID{}) {
		if service = r.Service(h.service); service == nil {
			return nil, nil
		}
		service = service.In(h.cluster)
	}
	domains, problems := h.settled(r, service)
	if len(domains) == 0 {
		return nil, problems
	}
	routes, found := h.translate(r)
	problems = append(problems, found...)
	if len(routes) == 0 {
		if service == nil {
			return nil, problems
		}
		routes = []*routev3.Route{h.fallback(r, service)}
	}
	return partialHost(h.routes, &routev3.VirtualHost{Name: hostPort(h.host, h.port), Domains: domains, Routes: routes}), problems
}

// domains appends the domains, the host first.
func (h *virtualHost) domains(all []string, s *index.Service, suffix string) []string {
	if s == nil {
		all = appendAbsolute(append(all, written(h.host)), h.host)
	} else {
		all = appendDomains(all, s, suffix, h.own)
	}
	if !h.withPort {
		return all
	}
	bare := slices.Clone(all)
	for i, d := range bare {
		all[i] = hostPort(d, h.port)
	}
	if h.port == 80 {
		all = append(all, bare...)
	}
	return all
}

// form returns how a domain names the virtual host.
func (h *virtualHost) form(domain string) form {
	rest, ok := strings.CutPrefix(domain, written(h.host))
	if port := strings.IndexByte(rest, ':'); port >= 0 {
		rest = rest[:port]
	}
	switch {
	case ok && rest == "":
		return itself
	case ok && rest == ".":
		return absoluteForm
	}
	return otherForm
}

// settled returns the domains that the virtual host keeps.
func (h *virtualHost) settled(r *index.Reader, s *index.Service) ([]string, []problem.Diagnostic) {
	if h.alone {
		return []string{"*"}, nil
	}
	var problems []problem.Diagnostic
	lost := strings.Split(h.without, "\n")
	seen := map[string]bool{}
	domains := slices.DeleteFunc(h.domains(nil, s, hostname.Suffix(r.DomainSuffix())), func(d string) bool {
		lower := strings.ToLower(d)
		twice := seen[lower]
		seen[lower] = true
		return twice || slices.Contains(lost, lower)
	})
	if s != nil && len(s.Clusters) > 0 { // each cluster has its own virtual IPs
		lost = slices.DeleteFunc(lost, func(d string) bool { return single(strings.Trim(d, "[]")) != "" })
	}
	if h.without != "" && len(lost) > 0 {
		key := h.virtualService
		if s != nil {
			key = s.Key
		}
		problems = []problem.Diagnostic{{
			Severity: problem.Info, Code: "conflict", Key: key, Field: "spec.hosts",
			Reason: fmt.Sprintf("on port %d %s means another host", h.port, strings.Join(relative(lost), ", ")),
			Advice: "call it by its full name", Effect: "requests to that name go to the other host",
		}}
	}
	return domains, problems
}

// relative leaves out absolute forms if there are others.
func relative(domains []string) []string {
	short := slices.DeleteFunc(slices.Clone(domains), func(d string) bool {
		return strings.HasSuffix(d, ".") || strings.Contains(d, ".:")
	})
	if len(short) == 0 {
		return domains
	}
	return short
}

// translate returns the routes of the VirtualService; none if there is none.
func (h *virtualHost) translate(r *index.Reader) ([]*routev3.Route, []problem.Diagnostic) {
	if h.virtualService == (ident.Key{}) {
		return nil, nil
	}
	o := NewOptions(r, h.caller, h.port, Mesh)
	o.GRPC = h.grpc
	routes, problems := Translate(h.virtualService, r.VirtualService(h.virtualService), o)
	if h.grpc {
		forGRPC(routes)
	}
	return routes, problems
}

// fallback is the route to a service without VirtualService.
func (h *virtualHost) fallback(r *index.Reader, s *index.Service) *routev3.Route {
	var rule *networking.DestinationRule
	if h.rule != (index.RuleID{}) {
		rule, _ = r.DestinationRule(h.rule)
	}
	action := &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: piece.ClusterName(h.host, "", h.port)},
		HashPolicy:       hashPolicy(hashOf(r.Mesh(), rule, "", h.port)),
	}
	timeout(action, nil, h.grpc)
	action.RetryPolicy = retryPolicy(r.Mesh().GetDefaultHttpRetryPolicy(), len(action.HashPolicy) > 0)
	out := &routev3.Route{
		Name: "default", Match: everything(),
		Action:    &routev3.Route_Route{Route: action},
		Decorator: &routev3.Decorator{Operation: hostPort(h.host, h.port) + "/*"},
	}
	if session := sessionOf(s); session != nil && !h.grpc {
		out.TypedPerFilterConfig = map[string]*anypb.Any{SessionFilter: session}
	}
	return out
}

func hostPort(host string, port uint32) string {
	return host + ":" + strconv.FormatUint(uint64(port), 10)
}
