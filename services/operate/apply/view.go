package apply

import (
	"fmt"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/draft"
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
	v.Problems = append(v.Problems, draft.Diagnostics(problems)...)
}

// take notes the steps of a change; with the fields that differ if that is wanted.
func (v *view) take(c *draft.Change, fields bool) {
	v.Objects = []objectView{}
	for _, st := range c.Steps {
		o := objectView{Action: st.Action, ObjectChange: past.ObjectChange{Object: st.Key.String(), Key: past.Key(st.Key)}}
		if st.Document != nil {
			o.Origin = st.Place("")
		}
		if fields && st.Action != draft.Unchanged {
			var before, after *ident.Value
			if st.Before != nil {
				before = &st.Before.Value
			}
			if st.Action != draft.Deleted {
				after = &st.Value
			}
			o.ObjectChange = past.CompareValues(st.Key, before, after)
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
		case o.Action == draft.Unchanged:
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
	for _, action := range []string{draft.Created, draft.Changed, draft.Deleted, draft.Unchanged} {
		if n := counts[action]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, action))
		}
	}
	text := strings.Join(parts, ", ")
	switch {
	case len(v.Objects) == 0:
		out.Line("Nothing to write: no object of the files is one of meshlog's kinds.")
	case v.DryRun && len(v.Objects) == counts[draft.Unchanged]:
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
