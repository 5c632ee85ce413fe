package index

import (
	"fmt"
	"maps"
	"time"

	security "istio.io/api/security/v1beta1"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/table"
	"meshlog.dev/services/mesh/world"
)

// PeerMode says which connections a workload takes on a port (PA-1).
type PeerMode uint8

// The modes. The zero value is that of a workload that no PeerAuthentication
// selects.
const (
	// PeerPermissive takes mutual TLS of the mesh and everything else.
	PeerPermissive PeerMode = iota
	// PeerStrict takes mutual TLS of the mesh only.
	PeerStrict
	// PeerDisable never decrypts.
	PeerDisable
)

// String returns the mode as a PeerAuthentication writes it.
func (m PeerMode) String() string {
	switch m {
	case PeerStrict:
		return "STRICT"
	case PeerDisable:
		return "DISABLE"
	}
	return "PERMISSIVE"
}

// PeerModes are the modes of a workload's ports.
type PeerModes struct {
	Default PeerMode
	// Ports of the workload with a mode of their own (PA-2).
	Ports map[uint32]PeerMode
	// by and portsBy are the PeerAuthentications that decide Default and Ports.
	by, portsBy ident.Key
}

// By returns the PeerAuthentication that decides the mode of a port; zero: none does.
func (m PeerModes) By(port uint32) ident.Key {
	if _, own := m.Ports[port]; own {
		return m.portsBy
	}
	return m.by
}

// Of returns the mode of a port of the workload.
func (m PeerModes) Of(port uint32) PeerMode {
	if mode, own := m.Ports[port]; own {
		return mode
	}
	return m.Default
}

// peerIndex holds the PeerAuthentications of each namespace. Of two with the same
// scope the first one counts.
type peerIndex struct {
	byNamespace table.Groups[string, *peer]
}

// peer is a PeerAuthentication, or what stands in for one that never was good.
type peer struct {
	ident.Key
	created time.Time
	labels  map[string]string // empty: the whole namespace
	mode    security.PeerAuthentication_MutualTLS_Mode
	ports   map[uint32]security.PeerAuthentication_MutualTLS_Mode
}

// MemberKey returns the key of the PeerAuthentication.
func (p *peer) MemberKey() ident.Key { return p.Key }

// newPeer reads a PeerAuthentication. One that never was good is STRICT (POL-15).
func newPeer(o world.Object) *peer {
	p := &peer{Key: o.Key, created: o.Created}
	switch m := o.Message.(type) {
	case *registryv1.Closed:
		p.labels, p.mode = m.GetMatchLabels(), security.PeerAuthentication_MutualTLS_STRICT
	case *security.PeerAuthentication:
		p.labels, p.mode = m.GetSelector().GetMatchLabels(), m.GetMtls().GetMode()
		if len(p.labels) == 0 { // PA-2
			break
		}
		p.ports = make(map[uint32]security.PeerAuthentication_MutualTLS_Mode, len(m.GetPortLevelMtls()))
		for port, mtls := range m.GetPortLevelMtls() {
			p.ports[port] = mtls.GetMode()
		}
	default:
		return nil
	}
	return p
}

func (p *peer) same(o *peer) bool {
	return p.created.Equal(o.created) && p.mode == o.mode && maps.Equal(p.labels, o.labels) && maps.Equal(p.ports, o.ports)
}

// next returns the index after changes of PeerAuthentications.
func (x peerIndex) next(t *transition, changes []change) peerIndex {
	edit := x.byNamespace.Edit(func(a, b *peer) int {
		return world.Wins(t.priority, a.Key, a.created, b.Key, b.created)
	})
	for _, c := range changes {
		var was, is *peer
		for o, after := range c.versions() {
			p := newPeer(*o)
			switch {
			case p == nil:
			case after:
				is = p
			default:
				was = p
			}
		}
		if was != nil && is != nil && was.same(is) || was == nil && is == nil {
			continue
		}
		if is != nil {
			edit.Put(c.Namespace, is)
		} else {
			edit.Drop(c.Namespace, c.Key)
		}
	}
	next := peerIndex{edit.Done()}
	for namespace, moved := range edit.Moved {
		t.changed(Input{Kind: InputPeers, A: namespace})
		t.reclassify(true)
		for k := range moved {
			t.problem(about{peersKind, "", k.Row()}, nil)
		}
		for i, p := range next.byNamespace.Get(namespace) {
			t.problem(about{peersKind, "", p.Row()}, t.peerProblems(p, next.byNamespace.Get(namespace)[:i]))
		}
	}
	return next
}

