package kube

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
)

// report tells what keeps kinds from being read, where it is news.
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
				d.Severity = min(d.Severity, problem.Warning) // a Role in each namespace is what is asked for
			}
			all[about(f.Kind.Name)] = append(all[about(f.Kind.Name)], d)
		}
	}
	if d, is := r.definitions.Problem(now); is {
		d.Severity = problem.Warning
		d.Effect = "a definition that is installed is noticed within a minute; the objects of one that is removed are removed"
		all["definitions"] = []problem.Diagnostic{d}
	}
	if r.covered != nil {
		r.reportNeeds(all)
	}
	r.mu.Lock()
	maps.Copy(all, r.told)
	r.mu.Unlock()
	for origin, ds := range all {
		ds = slices.Clone(ds)
		slices.SortFunc(ds, func(a, b problem.Diagnostic) int { return cmp.Or(a.Compare(b), cmp.Compare(a.Origin, b.Origin)) })
		if !slices.Equal(ds, r.reported[origin]) {
			r.sink.Problems(origin, ds)
			r.reported[origin] = ds
		}
	}
}

// reportTold reports what others have told, as one does that can be said without
// the API server.
func (r *run) reportTold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for origin, ds := range r.told {
		if len(ds) > 0 {
			r.sink.Problems(origin, ds)
			r.reported[origin] = slices.Clone(ds)
		}
	}
}

// about is the origin of what is said about a kind.
func about(kind string) string { return "kind " + kind }

// reportNeeds reports the kinds that are not spoken of for lack of others.
func (r *run) reportNeeds(all map[string][]problem.Diagnostic) {
	readable := r.readable()
	for _, name := range needy {
		for _, need := range r.cfg.needs(name) {
			if !r.covered[name] && !readable[name] && !readable[need] {
				all[about(name)] = append(all[about(name)], waits(name, need))
			}
		}
	}
	if len(r.cfg.DiscoverySelectors) > 0 && !r.covered[namespaceKind] {
		all["discovery selectors"] = []problem.Diagnostic{waits("", namespaceKind)}
	}
}

// waits says that a kind, or without a name all in namespaces, is not spoken of
// for lack of another.
func waits(name, need string) problem.Diagnostic {
	d := problem.Diagnostic{
		Severity: problem.Error, Code: "needs", Key: ident.Key{Kind: name},
		Reason: "what objects of this kind say is not known without those of kind " + need, Advice: "make those readable",
		Effect: "objects of this kind stay as they are on the log; nothing is removed",
	}
	if name == "" {
		d.Reason = "which namespaces count is not known without objects of kind " + need
		d.Effect = "objects in namespaces stay as they are on the log; nothing is removed"
	}
	return d
}

// unready says that the API server says that it is not ready.
func unready(err error) []problem.Diagnostic {
	if err == nil {
		return nil
	}
	return []problem.Diagnostic{{
		Severity: problem.Warning, Code: "not-ready", Reason: "the API server answers, and " + err.Error(),
		Advice: "look at its /readyz?verbose", Effect: "changes may not be seen; nothing is removed",
	}}
}

// missing says which kinds the API server does not serve.
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
		Reason: "the API server does not know " + strings.Join(names, ", "),
		Advice: "install their definitions if you want to use them: they are watched from then on",
		Effect: "objects of these kinds that are on the log stay, until meshlog sources remove SOURCE --kind KIND",
	}}
}
