package kube

import (
	"maps"
	"slices"
	"strings"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher/kube/index"
)

// report sends the diagnostics of each origin if they have changed.
func (r *run) report(now time.Time) {
	all := map[string][]problem.Diagnostic{
		"kinds": missing(r.missing), "endpoints": r.unmirrored, "API server": unready(r.unready),
		"definitions": nil, "discovery selectors": nil,
	}
	for _, k := range kind.All() {
		all[about(k.Name)] = nil
	}
	for _, f := range r.feeds {
		if d, is := f.Problem(now); is {
			d.Key.Kind = f.Kind.Name
			if len(r.cfg.Namespaces) > 0 && (!f.Scope.Resource.Namespaced || f.Object != "") {
				d.Severity = min(d.Severity, problem.Warning) // Roles in namespaces cannot allow it
			}
			all[about(f.Kind.Name)] = append(all[about(f.Kind.Name)], d)
		}
	}
	if r.definitions != nil { // else the API server was not reached yet
		if d, is := r.definitions.Problem(now); is {
			d.Severity = problem.Warning
			d.Effect = "the watcher notices a new definition within a minute; when a definition is removed, its objects are removed"
			all["definitions"] = []problem.Diagnostic{d}
		}
	}
	if r.covered != nil {
		r.reportNeeds(all)
	}
	if d, is := r.cfg.unreadSecrets(); is {
		all[about(secretKind)] = append(all[about(secretKind)], d)
	}
	r.mu.Lock()
	maps.Copy(all, r.told)
	r.mu.Unlock()
	for origin, ds := range all {
		ds = slices.Clone(ds)
		slices.SortFunc(ds, problem.Diagnostic.Compare)
		if !slices.Equal(ds, r.reported[origin]) {
			r.sink.Problems(origin, ds)
			r.reported[origin] = ds
		}
	}
}

// about is the origin of diagnostics about a kind.
func about(kind string) string { return "kind " + kind }

// reportNeeds adds diagnostics for the kinds that cannot be listed because they
// depend on an unreadable kind.
func (r *run) reportNeeds(all map[string][]problem.Diagnostic) {
	readable := r.readable()
	for _, name := range needy {
		for _, need := range r.cfg.needs(name) {
			if !r.covered[name] && !readable[name] && !readable[need] {
				all[about(name)] = append(all[about(name)], waits(name, need))
			}
		}
	}
	if len(r.cfg.DiscoverySelectors) > 0 && !r.covered[index.NamespaceKind] {
		all["discovery selectors"] = []problem.Diagnostic{waits("", index.NamespaceKind)}
	}
}

// unreadSecrets says which Secrets the configuration leaves out: to a Gateway that
// names one of them, it is unknown (KEY-10).
func (c *Config) unreadSecrets() (problem.Diagnostic, bool) {
	d := problem.Diagnostic{
		Severity: problem.Info, Code: "secret-scope", Key: ident.Key{Kind: secretKind},
		Effect: "a credential outside is unknown to proxies, as if it did not exist",
	}
	switch selector := c.SecretSelector; {
	case len(c.Secrets.Key) == 0:
		return d, false
	case len(c.SecretNamespaces) > 0:
		d.Reason = "reads Secrets of these namespaces only: " + strings.Join(c.SecretNamespaces, ", ")
		if selector != nil {
			d.Reason += "; and with these labels only: " + selector.String()
		}
	case selector != nil:
		d.Reason = "reads Secrets with these labels only: " + selector.String()
	default:
		return d, false
	}
	d.Reason, d.Advice = "the watcher of cluster "+c.Cluster+" "+d.Reason, "to use others, change --secret-namespaces or --secret-selector"
	return d, true
}

// waits is the diagnostic of a kind, or without a name of all namespaced kinds,
// that cannot be listed because kind need is unreadable.
func waits(name, need string) problem.Diagnostic {
	d := problem.Diagnostic{
		Severity: problem.Error, Code: "needs", Key: ident.Key{Kind: name},
		Reason: "objects of this kind cannot be converted without those of kind " + need, Advice: "make kind " + need + " readable",
		Effect: "objects of this kind stay as they are on the log; nothing is removed",
	}
	if name == "" {
		d.Reason = "the discovery selectors cannot be applied without objects of kind " + need
		d.Effect = "objects in namespaces stay as they are on the log; nothing is removed"
	}
	return d
}

// unready is the diagnostic of an API server that answers but is not ready.
func unready(err error) []problem.Diagnostic {
	if err == nil {
		return nil
	}
	return []problem.Diagnostic{{
		Severity: problem.Warning, Code: "not-ready", Reason: "the API server answers, and " + err.Error(),
		Advice: "look at its /readyz?verbose", Effect: "changes may not be seen; nothing is removed",
	}}
}

// missing is the diagnostic of the kinds that the API server does not serve.
func missing(kinds []*kind.Kind) []problem.Diagnostic {
	if len(kinds) == 0 {
		return nil
	}
	var names []string
	for _, k := range kinds {
		names = append(names, k.Name)
	}
	slices.Sort(names)
	return []problem.Diagnostic{{
		Severity: problem.Info, Code: "not-installed",
		Reason: "the API server does not serve " + strings.Join(names, ", "),
		Advice: "to use them, install their definitions; the watcher then watches them",
		Effect: "objects of these kinds on the log stay until meshlog sources remove SOURCE --kind KIND",
	}}
}
