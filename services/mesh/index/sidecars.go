package index

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/table"
	"meshlog.dev/services/mesh/world"
)

const sidecarKind = "Sidecar"

// sidecarIndex holds the Sidecars of each namespace, those that win first.
type sidecarIndex struct {
	byNamespace table.Groups[string, *Sidecar]
	byName      table.Table[world.Name, *Sidecar] // of several sources, the winner of the name
}

// Sidecar is a Sidecar of networking.istio.io. Immutable.
type Sidecar struct {
	*world.Object
	Spec    *networking.Sidecar
	labels  map[string]string // of the workloads that it selects; none: all
	imports []imports         // of its egress listeners, in order
	traits
}

// traits are what classes depend on: which parts of generation read the Sidecar.
type traits struct {
	narrow   bool // it does not import all that a proxy sees, or has listeners of its own
	outbound bool // it says where calls to unknown hosts go
	// ingress has what ingressTraits returns; empty: the Sidecar says nothing about the
	// workload itself.
	ingress string
}

// MemberKey returns the key of the object.
func (s *Sidecar) MemberKey() ident.Key { return s.Key }

// newSidecar reads a Sidecar; nil: it holds something else.
func newSidecar(o *world.Object) *Sidecar {
	m, ok := o.Message.(*networking.Sidecar)
	if !ok {
		return nil
	}
	s := &Sidecar{Object: o, Spec: m, labels: m.GetWorkloadSelector().GetLabels()}
	for i, e := range m.GetEgress() {
		s.imports = append(s.imports, newImports(e))
		s.narrow = s.narrow || i > 0 || !s.imports[i].everything() || e.GetPort() != nil || e.GetBind() != "" || e.GetCaptureMode() != networking.CaptureMode_DEFAULT
	}
	s.outbound, s.ingress = m.GetOutboundTrafficPolicy() != nil, ingressTraits(m)
	return s
}

// text names the Sidecar in classes, as a proxy of a namespace has it.
func (s *Sidecar) text(home string) string {
	return s.Key.Namespace + "/" + s.Key.Name + " " + home
}

// sidecarOf reads the result of text: the name of a Sidecar, and the namespace of the proxy.
func sidecarOf(text string) (name world.Name, home string) {
	full, home, _ := strings.Cut(text, " ")
	name.Namespace, name.Name, _ = strings.Cut(full, "/")
	return name, home
}

// same reports whether proxies that have s or o are in the same classes.
func (s *Sidecar) same(o *Sidecar) bool {
	return s.Key == o.Key && s.traits == o.traits && maps.Equal(s.labels, o.labels)
}

// next returns the index after changes of Sidecars.
func (x sidecarIndex) next(t *transition, w *world.World, changes []change) sidecarIndex {
	if len(changes) == 0 {
		return x
	}
	edit := x.byNamespace.Edit(func(a, b *Sidecar) int {
		return world.Wins(t.priority, a.Key, a.Created, b.Key, b.Created)
	})
	byName := x.byName.Edit()
	for _, c := range changes {
		name := world.Name{Namespace: c.Namespace, Name: c.Name}
		var is *Sidecar
		if o := w.Winner(c.Key); o != nil {
			is = newSidecar(o)
		}
		if was := byName.Get(name); was != nil {
			edit.Drop(c.Namespace, was.Key)
			if is == nil || was.Key != is.Key || !sameMessage(was.Spec, is.Spec) {
				t.changed(Input{Kind: InputSidecar, A: c.Namespace, B: c.Name})
			}
		} else if is != nil {
			t.changed(Input{Kind: InputSidecar, A: c.Namespace, B: c.Name})
		}
		byName.Keep(name, is, is != nil)
		if is != nil {
			edit.Put(c.Namespace, is)
		}
	}
	next := sidecarIndex{edit.Done(), byName.Table}
	for namespace, moved := range edit.Moved {
		was, is := x.byNamespace.Get(namespace), next.byNamespace.Get(namespace)
		t.reclassify(!slices.EqualFunc(was, is, (*Sidecar).same))
		for k := range moved {
			t.problem(about{sidecarKind, "", k.Row()}, nil)
		}
		for i, s := range is {
			t.problem(about{sidecarKind, "", s.Key.Row()}, t.sidecarProblems(s, is[:i]))
		}
	}
	return next
}

// sidecarProblems reports where a Sidecar does not count, because another one of its
// namespace, of winners, counts first (SC-1).
func (t *transition) sidecarProblems(s *Sidecar, winners []*Sidecar) []problem.Diagnostic {
	d := problem.Diagnostic{Severity: problem.Warning, Code: "conflict", Key: s.Key, Field: "spec.workloadSelector", Advice: "keep one of them"}
	for _, w := range winners {
		if (len(w.labels) == 0) != (len(s.labels) == 0) {
			continue // one that selects workloads counts before that of the namespace
		}
		why := world.WhyWins(t.priority, w.Key, w.Created, s.Key, s.Created)
		switch {
		case matchLabels(w.labels, s.labels):
			d.Severity, d.Effect = problem.Warning, "the Sidecar has no effect"
			d.Reason = fmt.Sprintf("%s is for the same workloads, and %s", w.Key, why)
			return []problem.Diagnostic{d}
		case mayMatchBoth(w.labels, s.labels):
			d.Severity, d.Effect = problem.Info, "the other Sidecar counts for such a workload"
			d.Reason = fmt.Sprintf("a workload may have the labels of this selector and of that of %s, which %s", w.Key, why)
		}
	}
	if d.Reason == "" {
		return nil
	}
	return []problem.Diagnostic{d}
}

