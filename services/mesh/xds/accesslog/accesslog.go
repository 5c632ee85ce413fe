// Package accesslog makes the access logs of listeners from Telemetries and MeshConfig
// (TL-5).
//
// It is pure.
package accesslog

import (
	"maps"
	"slices"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	celv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	meshconfig "istio.io/api/mesh/v1alpha1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/xds/callee"
	"meshlog.dev/services/mesh/xds/piece"
)

// Of returns the access logs of proxies of LDSClass.Telemetry: with server those of the calls
// that their workloads get, else of the calls that these make. Routers are clients, as in
// Istio.
//
// accessLogFile and enableEnvoyAccessLogService of the MeshConfig count if Telemetries and
// defaultProviders name no provider for these calls that proxies have. Istio does the same: in pilot/pkg/networking/core/accesslog.go, setHTTPAccessLog takes accessLogFile and
// enableEnvoyAccessLogService if Telemetries.AccessLogging returns no entry, where a disabled
// provider is one.
func Of(r *index.Reader, selected index.SelectorSet, server bool, from callee.Caller) []*accesslogv3.AccessLog {
	mesh := r.Mesh()
	entries := merge(mesh, levelsOf(r, selected), server)
	var all []*accesslogv3.AccessLog
	decided := false
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		e := entries[name]
		log := ofProvider(r, name, from)
		if log == nil {
			continue
		}
		decided = true
		if !e.disabled {
			log.Filter = filtered(e.filter)
			all = append(all, log)
		}
	}
	if !decided {
		return ofMesh(r, from)
	}
	return all
}

// levelsOf returns the Telemetries that say something about access logs, the widest first.
func levelsOf(r *index.Reader, selected index.SelectorSet) []*telemetry.Telemetry {
	var levels []*telemetry.Telemetry
	for _, o := range r.Telemetry(selected) {
		if t, ok := o.Message.(*telemetry.Telemetry); ok && len(t.GetAccessLogging()) > 0 {
			levels = append(levels, t)
		}
	}
	return levels
}

// ofMesh returns the access logs that a MeshConfig names for all proxies.
func ofMesh(r *index.Reader, from callee.Caller) []*accesslogv3.AccessLog {
	mesh := r.Mesh()
	var all []*accesslogv3.AccessLog
	if path := mesh.GetAccessLogFile(); path != "" {
		all = append(all, fileOfMesh(mesh, path))
	}
	if mesh.GetEnableEnvoyAccessLogService() {
		if to, reason, _ := serviceOfMesh(r, from); reason == "" {
			all = append(all, byHTTP(to, nil))
		}
	}
	return all
}

// ofProvider returns the access log of a provider; nil: proxies have no such provider.
func ofProvider(r *index.Reader, name string, from callee.Caller) *accesslogv3.AccessLog {
	mesh := r.Mesh()
	if validate.LogProvider(mesh, name) != "" {
		return nil
	}
	p := validate.Provider(mesh, name)
	if s := serviceOf(p); s != nil {
		to, reason, _ := callee.Find(r, s.GetService(), s.GetPort(), true, from)
		if reason != "" {
			return nil
		}
		return bySendingTo(to, p)
	}
	return fileOf(mesh, p) // without p, of the built-in one
}

// filtered returns the filter of the calls for which an expression is true; nil: of all.
func filtered(f *telemetry.AccessLogging_Filter) *accesslogv3.AccessLogFilter {
	if f == nil {
		return nil
	}
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ExtensionFilter{ExtensionFilter: &accesslogv3.ExtensionFilter{
		Name: "envoy.access_loggers.extension_filters.cel",
		ConfigType: &accesslogv3.ExtensionFilter_TypedConfig{
			TypedConfig: piece.Any(&celv3.ExpressionFilter{Expression: f.GetExpression()}),
		},
	}}}
}

// matches reports whether an entry is for servers, or for clients.
func matches(l *telemetry.AccessLogging, server bool) bool {
	return InMode(l.GetMatch().GetMode(), server)
}

// InMode reports whether what has a mode is for servers, or for clients.
func InMode(mode telemetry.WorkloadMode, server bool) bool {
	switch mode {
	case telemetry.WorkloadMode_CLIENT:
		return !server
	case telemetry.WorkloadMode_SERVER:
		return server
	default:
		return true
	}
}

// names returns the providers that an entry names, or else those that it inherits.
func names(l *telemetry.AccessLogging, inherited []string) []string {
	if len(l.GetProviders()) == 0 {
		return inherited
	}
	var all []string
	for _, p := range l.GetProviders() {
		all = append(all, p.GetName())
	}
	return all
}

// entry says whether the calls are logged to a provider, and which of them.
type entry struct {
	disabled bool
	filter   *telemetry.AccessLogging_Filter
}

// merge merges the levels, the widest first, into what they say about each provider. The
// providers that a level names replace those of the levels above (TL-1). An entry that names
// none changes the filter of those that it inherits only if it has one.
func merge(mesh *meshconfig.MeshConfig, levels []*telemetry.Telemetry, server bool) map[string]entry {
	entries := map[string]entry{}
	inherited := mesh.GetDefaultProviders().GetAccessLogging()
	if len(levels) == 0 {
		for _, name := range inherited {
			entries[name] = entry{}
		}
		return entries
	}
	scope := inherited
	for _, t := range levels {
		var named []string
		for _, l := range t.GetAccessLogging() {
			if matches(l, server) {
				named = append(named, names(l, nil)...)
			}
		}
		if len(named) > 0 {
			scope = named
		}
	}
	filters := map[string]*telemetry.AccessLogging_Filter{}
	for _, t := range levels {
		for _, l := range t.GetAccessLogging() {
			inherited = names(l, inherited)
			for _, name := range inherited {
				if !slices.Contains(scope, name) || !matches(l, server) {
					continue
				}
				if len(l.GetProviders()) > 0 || l.GetFilter() != nil {
					filters[name] = l.GetFilter()
				}
				entries[name] = entry{disabled: l.GetDisabled().GetValue(), filter: filters[name]}
			}
		}
	}
	return entries
}
