package index

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	meshconfig "istio.io/api/mesh/v1alpha1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/table"
	"meshlog.dev/services/mesh/world"
)

const telemetryKind = "Telemetry"

// telemetryIndex holds the Telemetries of each namespace. Of two with the same scope the
// first one counts (TL-1).
type telemetryIndex struct {
	byNamespace table.Groups[string, *observer]
}

// observer is a Telemetry with what it selects.
type observer struct {
	*world.Object
	selectors []map[string]string // a workload has the labels of one of them
	wide      bool                // it is for the whole namespace, or in the root namespace for the mesh
}

// MemberKey returns the key of the Telemetry.
func (o *observer) MemberKey() ident.Key { return o.Key }

// has reports whether the Telemetry has the selector of that text.
func (o *observer) has(text string) bool {
	return slices.ContainsFunc(o.selectors, func(labels map[string]string) bool { return selectorText(labels) == text })
}

// newObserver reads a Telemetry; nil: it holds something else. One whose targets are all
// for waypoints selects nothing.
func newObserver(o *world.Object) *observer {
	m, ok := o.Message.(*telemetry.Telemetry)
	if !ok {
		return nil
	}
	out := &observer{Object: o}
	targets := kind.Targets(m)
	for _, t := range targets {
		if t.GetKind() == "Gateway" {
			out.selectors = append(out.selectors, map[string]string{gatewayNameLabel: t.GetName()})
		}
	}
	if len(targets) == 0 {
		labels := m.GetSelector().GetMatchLabels()
		out.selectors, out.wide = []map[string]string{labels}, len(labels) == 0
	}
	return out
}

// next returns the index after changes of Telemetries.
func (x telemetryIndex) next(t *transition, changes []change) telemetryIndex {
	edit := x.byNamespace.Edit(func(a, b *observer) int {
		return world.Wins(t.priority, a.Key, a.Created, b.Key, b.Created)
	})
	for _, c := range changes {
		is := (*observer)(nil)
		if c.is != nil {
			is = newObserver(c.is)
		}
		if is != nil {
			edit.Put(c.Namespace, is)
		} else {
			edit.Drop(c.Namespace, c.Key)
		}
	}
	next := telemetryIndex{edit.Done()}
	for namespace, moved := range edit.Moved {
		t.changed(Input{Kind: InputTelemetry, A: namespace})
		was, is := x.byNamespace.Get(namespace), next.byNamespace.Get(namespace)
		t.reclassify(!slices.Equal(telemetrySelectors(was), telemetrySelectors(is)) || !slices.Equal(tracersOf(was), tracersOf(is)))
		for k := range moved {
			t.problem(about{telemetryKind, "", k.Row()}, nil)
		}
		for i, o := range is {
			t.problem(about{telemetryKind, "", o.Key.Row()}, t.telemetryProblems(o, is[:i]))
		}
	}
	return next
}

// telemetrySelectors returns the texts of all selectors, each once, sorted.
func telemetrySelectors(all []*observer) []string {
	var texts []string
	for _, o := range all {
		for _, labels := range o.selectors {
			texts = append(texts, selectorText(labels))
		}
	}
	return sortUnique(texts)
}

// telemetryProblems reports where a Telemetry does not count. Winners are those of its
// namespace that count before it.
func (t *transition) telemetryProblems(o *observer, winners []*observer) []problem.Diagnostic {
	d := problem.Diagnostic{Severity: problem.Warning, Code: "conflict", Key: o.Key, Field: "spec.selector", Advice: "keep one of them"}
	for _, w := range winners {
		if w.wide != o.wide {
			continue
		}
		for _, labels := range o.selectors {
			why := world.WhyWins(t.priority, w.Key, w.Created, o.Key, o.Created)
			switch {
			case len(o.selectors) == 1 && slices.ContainsFunc(w.selectors, func(other map[string]string) bool { return matchLabels(other, labels) }):
				d.Severity, d.Effect = problem.Warning, "the Telemetry has no effect"
				d.Reason = fmt.Sprintf("%s selects the same workloads, and %s", w.Key, why)
				return []problem.Diagnostic{d}
			case slices.ContainsFunc(w.selectors, func(other map[string]string) bool { return mayMatchBoth(other, labels) }):
				d.Severity, d.Effect = problem.Info, "the other Telemetry counts for such a workload"
				d.Reason = fmt.Sprintf("a workload may have the labels of this selector and of that of %s, which %s", w.Key, why)
			}
		}
	}
	if d.Reason == "" {
		return nil
	}
	return []problem.Diagnostic{d}
}

// selected returns the selectors of Telemetries of the proxy's namespace that match it. That
// of the whole mesh is none of them: each proxy has it.
func (x *telemetryIndex) selected(s *settings, p *proxy.Proxy) SelectorSet {
	var texts []string
	for _, o := range x.byNamespace.Get(p.Namespace) {
		if o.wide && p.Namespace == s.rootNamespace {
			continue
		}
		for _, labels := range o.selectors {
			if text := observes(p.Namespace, labels); matchLabels(labels, p.Labels) && !slices.Contains(texts, text) {
				texts = append(texts, text)
			}
		}
	}
	return setOf(texts)
}

