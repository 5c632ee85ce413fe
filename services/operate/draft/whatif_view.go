package draft

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
)

// View is what a draft would do.
type View struct {
	// Position is the last record of the log that the change is judged on.
	Position ident.Position      `json:"position,omitzero"`
	Proxy    string              `json:"proxy,omitempty"`
	Objects  []past.ObjectChange `json:"objects"`
	Classes  []Classes           `json:"classes"`
	Held     string              `json:"held,omitempty"` // why the guard would hold the change back
	// Staged is how a rollout would give the change to the proxies; empty: to all at once.
	Staged   string               `json:"staged,omitempty"`
	Problems []command.Diagnostic `json:"problems"`

	failed   bool // an object is invalid: the change was not judged
	withheld bool // an operator keeps the change from being served, or a part of it
}

// NewView returns a view of problems alone, of documents that were not judged further.
func NewView(problems []problem.Diagnostic) *View {
	v := newView()
	v.add(problems)
	return v
}

func newView() *View {
	return &View{Objects: []past.ObjectChange{}, Classes: []Classes{}, Problems: []command.Diagnostic{}}
}

func (v *View) add(problems []problem.Diagnostic) {
	v.failed = v.failed || Failed(problems)
	v.Problems = append(v.Problems, Diagnostics(problems)...)
}

// Count counts the connected proxies of each class.
func (v *View) Count(r *bus.Reports) {
	count := map[string]int{}
	for _, f := range r.Frontends {
		for _, p := range f.GetProxies() {
			count[p.GetGroup()]++
		}
	}
	for i := range v.Classes {
		n := 0
		for _, c := range v.Classes[i].Classes {
			n += count[c]
		}
		v.Classes[i].Proxies = &n
	}
}

// Failed reports whether an object is invalid: the change was not judged.
func (v *View) Failed() bool { return v.failed }

// Changes reports whether the mesh would change.
func (v *View) Changes() bool { return len(v.Objects)+len(v.Classes) > 0 }

// Who names the classes of proxies that differ alike, and how many proxies are connected.
func (v *Classes) Who() string {
	who := strings.Join(v.Classes, "; ")
	if v.Proxies != nil {
		who += fmt.Sprintf(" (%s connected)", command.Plural(*v.Proxies, "proxy", "proxies"))
	}
	return who
}

// What counts what differs for them.
func (v *Classes) What() string {
	return fmt.Sprintf("%s, %d bytes", command.Plural(len(v.Resources), "resource differs", "resources differ"), v.Bytes)
}

// Summary says in one line what would change.
func (v *View) Summary() string {
	if v.failed {
		return "The change was not judged: an object is invalid."
	}
	switch {
	case v.Changes():
	case v.withheld:
		return "Nothing would change: an operator keeps what the sources offer from being served."
	default:
		return "Nothing would change."
	}
	text := command.Plural(len(v.Objects), "object would differ", "objects would differ")
	switch {
	case v.Proxy != "" && len(v.Classes) == 0:
		return text + ", and nothing for " + v.Proxy + "."
	case len(v.Classes) == 0:
		return text + ", and nothing for any proxy."
	}
	return text + "."
}

// Show prints v: as text, or in Markdown for a pull request.
func (v *View) Show(out *command.Output, markdown bool) {
	if markdown {
		v.markdown(out)
		return
	}
	for _, p := range v.Problems {
		p.Show(out)
	}
	if v.failed {
		return // the error of the command says so
	}
	if len(v.Problems) > 0 {
		out.Line("")
	}
	showChanges(out, "", v.Objects)
	for _, c := range v.Classes {
		out.Line("\n%s: %s", cmp.Or(v.Proxy, c.Who()), c.What())
		showChanges(out, "  ", c.Resources)
		for _, l := range c.Losses {
			out.Line("  %s", out.Paint("! "+l, command.Red))
		}
	}
	if len(v.Objects) > 0 {
		out.Line("")
	}
	if v.Held != "" {
		out.Line("The guard would hold this back: %s. `meshlog approve` would let it pass.", v.Held)
	}
	if v.Staged != "" {
		out.Line("A rollout would give this to the proxies %s.", v.Staged)
	}
	out.Line("%s Nothing was written.", v.Summary())
}

func showChanges(out *command.Output, indent string, changes []past.ObjectChange) {
	for _, c := range changes {
		out.Line("%s%s", indent, command.ChangeTitle(c, out))
		for _, l := range command.ChangeLines(c) {
			out.Line("%s    %s", indent, l)
		}
	}
}

// markdown prints a summary for a pull request.
func (v *View) markdown(out *command.Output) {
	out.Line("### What this changes in the mesh\n\n%s", v.Summary())
	if v.Held != "" {
		out.Line("\n**The guard would hold it back**: %s.", v.Held)
	}
	if v.Staged != "" {
		out.Line("\nA rollout would give it to the proxies %s.", v.Staged)
	}
	for _, p := range v.Problems {
		out.Line("\n- **%s** `%s`: %s. To do: %s.", p.Severity, p.Where(), p.What(), cmp.Or(p.Advice, "nothing"))
	}
	fenced(out, "Objects", v.Objects)
	for _, c := range v.Classes {
		fenced(out, fmt.Sprintf("%s: %s", cmp.Or(v.Proxy, c.Who()), c.What()), c.Resources)
		for _, l := range c.Losses {
			out.Line("- **%s**", l)
		}
	}
}

func fenced(out *command.Output, title string, changes []past.ObjectChange) {
	if len(changes) == 0 {
		return
	}
	out.Line("\n#### %s\n\n```diff", title)
	signs := map[string]string{"added": "+", "removed": "-"}
	for _, c := range changes {
		out.Line("%s %s", cmp.Or(signs[c.Change], "!"), c.Object)
		for _, l := range command.ChangeLines(c) {
			out.Line("    %s", l)
		}
	}
	out.Line("```")
}

// ParseShard reads SOURCE/INSTANCE.
func ParseShard(s string) (ident.Shard, error) {
	source, instance, _ := strings.Cut(s, "/")
	if source == "" || instance == "" {
		return ident.Shard{}, command.Usage("source %q: want SOURCE/INSTANCE, as `meshlog sources` prints it", s)
	}
	return ident.Shard{Source: source, Instance: instance}, nil
}

func sortedShards[V any](m map[ident.Shard]V) []ident.Shard {
	return slices.SortedFunc(maps.Keys(m), func(a, b ident.Shard) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Instance, b.Instance))
	})
}

// Loses reports whether a proxy would lose a route, a host or its last endpoint.
func (v *View) Loses() bool {
	return slices.ContainsFunc(v.Classes, func(c Classes) bool { return len(c.Losses) > 0 })
}
