package gateway

import (
	"fmt"
	"slices"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
)

// Fronts returns the parts that report servers behind a Service that sends their port
// elsewhere than where the router listens (GW-3): several Services in front of a router
// translate the port in different ways, or one asks not to be heeded.
func Fronts(r *index.Reader, selectors index.SelectorSet, scope index.Scope, ports []*Port) []piece.Part {
	if len(ports) == 0 {
		return nil
	}
	services := r.Services(scope)
	var parts []piece.Part
	seen := map[uint32]bool{}
	for _, p := range ports {
		for _, number := range p.All() {
			if seen[number] {
				continue
			}
			seen[number] = true
			for _, s := range services {
				if at, ok := s.Port(number); ok && s.Kubernetes && (at.Target != number || stands(r, selectors, s)) {
					parts = append(parts, front{s.ServiceID, selectors, number})
				}
			}
		}
	}
	return parts
}

// stands reports whether all workloads that a Service selects are some Gateway's.
func stands(r *index.Reader, selectors index.SelectorSet, s *index.Service) bool {
	return slices.ContainsFunc(selectors.Selectors(), func(text string) bool {
		gateways := r.Gateways(text)
		return len(gateways) > 0 && gateways[0].Runs(s.Selector)
	})
}

// front is the part that looks whether a Service in front of servers sends their port where
// routers listen. It makes nothing. There is one for each Service, so that endpoints that
// come and go make that one again.
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
	to := map[ident.Key]passed{} // by the Gateways that the Service is in front of
	for _, text := range f.selectors.Selectors() {
		gateways := r.Gateways(text)
		if len(gateways) == 0 {
			continue
		}
		if one := f.pass(r, gateways[0], s, p); one.target != one.listens { // all have one selector
			for _, g := range gateways {
				to[g.Key] = one
			}
		}
	}
	if len(to) == 0 {
		return nil, nil
	}
	why := "the first Service of their namespace in front of them decides"
	switch {
	case s.Untranslated():
		why = "the Service has the label " + index.UntranslatedLabel
	case p.Target == 0:
		why = "no Pod or WorkloadEntry with their address has the port that targetPort names, or the first Service of their namespace in front of them decides"
	}
	ports, _ := Ports(r, f.selectors, "")
	for _, at := range ports {
		for _, server := range at.Servers {
			one, ok := to[server.Key]
			if !ok || server.Number != f.port {
				continue
			}
			ds = append(ds, problem.Diagnostic{
				Severity: problem.Warning, Code: "gateway", Key: server.Key, Field: server.Field + ".port.number",
				Reason: fmt.Sprintf("Service %s/%s in front sends connections to port %d on to port %d, and routers listen on port %d for them: %s", s.Key.Namespace, s.Key.Name, f.port, one.target, one.listens, why),
				Advice: fmt.Sprintf("let all Services in front of a router send port %d to one port", f.port),
				Effect: fmt.Sprintf("calls through Service %s/%s are refused", s.Key.Namespace, s.Key.Name),
			})
		}
	}
	return nil, ds
}

// passed is where a Service sends a port, and where the routers behind it listen for it.
type passed struct{ target, listens uint32 }

// pass returns where a Service sends connections to p on the workloads of a Gateway; zero
// if it selects none of them.
func (f front) pass(r *index.Reader, g *index.Gateway, s *index.Service, p index.Port) passed {
	if g.Runs(s.Selector) && p.Target != 0 { // all of its Pods are the Gateway's
		return passed{p.Target, r.Listens(s.Namespace, s.Selector, "", f.selectors).Of(p.Number)}
	}
	if contradict(g.Spec.GetSelector(), s.Selector) {
		return passed{}
	}
	known := map[uint32]bool{} // ports of endpoints: workloads with one have equal labels
	for _, e := range r.Endpoints(s.ServiceID)[p.Number] {
		if known[e.Port] || !g.Runs(e.Labels) {
			continue
		}
		known[e.Port] = true
		if listens := r.Listens(s.Namespace, e.Labels, e.Address, f.selectors).Of(p.Number); listens != e.Port {
			return passed{e.Port, listens}
		}
	}
	return passed{}
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