// observes returns the text of a selector of a namespace in a class.
func observes(namespace string, labels map[string]string) string {
	return namespace + "/" + selectorText(labels)
}

// telemetryClasses adds a sidecar for each selector of Telemetries.
func (pc *PushContext) telemetryClasses(add func(ProxyClass)) {
	for namespace, all := range pc.telemetry.byNamespace.All() {
		for _, o := range all {
			for _, labels := range o.selectors {
				if o.wide && namespace == pc.settings.rootNamespace {
					continue
				}
				c := pc.classOf(ClientSidecar, namespace)
				c.anyInbound()
				c.LDS.Telemetry = SelectorSet(observes(namespace, labels))
				add(c)
			}
		}
	}
}

// tracersOf returns the names of the providers of traces in each of the Telemetries.
func tracersOf(all []*observer) []string {
	var names []string
	for _, o := range all {
		for _, entry := range o.Message.(*telemetry.Telemetry).GetTracing() {
			for _, p := range entry.GetProviders() {
				names = append(names, p.GetName())
			}
		}
		names = append(names, "") // the end of this Telemetry
	}
	return names
}

// namesService reports whether traces of proxies that match these selectors may carry the
// name of their service, because a provider of OpenTelemetry or Datadog is named (TL-3).
// Other tracers take it from their Envoy.
func (pc *PushContext) namesService(namespace string, selected SelectorSet) bool {
	names := pc.mesh.GetDefaultProviders().GetTracing()
	for _, o := range pc.telemetry.counting(pc.settings.rootNamespace, namespace, selected) {
		names = append(slices.Clip(names), tracersOf([]*observer{o})...)
	}
	return slices.ContainsFunc(names, func(name string) bool { return takesServiceName(pc.mesh, name) }) ||
		pc.mesh.GetEnableTracing() && pc.mesh.GetDefaultConfig().GetTracing().GetDatadog() != nil
}

// takesServiceName reports whether a provider of a mesh wants the name of a proxy's service.
func takesServiceName(m *meshconfig.MeshConfig, name string) bool {
	return slices.ContainsFunc(m.GetExtensionProviders(), func(p *meshconfig.MeshConfig_ExtensionProvider) bool {
		return strings.EqualFold(p.GetName(), name) && (p.GetOpentelemetry() != nil || p.GetDatadog() != nil)
	})
}

// sameServiceNames reports whether two MeshConfigs name the same providers of traces that
// want the name of a proxy's service.
func sameServiceNames(a, b *meshconfig.MeshConfig) bool {
	names := func(m *meshconfig.MeshConfig) []string {
		all := []string{strconv.FormatBool(m.GetEnableTracing() && m.GetDefaultConfig().GetTracing().GetDatadog() != nil)}
		for _, p := range m.GetExtensionProviders() {
			if takesServiceName(m, p.GetName()) {
				all = append(all, strings.ToLower(p.GetName()))
			}
		}
		return append(append(all, ""), m.GetDefaultProviders().GetTracing()...)
	}
	return slices.Equal(names(a), names(b))
}

// counting returns the Telemetries that count for a proxy of a namespace, as Reader.Telemetry.
func (x *telemetryIndex) counting(root, namespace string, selected SelectorSet) (out []*observer) {
	first := func(namespace string, is func(*observer) bool) {
		all := x.byNamespace.Get(namespace)
		if i := slices.IndexFunc(all, is); i >= 0 {
			out = append(out, all[i])
		}
	}
	wide := func(o *observer) bool { return o.wide }
	first(root, wide)
	texts := selected.Selectors()
	if len(texts) == 0 {
		return out
	}
	if namespace != root {
		first(namespace, wide)
	}
	first(namespace, func(o *observer) bool {
		return !o.wide && slices.ContainsFunc(texts, func(text string) bool {
			_, selector, _ := strings.Cut(text, "/")
			return o.has(selector)
		})
	})
	return out
}

// Telemetry returns the Telemetries that count for proxies of LDSClass.Telemetry, at most
// one of each level: that of the mesh, that of the namespace, that of the workload (TL-1).
func (r *Reader) Telemetry(selected SelectorSet) []*world.Object {
	root := r.pc.settings.rootNamespace
	r.note(Input{Kind: InputMesh}) // it names the root namespace
	r.note(Input{Kind: InputTelemetry, A: root})
	namespace := ""
	if texts := selected.Selectors(); len(texts) > 0 {
		namespace, _, _ = strings.Cut(texts[0], "/") // that of the proxy, in all of them
		r.note(Input{Kind: InputTelemetry, A: namespace})
	}
	var out []*world.Object
	for _, o := range r.pc.telemetry.counting(root, namespace, selected) {
		out = append(out, o.Object)
	}
	return out
}