// peerProblems reports where a PeerAuthentication does not count. Winners are those of
// its namespace that count before it.
func (t *transition) peerProblems(p *peer, winners []*peer) []problem.Diagnostic {
	d := problem.Diagnostic{Severity: problem.Warning, Code: "conflict", Key: p.Key, Field: "spec.selector"}
	if p.Namespace == t.rootNamespace && len(p.labels) > 0 {
		d.Code, d.Reason = "unused", "a PeerAuthentication of the root namespace that has a selector selects no workload, as in Istio"
		d.Advice, d.Effect = "write it into the namespace of the workloads, or remove the selector", "the PeerAuthentication has no effect"
		return []problem.Diagnostic{d}
	}
	for _, w := range winners {
		if (len(w.labels) == 0) != (len(p.labels) == 0) || !mayMatchBoth(w.labels, p.labels) {
			continue
		}
		d.Advice = "keep one of them"
		if matchLabels(w.labels, p.labels) {
			d.Reason = fmt.Sprintf("%s selects the same workloads, and %s", w.Key, world.WhyWins(t.priority, w.Key, w.created, p.Key, p.created))
			d.Effect = "the PeerAuthentication has no effect"
			return []problem.Diagnostic{d}
		}
		d.Severity = problem.Info
		d.Reason = fmt.Sprintf("a workload may have the labels of this selector and of that of %s, which %s", w.Key, world.WhyWins(t.priority, w.Key, w.created, p.Key, p.created))
		d.Effect = "the other PeerAuthentication counts for such a workload"
	}
	if d.Reason == "" {
		return nil
	}
	return []problem.Diagnostic{d}
}

// mayMatchBoth reports whether one workload can have the labels of both selectors.
func mayMatchBoth(a, b map[string]string) bool {
	for name, value := range a {
		if other, ok := b[name]; ok && other != value {
			return false
		}
	}
	return true
}

// modes returns the modes of a workload: those of the PeerAuthentication that selects
// it by labels, else that of its namespace, else that of the root namespace. UNSET is
// the mode of the next one (PA-1).
func (x *peerIndex) modes(root, namespace string, labels map[string]string) PeerModes {
	var own, ofNamespace, ofMesh *peer
	first := func(at **peer, p *peer) {
		if *at == nil {
			*at = p
		}
	}
	for _, p := range x.byNamespace.Get(root) {
		if len(p.labels) == 0 {
			first(&ofMesh, p)
		}
	}
	if namespace != root {
		for _, p := range x.byNamespace.Get(namespace) {
			switch {
			case len(p.labels) == 0:
				first(&ofNamespace, p)
			case matchLabels(p.labels, labels):
				first(&own, p)
			}
		}
	}
	var m PeerModes
	for _, p := range []*peer{ofMesh, ofNamespace, own} {
		if p == nil {
			continue
		}
		if m.Default = peerMode(p.mode, m.Default); p.mode != security.PeerAuthentication_MutualTLS_UNSET {
			m.by = p.Key
		}
	}
	if own == nil || len(own.ports) == 0 {
		return m
	}
	m.portsBy = own.Key
	m.Ports = make(map[uint32]PeerMode, len(own.ports))
	for port, mode := range own.ports {
		m.Ports[port] = peerMode(mode, m.Default)
	}
	return m
}

// peerMode returns a mode; UNSET is the one that it inherits.
func peerMode(mode security.PeerAuthentication_MutualTLS_Mode, inherited PeerMode) PeerMode {
	switch mode {
	case security.PeerAuthentication_MutualTLS_UNSET:
		return inherited
	case security.PeerAuthentication_MutualTLS_PERMISSIVE:
		return PeerPermissive
	case security.PeerAuthentication_MutualTLS_DISABLE:
		return PeerDisable
	}
	return PeerStrict // also what this build does not know
}

// PeerMode returns the mode of a port of a workload of a namespace that has these
// labels.
func (r *Reader) PeerMode(namespace string, labels map[string]string, port uint32) PeerMode {
	return r.PeerModes(namespace, labels).Of(port)
}

// PeerModes returns the modes of all ports of a workload of a namespace that has these
// labels.
func (r *Reader) PeerModes(namespace string, labels map[string]string) PeerModes {
	root := r.pc.settings.rootNamespace
	r.note(Input{Kind: InputMesh}) // it names the root namespace
	r.note(Input{Kind: InputPeers, A: root})
	r.note(Input{Kind: InputPeers, A: namespace})
	return r.pc.peers.modes(root, namespace, labels)
}
