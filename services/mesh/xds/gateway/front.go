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
	selectorOf := map[ident.Key]string{}
	for _, text := range selectors.Selectors() {
		for _, g := range r.Gateways(text) {
			selectorOf[g.Key] = text
		}
	}
	var parts []piece.Part
	for _, p := range ports {
		for _, s := range p.Servers {
			parts = append(parts, front{s.of, s.field, selectorOf[s.of], p.Number, scope.Services})
		}
	}
	return parts
}

// front is the part that looks for the Services in front of a server. It makes
// nothing.
type front struct {
	gateway  ident.Key
	field    string // of the server
	selector string
	port     uint32
	scope    string // of services
}

func (f front) Make(r *index.Reader) (_ []piece.Piece, ds []problem.Diagnostic) {
	var gateway *index.Gateway
	for _, g := range r.Gateways(f.selector) {
		if g.Key == f.gateway {
			gateway = g
		}
	}
	if gateway == nil {
		return nil, nil
	}
	for _, s := range r.Services(index.Scope{Services: f.scope}) {
		p, ok := s.Port(f.port)
		if !ok || !s.Kubernetes {
			continue
		}
		if target := targetOf(r, gateway, s, p); target != f.port {
			ds = append(ds, problem.Diagnostic{
				Severity: problem.Warning, Code: "gateway", Key: f.gateway, Field: f.field + ".port.number",
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
	for _, e := range r.Endpoints(s.ServiceID)[p.Number] {
		if e.Port != p.Number && g.Runs(e.Labels) {
			return e.Port
		}
	}
	return p.Number
}
