package accesslog

import (
	"fmt"
	"maps"
	"slices"

	meshconfig "istio.io/api/mesh/v1alpha1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/callee"
	"meshlog.dev/services/mesh/xds/piece"
)

// Problems is the part that reports which access logs the objects that count for proxies of
// LDSClass.Telemetry name, and the proxies do not write.
type Problems struct {
	Selected index.SelectorSet
	From     callee.Caller
}

// Make implements piece.Part.
func (p Problems) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	mesh := r.Mesh()
	inherited := mesh.GetDefaultProviders().GetAccessLogging()
	all := p.ofMesh(r)
	for _, o := range r.Telemetry(p.Selected) {
		t, ok := o.Message.(*telemetry.Telemetry)
		if !ok {
			continue
		}
		for i, l := range t.GetAccessLogging() {
			d := problem.Diagnostic{Severity: problem.Warning, Code: "provider", Key: o.Key}
			for j, named := range l.GetProviders() {
				if d.Reason, d.Advice = p.reason(r, named.GetName()); d.Reason == "" {
					continue
				}
				d.Field, d.Effect = fmt.Sprintf("spec.accessLogging[%d].providers[%d].name", i, j), "the provider gets no access log"
				all = append(all, d)
			}
			if inherited = names(l, inherited); len(inherited) == 0 {
				d.Field, d.Effect = fmt.Sprintf("spec.accessLogging[%d].providers", i), "the entry changes nothing"
				d.Reason = "it names no provider, and neither do the Telemetries above it nor defaultProviders.accessLogging of MeshConfig"
				d.Advice = "name one of MeshConfig.extensionProviders that writes access logs, or " + validate.BuiltInLog
				all = append(all, d)
			}
		}
	}
	return nil, all
}

// reason says why proxies do not have a provider, and what to do; "": they have it.
func (p Problems) reason(r *index.Reader, name string) (reason, advice string) {
	mesh := r.Mesh()
	if reason := validate.LogProvider(mesh, name); reason != "" {
		return reason, "name one of MeshConfig.extensionProviders that writes access logs"
	}
	s := serviceOf(validate.Provider(mesh, name))
	if s == nil {
		return "", ""
	}
	if _, reason, advice = callee.Find(r, s.GetService(), s.GetPort(), true, p.From); reason != "" {
		reason = fmt.Sprintf("proxies cannot send to the provider %q: %s", name, reason)
	}
	return reason, advice
}

// ofMesh reports what MeshConfig names for all proxies.
func (p Problems) ofMesh(r *index.Reader) []problem.Diagnostic {
	mesh, levels := r.Mesh(), levelsOf(r, p.Selected)
	d := problem.Diagnostic{Severity: problem.Warning, Code: "provider", Key: r.MeshKey()}
	used := merge(mesh, levels, true)
	maps.Copy(used, merge(mesh, levels, false))
	var all []problem.Diagnostic
	for i, name := range mesh.GetDefaultProviders().GetAccessLogging() {
		if _, counts := used[name]; !counts || validate.LogProvider(mesh, name) != "" { // the validation reports that
			continue
		}
		if d.Reason, d.Advice = p.reason(r, name); d.Reason != "" {
			d.Field, d.Effect = fmt.Sprintf("spec.defaultProviders.accessLogging[%d]", i), "the provider gets no access log"
			all = append(all, d)
		}
	}
	if !mesh.GetEnableEnvoyAccessLogService() || p.decided(r, mesh, levels) {
		return all
	}
	_, reason, advice := serviceOfMesh(r, p.From)
	if reason == "" {
		return all
	}
	d.Field, d.Effect, d.Advice = "spec.defaultConfig.envoyAccessLogService.address", "the service gets no access log", advice
	d.Reason = "proxies cannot send to it, as enableEnvoyAccessLogService says: " + reason
	return append(all, d)
}

// decided reports whether Telemetries and defaultProviders name providers that proxies have,
// for what they call and for what calls them, so that the rest of MeshConfig does not count.
func (p Problems) decided(r *index.Reader, mesh *meshconfig.MeshConfig, levels []*telemetry.Telemetry) bool {
	some := func(server bool) bool {
		return slices.ContainsFunc(slices.Collect(maps.Keys(merge(mesh, levels, server))), func(name string) bool {
			reason, _ := p.reason(r, name)
			return reason == ""
		})
	}
	return some(true) && some(false)
}

// Named reports whether Telemetries or MeshConfig name an access log, which Problems may report
// for proxies of LDSClass.Telemetry.
func Named(r *index.Reader, selected index.SelectorSet) bool {
	mesh := r.Mesh()
	return len(levelsOf(r, selected)) > 0 || len(mesh.GetDefaultProviders().GetAccessLogging()) > 0 || mesh.GetEnableEnvoyAccessLogService()
}
