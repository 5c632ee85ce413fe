package apply

import (
	"cmp"
	"context"
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

// whatIfView is the result of what-if.
type whatIfView struct {
	// Position is the last record of the log that the change is judged on.
	Position ident.Position      `json:"position,omitzero"`
	Proxy    string              `json:"proxy,omitempty"`
	Objects  []past.ObjectChange `json:"objects"`
	Classes  []classesView       `json:"classes"`
	Held     string              `json:"held,omitempty"` // why the guard would hold the change back
	// Staged is how a rollout would give the change to the proxies; empty: to all at once.
	Staged   string               `json:"staged,omitempty"`
	Problems []command.Diagnostic `json:"problems"`

	failed bool // an object is invalid: the change was not judged
}

func newWhatIfView() *whatIfView {
	return &whatIfView{Objects: []past.ObjectChange{}, Classes: []classesView{}, Problems: []command.Diagnostic{}}
}

func (v *whatIfView) add(problems []problem.Diagnostic) {
	v.failed = v.failed || failed(problems)
	v.Problems = append(v.Problems, diagnostics(problems)...)
}

// countProxies counts the connected proxies of each class.
func (w *whatIf) countProxies(ctx context.Context, e *command.Env) error {
	r, err := e.Reports(ctx, bus.Proxies)
	if err != nil {
		return err
	}
	e.WarnSilent(r)
	count := map[string]int{}
	for _, f := range r.Frontends {
		for _, p := range f.GetProxies() {
			count[p.GetGroup()]++
		}
	}
	for i := range w.view.Classes {
		n := 0
		for _, c := range w.view.Classes[i].Classes {
			n += count[c]
		}
		w.view.Classes[i].Proxies = &n
	}
	return nil
}

// who names the proxies of v.
func (v *classesView) who() string {
	who := strings.Join(v.Classes, "; ")
	if v.Proxies != nil {
		who += fmt.Sprintf(" (%s connected)", command.Plural(*v.Proxies, "proxy", "proxies"))
	}
	return who
}

func (v *classesView) what() string {
	return fmt.Sprintf("%s, %d bytes", command.Plural(len(v.Resources), "resource differs", "resources differ"), v.Bytes)
}

func (v *whatIfView) summary() string {
	if v.failed {
		return "The change was not judged: an object is invalid."
	}
	if len(v.Objects)+len(v.Classes) == 0 {
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

func (v *whatIfView) show(out *command.Output, markdown bool) {
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
		out.Line("\n%s: %s", cmp.Or(v.Proxy, c.who()), c.what())
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
	out.Line("%s Nothing was written.", v.summary())
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
func (v *whatIfView) markdown(out *command.Output) {
	out.Line("### What this changes in the mesh\n\n%s", v.summary())
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
		fenced(out, fmt.Sprintf("%s: %s", cmp.Or(v.Proxy, c.who()), c.what()), c.Resources)
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

func parseShard(s string) (ident.Shard, error) {
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
