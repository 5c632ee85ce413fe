package tracing

import (
	"fmt"

	telemetry "istio.io/api/telemetry/v1alpha1"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/callee"
	"meshlog.dev/services/mesh/xds/piece"
)

// Problems is the part that reports to which tracers the objects that count for proxies of
// LDSClass.Telemetry tell them to report, and they cannot.
type Problems struct {
	Selected index.SelectorSet
	From     callee.Caller
}

const notTraced = "proxies report no traces of these requests"

// Make implements piece.Part.
func (p Problems) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	mesh := r.Mesh()
	all := p.ofMesh(r)
	inherited := mesh.GetDefaultProviders().GetTracing()
	for _, o := range r.Telemetry(p.Selected) {
		t, ok := o.Message.(*telemetry.Telemetry)
		if !ok {
			continue
		}
		for i, entry := range t.GetTracing() {
			d := problem.Diagnostic{Severity: problem.Warning, Code: "provider", Key: o.Key, Field: fmt.Sprintf("spec.tracing[%d].providers", i), Effect: notTraced}
			if len(entry.GetProviders()) > 0 {
				name := entry.GetProviders()[0].GetName()
				inherited = []string{name}
				d.Field += "[0].name"
				d.Reason, d.Advice = p.reason(r, name)
			} else if len(inherited) == 0 && !entry.GetDisableSpanReporting().GetValue() {
				d.Reason = "it names no provider, and neither do the Telemetries above it nor defaultProviders.tracing of MeshConfig"
				d.Advice = "name one of MeshConfig.extensionProviders with opentelemetry, zipkin, datadog or skywalking"
			}
			if d.Reason != "" {
				all = append(all, d)
			}
		}
	}
	return nil, all
}

// reason says why proxies cannot report to a provider, and what to do; "": they can.
func (p Problems) reason(r *index.Reader, name string) (reason, advice string) {
	found := validate.Provider(r.Mesh(), name)
	if found == nil {
		return "extensionProviders has no provider " + name, "name one with opentelemetry, zipkin, datadog or skywalking"
	}
	if _, reason, advice = find(r, found, p.From); reason != "" {
		reason = fmt.Sprintf("proxies cannot report to the provider %q: %s", name, reason)
	}
	return reason, advice
}

// ofMesh reports the tracer that MeshConfig names for all proxies, if it counts.
func (p Problems) ofMesh(r *index.Reader) []problem.Diagnostic {
	mesh, levels := r.Mesh(), levelsOf(r, p.Selected)
	d := problem.Diagnostic{Severity: problem.Warning, Code: "provider", Key: r.MeshKey(), Effect: notTraced}
	counts := func(name string) bool {
		of := validate.Provider(mesh, name)
		if of == nil {
			return false // the validation reports that
		}
		for _, server := range []bool{true, false} {
			if s, _ := merge(mesh, levels, server); !s.disabled && s.provider == of {
				return true
			}
		}
		return false
	}
	names := mesh.GetDefaultProviders().GetTracing()
	switch {
	case len(names) > 0:
		if d.Field = "spec.defaultProviders.tracing[0]"; counts(names[0]) {
			d.Reason, d.Advice = p.reason(r, names[0])
		}
	case mesh.GetEnableTracing() && len(levels) == 0:
		if of := legacy(mesh); of != nil {
			d.Field = "spec.defaultConfig.tracing"
			_, d.Reason, d.Advice = find(r, of, p.From)
		} else {
			d.Field, d.Reason = "spec.enableTracing", "no provider of traces is named"
			d.Advice = "name one of extensionProviders in defaultProviders.tracing"
		}
	}
	if d.Reason == "" {
		return nil
	}
	return []problem.Diagnostic{d}
}

// Named reports whether Telemetries or MeshConfig name a tracer, which Problems may report for
// proxies of LDSClass.Telemetry.
func Named(r *index.Reader, selected index.SelectorSet) bool {
	mesh := r.Mesh()
	return len(levelsOf(r, selected)) > 0 || len(mesh.GetDefaultProviders().GetTracing()) > 0 || mesh.GetEnableTracing()
}
