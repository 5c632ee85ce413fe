package index

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"meshlog.dev/services/mesh/proxy"
)

// Listens says on which ports a router listens for ports of its Gateways, as far as a
// Service in front of it sends connections to other ones (GW-3): "80 8080" in a line for
// each, sorted by the Gateways' ports. Routers behind Services that translate alike have
// equal texts.
type Listens string

// Of returns the port on which the router listens for a Gateway's port.
func (l Listens) Of(port uint32) uint32 {
	if l == "" {
		return port // the usual case
	}
	number := strconv.FormatUint(uint64(port), 10)
	for line := range strings.SplitSeq(string(l), "\n") {
		if of, target, _ := strings.Cut(line, " "); of == number {
			n, err := strconv.ParseUint(target, 10, 32)
			if err != nil {
				panic(fmt.Sprintf("line %q of the ports is not as listensOf writes it: %v", line, err))
			}
			return uint32(n)
		}
	}
	return port
}

// words describes the ports for people.
func (l Listens) words() []string {
	var all []string
	for line := range strings.SplitSeq(string(l), "\n") {
		if of, target, ok := strings.Cut(line, " "); ok {
			all = append(all, "port "+of+" on "+target)
		}
	}
	return all
}

// UntranslatedLabel is the label of Services that say nothing about the ports of routers.
const UntranslatedLabel = "experimental.istio.io/disable-gateway-port-translation"

// Untranslated reports whether the Service has that label.
func (s *Service) Untranslated() bool {
	_, labelled := s.Labels[UntranslatedLabel]
	return labelled
}

// listensOf returns where a router listens for the ports of the Gateways that select it. Of
// several Services in front of it that have a port the first one decides, as in Istio.
func (pc *PushContext) listensOf(p *proxy.Proxy, gateways SelectorSet) Listens {
	numbers := pc.gateways.numbers(gateways)
	if len(numbers) == 0 {
		return ""
	}
	f := targetFinder{pc: pc, proxy: p}
	f.byLabels()
	f.byAddress()
	slices.SortFunc(f.found, func(a, b target) int {
		return cmp.Or(cmp.Compare(a.ServicePort, b.ServicePort), pc.settings.compareServices(a.of, b.of), cmp.Compare(a.Port, b.Port))
	})
	var lines []string
	last := uint32(0)
	for _, t := range f.found {
		if t.of.Untranslated() || t.ServicePort == last || !numbers[t.ServicePort] {
			continue
		}
		if last = t.ServicePort; t.Port != last {
			lines = append(lines, fmt.Sprintf("%d %d", last, t.Port))
		}
	}
	return Listens(strings.Join(lines, "\n"))
}

// setGateways sets the Gateways of a router, and where it listens for their ports.
func (c *ProxyClass) setGateways(selectors SelectorSet, listens Listens) {
	c.LDS.Gateways, c.RDS.Gateways = selectors, selectors
	c.LDS.Listens, c.RDS.Listens = listens, listens
}

// numbers returns the ports of the servers of the Gateways of some selectors.
func (x *gatewayIndex) numbers(selectors SelectorSet) map[uint32]bool {
	all := make(map[uint32]bool)
	for _, text := range selectors.Selectors() {
		for _, g := range x.bySelector.Get(text) {
			for _, s := range g.Spec.GetServers() {
				all[s.GetPort().GetNumber()] = true
			}
		}
	}
	return all
}

// meeting finds the selectors of Gateways by the first label of each.
type meeting struct {
	x       *gatewayIndex
	byLabel map[[2]string][]string
	all     []string // the text of the one without labels, if there are such Gateways
}

func (x *gatewayIndex) meeting() *meeting {
	m := &meeting{x: x, byLabel: make(map[[2]string][]string)}
	for text, gateways := range x.bySelector.All() {
		labels := gateways[0].Spec.GetSelector()
		if len(labels) == 0 {
			m.all = append(m.all, text)
			continue
		}
		name := slices.Min(slices.Collect(maps.Keys(labels)))
		m.byLabel[[2]string{name, labels[name]}] = append(m.byLabel[[2]string{name, labels[name]}], text)
	}
	return m
}

// of returns the selectors that match all routers with these labels, and whether one of
// them demands a label.
func (m *meeting) of(labels map[string]string) (set SelectorSet, selected bool) {
	texts := slices.Clone(m.all)
	for name, value := range labels {
		for _, text := range m.byLabel[[2]string{name, value}] {
			if matchLabels(m.x.bySelector.Get(text)[0].Spec.GetSelector(), labels) {
				texts, selected = append(texts, text), true
			}
		}
	}
	return setOf(texts), selected
}

// routerClasses adds routers for each selector of Gateways, in the common view and in the
// views of the Gateways' namespaces, and those that Services in front of them name: other
// Gateways may select these too, and they may listen on other ports. Other combinations of
// selectors that have no label in common are not known before a proxy connects.
func (pc *PushContext) routerClasses(add func(ProxyClass)) {
	gateways := maps.Collect(pc.gateways.bySelector.All())
	if len(gateways) == 0 {
		return
	}
	router := func(ns string, selectors SelectorSet, listens Listens) {
		c := pc.classOf(ClientRouter, ns)
		c.setGateways(selectors, listens)
		c.SDS = c.secretsIn(ClientRouter, ns)
		c.passThrough(pc)
		add(c)
	}
	meeting := pc.gateways.meeting()
	for _, text := range slices.Sorted(maps.Keys(gateways)) {
		set, _ := meeting.of(gateways[text][0].Spec.GetSelector())
		homes := []string{""}
		for _, g := range gateways[text] {
			homes = append(homes, g.Key.Namespace)
		}
		for _, ns := range homes {
			router(ns, set, "")
		}
	}
	for ns, all := range pc.endpoints.selecting.All() {
		for _, s := range all {
			set, selected := meeting.of(s.selector)
			if !selected {
				continue
			}
			p := &proxy.Proxy{Type: proxy.Router, Namespace: ns, Labels: s.selector}
			if s.Source == kubernetesSource {
				p.ClusterID = s.Instance
			}
			if listens := pc.listensOf(p, set); listens != "" || gateways[string(set)] == nil {
				router(ns, set, listens)
			}
		}
	}
}

// noteFronts records that routers may be in other classes because a Service in front of
// them has changed.
func (t *transition) noteFronts(changes []change, was, is *PushContext) {
	if len(changes) == 0 || was.gateways.bySelector.Len() == 0 && is.gateways.bySelector.Len() == 0 {
		return
	}
	for _, pc := range []*PushContext{was, is} {
		meeting := pc.gateways.meeting()
		for _, c := range changes {
			for o := range c.versions() {
				for _, host := range t.hosts(*o) {
					if t.other {
						return
					}
					for _, claim := range pc.services.claims.Get(ServiceID{o.Key.Namespace, host}) {
						_, stands := meeting.of(claim.selector())
						t.reclassify(stands)
					}
				}
			}
		}
	}
}

// Listens returns where routers with these labels, and with an address if it is not empty,
// listen for the ports of Gateways of some selectors.
func (r *Reader) Listens(namespace string, labels map[string]string, address string, gateways SelectorSet) Listens {
	p := &proxy.Proxy{Type: proxy.Router, Namespace: namespace, Labels: labels}
	if address != "" {
		p.ID = "router~" + address + "~.~."
	}
	for _, in := range TargetInputs(p) {
		r.note(in)
	}
	for _, text := range gateways.Selectors() {
		r.note(Input{Kind: InputGateways, A: text})
	}
	return r.pc.listensOf(p, gateways)
}
