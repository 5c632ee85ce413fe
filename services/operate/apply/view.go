package apply

import (
	"fmt"
	"slices"
	"strings"

	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
)

// view is the result of a change.
type view struct {
	Source   string       `json:"source"`
	Instance string       `json:"instance"`
	DryRun   bool         `json:"dryRun,omitempty"`
	Objects  []objectView `json:"objects"`
	// Position is the end of the change on the log; absent if nothing was written.
	Position ident.Position `json:"position,omitzero"`
	// Version is the first one that has the change.
	Version  ident.Position       `json:"version,omitzero"`
	Applied  uint32               `json:"applied,omitempty"`  // proxies that have applied it, with --wait
	Streams  uint32               `json:"streams,omitempty"`  // proxies that are connected
	Approved []string             `json:"approved,omitempty"` // holds of the guard that the command approved
	Held     []string             `json:"held,omitempty"`     // holds that also keep other objects
	Problems []command.Diagnostic `json:"problems,omitempty"`

	failed bool // nothing was written, and the error of the command says why
}

// objectView is what happened to an object.
type objectView struct {
	Action string `json:"action"` // created, changed, unchanged, deleted
	past.ObjectChange
	Origin string `json:"origin,omitempty"`
}

func (v *view) add(problems []problem.Diagnostic) {
	v.Problems = append(v.Problems, diagnostics(problems)...)
}

// diagnostics returns problems as they are printed, the worst first.
func diagnostics(problems []problem.Diagnostic) []command.Diagnostic {
	var all []*snapshotv1.Diagnostic
	for _, p := range slices.SortedStableFunc(slices.Values(problems), func(a, b problem.Diagnostic) int { return int(b.Severity) - int(a.Severity) }) {
		all = append(all, p.Proto())
	}
	return command.Diagnostics(all, "")
}

// take notes the steps of a change; with the fields that differ if that is wanted.
func (v *view) take(c *change, fields bool) {
	v.Objects = []objectView{}
	for _, st := range c.steps {
		o := objectView{Action: st.action, ObjectChange: past.ObjectChange{Object: st.key.String(), Key: past.Key(st.key)}}
		if st.document != nil {
			o.Origin = st.origin("")
		}
		if fields && st.action != unchanged {
			var before, after *ident.Value
			if st.before != nil {
				before = &st.before.Value
			}
			if st.action != deleted {
				after = &st.value
			}
			o.ObjectChange = past.CompareValues(st.key, before, after)
		}
		v.Objects = append(v.Objects, o)
	}
}

func (v *view) show(out *command.Output) {
	for _, p := range v.Problems {
		p.Show(out)
	}
	if v.failed {
		return
	}
	if len(v.Problems) > 0 {
		out.Line("")
	}
	counts := map[string]int{}
	for _, o := range v.Objects {
		counts[o.Action]++
		switch {
		case o.Action == unchanged:
		case v.DryRun:
			out.Line("%s", command.ChangeTitle(o.ObjectChange, out))
			for _, l := range command.ChangeLines(o.ObjectChange) {
				out.Line("    %s", l)
			}
		default:
			out.Line("%-8s %s", o.Action, o.Object)
		}
	}
	var parts []string
	for _, action := range []string{created, changed, deleted, unchanged} {
		if n := counts[action]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, action))
		}
	}
	text := strings.Join(parts, ", ")
	switch {
	case len(v.Objects) == 0:
		out.Line("Nothing to write: no object of the files is one of meshlog's kinds.")
	case v.DryRun && len(v.Objects) == counts[unchanged]:
		out.Line("Nothing would change: %s.", text)
	case v.DryRun:
		out.Line("\n%s. Nothing was written; without --dry-run it is.", text)
	case v.Position.IsZero():
		out.Line("Nothing to write: %s.", text)
	default:
		v.showVersion(text, out)
	}
}

func (v *view) showVersion(text string, out *command.Output) {
	where := fmt.Sprintf("on the log at %s", v.Position)
	if !v.Version.IsZero() {
		where = fmt.Sprintf("in version %s", v.Version)
	}
	if v.Streams > 0 {
		where += fmt.Sprintf(", applied by %d of %s", v.Applied, proxies(v.Streams))
	}
	out.Line("\n%s, %s.", text, where)
	if len(v.Held) > 0 {
		out.Line("The guard keeps serving what was deleted, with other objects that were lost: `meshlog approve %s` removes all of them.",
			strings.Join(v.Held, "` and `meshlog approve "))
	}
}