// of returns the Sidecar of a proxy: one of its namespace that selects it, else the one of
// its namespace, else the one of the root namespace; of several the first (SC-1). nil: it
// imports all that it sees.
func (x *sidecarIndex) of(root, namespace string, labels map[string]string) *Sidecar {
	if x.byNamespace.Len() == 0 {
		return nil // true of most meshes
	}
	all := x.byNamespace.Get(namespace)
	if i := slices.IndexFunc(all, func(s *Sidecar) bool { return len(s.labels) > 0 && matchLabels(s.labels, labels) }); i >= 0 {
		return all[i]
	}
	wide := func(s *Sidecar) bool { return len(s.labels) == 0 }
	if i := slices.IndexFunc(all, wide); i >= 0 {
		return all[i]
	}
	all = x.byNamespace.Get(root)
	if i := slices.IndexFunc(all, wide); i >= 0 {
		return all[i]
	}
	return nil
}

// setSidecar sets what the Sidecar of proxies says.
func (c *ProxyClass) setSidecar(s *Sidecar, home string) {
	if s == nil {
		return
	}
	if s.outbound {
		c.LDS.Outbound, c.RDS.Outbound = s.text(""), s.text("")
	}
	if s.narrow {
		text := s.text(home)
		for _, scope := range []*Scope{&c.CDS.Scope, &c.EDS.Scope, &c.LDS.Scope, &c.RDS.Scope} {
			// What the proxy imports is found from its namespace.
			scope.Services, scope.VirtualServices, scope.Imports = "", "", text
		}
	}
}

// Sidecar is the Sidecar of a proxy, as Classify finds it; nil: there is none.
func (pc *PushContext) Sidecar(p *proxy.Proxy) *Sidecar {
	if v := pc.pinned(p); v != nil {
		pc = v.pc
	}
	if p.Type != proxy.Sidecar && !p.GRPC {
		return nil
	}
	return pc.sidecars.of(pc.settings.rootNamespace, p.Namespace, p.Labels)
}

// sidecarClasses adds a sidecar and a gRPC client for each Sidecar.
func (pc *PushContext) sidecarClasses(add func(ProxyClass)) {
	for namespace, all := range pc.sidecars.byNamespace.All() {
		for _, s := range all {
			for _, client := range []Client{ClientSidecar, ClientGRPC} {
				c := pc.classOf(client, namespace)
				if client == ClientSidecar {
					c.anyInbound()
				}
				c.setSidecar(s, namespace)
				if client == ClientSidecar { // whose authorizers it must import
					c.setPolicies(pc, &proxy.Proxy{Type: proxy.Sidecar, Namespace: namespace, Labels: s.labels}, client)
				}
				if client == ClientSidecar && s.ingress != "" {
					pc.anyIngress(&c, s, pc.peers.modes(pc.settings.rootNamespace, namespace, s.labels))
				}
				add(c)
				if client == ClientSidecar && s.endsTLS() { // which it does with this mode only
					pc.anyIngress(&c, s, PeerModes{Default: PeerDisable})
					add(c)
				}
			}
		}
	}
}

// anyIngress sets a workload that has the ports of the ingress of a Sidecar in some modes.
func (pc *PushContext) anyIngress(c *ProxyClass, s *Sidecar, modes PeerModes) {
	c.takeIngress(s)
	if len(s.Spec.GetIngress()) == 0 {
		return
	}
	if s.endsTLS() {
		c.SDS.Ingress = c.LDS.Ingress
	}
	ports := s.ingressPorts(nil, modes)
	slices.SortStableFunc(ports, func(a, b InboundPort) int { return cmp.Compare(a.Port, b.Port) })
	c.LDS.Inbound = newInbound(modes.Default, ports)
	c.CDS.Inbound = c.LDS.Inbound.Clusters(false)
}

// Outbound says where calls to unknown hosts go (SC-7, MC-3).
type Outbound struct {
	AllowAny bool
	Resolve  bool                    // the hosts of requests, and send them there
	Proxy    *networking.Destination // of the calls; nil: they go where the caller chose
	Key      ident.Key               // of the Sidecar that says so; zero: the MeshConfig does
}

// Outbound returns where calls to unknown hosts go, for LDSClass.Outbound.
func (r *Reader) Outbound(text string) Outbound {
	if text != "" {
		if s, _ := r.sidecar(text); s != nil && s.outbound {
			p := s.Spec.GetOutboundTrafficPolicy()
			return Outbound{AllowAny: p.GetMode() == networking.OutboundTrafficPolicy_ALLOW_ANY, Proxy: p.GetEgressProxy(), Key: s.Key}
		}
	}
	mode := r.Mesh().GetOutboundTrafficPolicy().GetMode()
	return Outbound{
		AllowAny: mode != meshconfig.MeshConfig_OutboundTrafficPolicy_REGISTRY_ONLY,
		Resolve:  mode == meshconfig.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY_DYNAMIC_DNS,
	}
}

// sidecar returns a Sidecar by the text of a class, and the namespace of its proxies.
func (r *Reader) sidecar(text string) (*Sidecar, string) {
	name, home := sidecarOf(text)
	r.note(Input{Kind: InputSidecar, A: name.Namespace, B: name.Name})
	return r.pc.sidecars.byName.Get(name), home
}
