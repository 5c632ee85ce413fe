package act

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/busauth"
	"meshlog.dev/services/mesh/document"
	"meshlog.dev/services/mesh/manifest"
	"meshlog.dev/services/mesh/permit"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/operate/command"
)

// readPolicy returns the MeshPolicy in a file of documents, which may hold other
// objects too, and warnings about it.
func readPolicy(path string) (found *configv1.MeshPolicy, warnings []string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	for _, d := range manifest.Parse(text) {
		o, bad := document.Read(&d)
		switch {
		case o.Foreign:
			continue
		case o.Kind == nil: // it may be the policy
			return nil, nil, refused(path, bad)
		case o.Kind.Name != permit.PolicyKind || o.Name != world.CountedName:
			continue
		case bad != nil:
			return nil, nil, refused(path, bad)
		case found != nil:
			return nil, nil, fmt.Errorf("%s:%d: holds a second %s %s; leave one", path, d.Line, permit.PolicyKind, o.Name)
		}
		for _, p := range o.Kind.Validate(o.Namespace, o.Message) {
			p.Line = d.FieldLine(p.Field)
			if p.Severity == problem.Error {
				return nil, nil, refused(path, &p)
			}
			warnings = append(warnings, refused(path, &p).Error())
		}
		found = o.Message.(*configv1.MeshPolicy)
	}
	if found == nil {
		return nil, nil, fmt.Errorf("%s: holds no %s %s; give the file with the policy of the mesh", path, permit.PolicyKind, world.CountedName)
	}
	return found, warnings, nil
}

func refused(path string, d *problem.Diagnostic) error {
	at := *d
	at.Line = 0
	if at.Advice != "" {
		at.Reason += "; " + at.Advice
	}
	return fmt.Errorf("%s:%d: %w", path, max(d.Line, 1), &at)
}

// foldOnly is a part of the source rules that the bus does not enforce.
type foldOnly struct {
	permit.Part
	Watchers []string `json:"watchers,omitempty"` // to whom it applies
}

// limits returns what a policy lets watchers publish, and the parts of its rules that
// only the fold enforces (ACL-3).
func limits(p *configv1.MeshPolicy, roles []bus.Role) (map[bus.Role]busauth.Limit, []foldOnly) {
	rules := permit.New(p.GetSourceRules(), "", ident.Shard{}) // no host is compared, so none is completed; a Reach needs no home
	all := map[bus.Role]busauth.Limit{}
	var parts []foldOnly
	applied := make([]bool, len(p.GetSourceRules()))
	for _, role := range roles {
		shard, watches := role.Shard()
		if !watches {
			continue
		}
		reach := rules.Reach(shard)
		if !reach.All() {
			all[role] = busauth.Limit{Allow: subjectsOf(shard.Source, reach.Allow), Deny: subjectsOf(shard.Source, reach.Deny)}
		}
		for _, i := range reach.Rules {
			applied[i] = true
		}
		for _, part := range reach.FoldOnly {
			i := slices.IndexFunc(parts, func(f foldOnly) bool { return f.Part == part })
			if i < 0 {
				i, parts = len(parts), append(parts, foldOnly{Part: part})
			}
			parts[i].Watchers = append(parts[i].Watchers, busauth.WatcherName(shard))
		}
	}
	for i, is := range applied {
		if !is {
			field := fmt.Sprintf("sourceRules[%d]", i)
			parts = append(parts, foldOnly{Part: permit.Part{Rule: i, Field: field, Reason: "no --watcher is of its source and instance"}})
		}
	}
	slices.SortStableFunc(parts, func(a, b foldOnly) int { return a.Rule - b.Rule })
	return all, parts
}

func subjectsOf(source string, names []permit.Names) []events.Subject {
	var all []events.Subject
	for _, n := range names {
		all = append(all, events.Objects{
			Source: source, Instance: unlessAny(n.Instance), Kind: unlessAny(n.Kind), Namespace: unlessAny(n.Namespace),
		}.Subjects())
	}
	return all
}

// unlessAny returns nil for all names.
func unlessAny(name string) *string {
	if name == permit.Any {
		return nil
	}
	return &name
}

// showLimits prints the permissions of watchers, what the bus does not enforce, and in
// which order a policy and its permissions change.
func showLimits(v *busAuthView, out *command.Output) {
	t := command.Rows{Head: []string{"WATCHER", "MAY", "PUBLISH TO", "STATE"}}
	changed := false
	for _, p := range v.Permissions {
		may := "yes"
		if p.Deny {
			may = "no"
		}
		t.Add(p.Watcher, may, p.Subject, p.State)
		changed = changed || p.State != busauth.StateKept
	}
	if t.Len() > 0 {
		out.Line("")
		out.Rows(&t)
	}
	t = command.Rows{Head: []string{"RULE", "WATCHERS", "BECAUSE"}}
	for _, f := range v.FoldOnly {
		t.Add(f.Field, strings.Join(f.Watchers, ", "), f.Reason)
	}
	if t.Len() > 0 {
		out.Line("")
		out.Line("Only the fold enforces:")
		out.Rows(&t)
	}
	for _, w := range v.Warnings {
		out.Line("")
		out.Line("Warning: " + w)
	}
	if !changed {
		return
	}
	out.Line("")
	if !v.limited {
		out.Line("Without --policy, these watchers may publish all objects of their shards again.")
		return
	}
	out.Line("If a watcher may publish more now, have the servers load it before you publish the policy. If it")
	out.Line("may publish less, publish the policy first, and wait until `meshlog diagnostics` shows no object of")
	out.Line("the watcher as forbidden: an object that the bus refuses keeps its last good value.")
}
