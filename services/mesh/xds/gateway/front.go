package gateway

import (
	"fmt"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
)

// Fronts returns the parts that report servers behind a Service with another
// targetPort (GW-3): the router listens on the port of the server, where the
// Service sends nothing.
func Fronts(r *index.Reader, selectors index.SelectorSet, scope index.Scope, ports []*Port) []piece.Part {
	if len(ports) == 0 {
		return nil
	}
	services := r.Services(scope)
	var parts []piece.Part
	seen := map[uint32]bool{}
	for _, p := range ports {
		if seen[p.Number] {
			continue
		}
		seen[p.Number] = true
		for _, s := range services {
			if at, ok := s.Port(p.Number); ok && s.Kubernetes && at.Target != p.Number {
				parts = append(parts, front{s.ServiceID, selectors, p.Number})
			}
		}
	}
	return parts
}

// front is the part that looks whether a Service is in front of servers. It makes
// nothing. There is one for each Service, so that endpoints that come and go make
// that one again.
type front struct {
	service   index.ServiceID
	selectors index.SelectorSet // of Gateways
	port      uint32
}

func (f front) Make(r *index.Reader) (_ []piece.Piece, ds []problem.Diagnostic) {
	s := r.Service(f.service)
	if s == nil {
		return nil, nil
	}
	p, ok := s.Port(f.port)
	if !ok {
		return nil, nil
	}
	targets := map[ident.Key]uint32{} // of Gateways that the Service is in front of
	for _, text := range f.selectors.Selectors() {
		gateways := r.Gateways(text)
		if len(gateways) == 0 {
			continue
		}
		if target := targetOf(r, gateways[0], s, p); target != f.port { // all have one selector
			for _, g := range gateways {
				targets[g.Key] = target
			}
		}
	}
	if len(targets) == 0 {
		return nil, nil
	}
	ports, _ := Ports(r, f.selectors)
	for _, p := range ports {
		for _, server := range p.Servers {
			target, ok := targets[server.Key]
			if !ok || p.Number != f.port {
				continue
			}
			ds = append(ds, problem.Diagnostic{
				Severity: problem.Warning, Code: "gateway", Key: server.Key, Field: server.Field + ".port.number",
				Reason: fmt.Sprintf("Service %s/%s in front sends connections to port %d on to port %d: ports are not translated yet", s.Key.Namespace, s.Key.Name, f.port, target),
				Advice: fmt.Sprintf("write port %d here, or targetPort: %d in the Service", target, f.port),
				Effect: fmt.Sprintf("the router listens on port %d, so calls through the Service are refused", f.port),
			})
		}
	}
	return nil, ds
}

// targetOf returns the port to which a Service sends connections to p on the
// workloads of a Gateway; p itself if it selects none of them.
func targetOf(r *index.Reader, g *index.Gateway, s *index.Service, p index.Port) uint32 {
	if g.Runs(s.Selector) && p.Target != 0 { // all of its Pods are the Gateway's
		return p.Target
	}
	if contradict(g.Spec.GetSelector(), s.Selector) {
		return p.Number
	}
	for _, e := range r.Endpoints(s.ServiceID)[p.Number] {
		if e.Port != p.Number && g.Runs(e.Labels) {
			return e.Port
		}
	}
	return p.Number
}

// contradict reports whether no workload has the labels of both.
func contradict(a, b map[string]string) bool {
	for name, value := range a {
		if other, ok := b[name]; ok && other != value {
			return true
		}
	}
	return false
}
