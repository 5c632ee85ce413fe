package patch

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
)

const (
	virtualInbound  = "virtualInbound"
	virtualOutbound = "virtualOutbound"
)

// subject is a piece of a resource that patches may change.
type subject struct {
	client  index.Client
	t       ident.ResourceType
	name    string // of the resource
	partial bool
	base    proto.Message // must not be changed: parts may share it
}

// context returns the context in which the resource is (EF-3).
func (s *subject) context() networking.EnvoyFilter_PatchContext {
	inbound := false
	switch s.t {
	case ident.LDS:
		inbound = s.name == virtualInbound || strings.HasPrefix(s.name, "inbound_")
	case ident.CDS:
		inbound = strings.HasPrefix(s.name, "inbound|") || s.name == piece.InboundPassthroughCluster
	}
	switch {
	case s.client == index.ClientRouter:
		return networking.EnvoyFilter_GATEWAY
	case inbound:
		return networking.EnvoyFilter_SIDECAR_INBOUND
	}
	return networking.EnvoyFilter_SIDECAR_OUTBOUND
}

// places returns the places of patches that can match the piece.
func (s *subject) places() []string {
	all := []string{"", index.AtName(s.name)}
	switch m := s.base.(type) {
	case *clusterv3.Cluster:
		if _, _, host, _ := clusterParts(s.name); host != "" {
			all = append(all, index.AtHost(host))
		}
	case *listenerv3.Listener:
		all = append(all, index.AtPort(listenerPort(m, s.name)))
		for _, c := range append(slices.Clone(m.GetFilterChains()), m.GetDefaultFilterChain()) {
			all = append(all, index.AtPort(c.GetFilterChainMatch().GetDestinationPort().GetValue()))
		}
	case *routev3.RouteConfiguration:
		port, _, _ := s.routesOf(s.name)
		all = append(all, index.AtPort(port))
		for _, h := range m.GetVirtualHosts() {
			all = append(all, index.AtVirtualHost(h.GetName()))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// clusterParts returns what the name of a cluster says (EF-6).
func clusterParts(name string) (direction, subset, host string, port uint32) {
	parts := strings.Split(name, "|")
	if len(parts) != 4 {
		return "", "", "", 0
	}
	n, err := strconv.ParseUint(parts[1], 10, 16)
	if err != nil {
		return "", "", "", 0
	}
	return parts[0], parts[2], parts[3], uint32(n)
}

// listenerPort returns the port of a listener: a piece with filter chains only does not have
// its address, which the name ends with.
func listenerPort(l *listenerv3.Listener, name string) uint32 {
	if l.GetAddress().GetSocketAddress() != nil {
		return l.GetAddress().GetSocketAddress().GetPortValue()
	}
	n, err := strconv.ParseUint(name[strings.LastIndexByte(name, '_')+1:], 10, 16)
	if err != nil {
		return 0
	}
	return uint32(n)
}

// routesOf returns what the name of a RouteConfiguration says: its port, and at routers the
// name of the server's port and its Gateway.
func (s *subject) routesOf(name string) (port uint32, portName, gateway string) {
	number := name
	switch {
	case s.client == index.ClientRouter:
		parts := strings.Split(name, ".")
		if len(parts) < 2 {
			return 0, "", ""
		}
		number = parts[1]
		if parts[0] == "https" && len(parts) == 5 {
			portName, gateway = parts[2], parts[4]+"/"+parts[3]
		}
	case strings.HasPrefix(name, "inbound|"):
		_, _, _, port = clusterParts(name)
		return port, "", ""
	}
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return 0, portName, gateway
	}
	return uint32(n), portName, gateway
}

// patched returns the piece with those patches that may be applied; nil: it is removed.
func (s *subject) patched(r *index.Reader, patches []*index.Patch) (proto.Message, []problem.Diagnostic) {
	context := s.context()
	patches = slices.DeleteFunc(patches, func(p *index.Patch) bool {
		return p.Context != networking.EnvoyFilter_ANY && p.Context != context
	})
	if len(patches) == 0 {
		return s.base, nil
	}
	all := s.apply(patches)
	all.record(r, patches)
	if len(all.applied) == 0 && all.panicked == "" {
		return s.base, all.notes
	}
	refusedAlready := refusal(s.base, !s.partial) != "" // then Envoy would refuse it with any patch
	if all.panicked == "" && (refusedAlready || s.refusal(all.message) == "") && s.protected(all.message) == s.protected(s.base) {
		return all.message, all.notes
	}
	return s.oneByOne(r, patches, refusedAlready)
}

// oneByOne applies patches one after the other, without those that may not be applied.
func (s *subject) oneByOne(r *index.Reader, patches []*index.Patch, refusedAlready bool) (proto.Message, []problem.Diagnostic) {
	protected := s.protected(s.base)
	var kept []*index.Patch
	var problems []problem.Diagnostic
	for _, p := range patches {
		with := append(slices.Clip(kept), p)
		is := s.apply(with)
		is.record(r, with)
		if is.panicked != "" {
			d := p.Problem("")
			d.Severity, d.Code, d.Reason = problem.Error, "internal", "applying the patch panicked: "+is.panicked
			d.Advice, d.Effect = "report this error", "the patch is left out, and all others are applied"
			problems = append(problems, d)
			continue
		}
		if reason := s.refusal(is.message); reason != "" && !refusedAlready {
			problems = append(problems, refused(p, reason))
			continue
		}
		after := s.protected(is.message)
		if after != protected {
			problems = append(problems, p.Touches("it changes filters, routes or TLS with which policies are enforced"))
			if !p.Privileged {
				continue
			}
			protected = after
		}
		kept = with
	}
	last := s.apply(kept)
	return last.message, append(problems, last.notes...)
}

// outcome is what patches make of a piece.
type outcome struct {
	message  proto.Message // nil: it is removed
	applied  map[index.PatchID]bool
	notes    []problem.Diagnostic
	panicked string // why: an error in this program. Then message is the piece as it was
}

// record notes the patches that have matched something.
func (o *outcome) record(r *index.Reader, patches []*index.Patch) {
	for _, p := range patches {
		if o.applied[p.PatchID] {
			r.Applied(p)
		}
	}
}

// apply applies patches to a copy of the piece.
func (s *subject) apply(patches []*index.Patch) (out outcome) {
	defer func() {
		if v := recover(); v != nil {
			out = outcome{message: s.base, panicked: fmt.Sprint(v)}
		}
	}()
	w := &work{subject: s, patches: patches, applied: map[index.PatchID]bool{}}
	m := proto.Clone(s.base)
	kept := true
	switch m := m.(type) {
	case *clusterv3.Cluster:
		kept = w.cluster(m)
	case *listenerv3.Listener:
		kept = w.listener(m)
	case *routev3.RouteConfiguration:
		kept = w.routes(m, s.name)
	}
	if !kept {
		m = nil
	}
	return outcome{message: m, applied: w.applied, notes: w.notes}
}

// work applies patches to one piece.
type work struct {
	*subject
	patches []*index.Patch
	applied map[index.PatchID]bool
	notes   []problem.Diagnostic
}

// of returns the patches for something, in their order.
func (w *work) of(to networking.EnvoyFilter_ApplyTo) []*index.Patch {
	var all []*index.Patch
	for _, p := range w.patches {
		if p.ApplyTo == to {
			all = append(all, p)
		}
	}
	return all
}

func (w *work) done(p *index.Patch) { w.applied[p.PatchID] = true }

// note reports how a patch takes effect otherwise than written.
func (w *work) note(p *index.Patch, severity problem.Severity, code, field, reason, advice, effect string) {
	d := p.Problem(field)
	d.Severity, d.Code, d.Reason, d.Advice, d.Effect = severity, code, reason, advice, effect
	if !slices.Contains(w.notes, d) {
		w.notes = append(w.notes, d)
	}
}
