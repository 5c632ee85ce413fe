package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
)

// severities are listed in the order of their weight.
var severities = []string{"error", "warning", "info"}

// atLeast reports whether a severity is as bad as another, or worse.
func atLeast(severity, than string) bool {
	return slices.Index(severities, severity) <= slices.Index(severities, than)
}

func checkSeverity(flag, name string) error {
	if name != "" && !slices.Contains(severities, name) {
		return command.Usage("--%s %q: want error, warning or info", flag, name)
	}
	return nil
}

// diagnosticFilter selects problems; the zero filter selects all.
type diagnosticFilter struct {
	severity               string // or worse
	codes, objects, shards []string
}

func (f *diagnosticFilter) match(d *command.Diagnostic) bool {
	shard := d.Shard
	if i := strings.LastIndex(d.Object, "("); i >= 0 {
		shard = strings.TrimSuffix(d.Object[i+1:], ")")
	}
	source, _, _ := strings.Cut(shard, "/")
	return (f.severity == "" || atLeast(d.Severity, f.severity)) &&
		(len(f.codes) == 0 || slices.Contains(f.codes, d.Code)) &&
		(len(f.shards) == 0 || slices.Contains(f.shards, source) || slices.Contains(f.shards, shard)) &&
		(len(f.objects) == 0 || slices.ContainsFunc(f.objects, func(o string) bool {
			return strings.Contains(d.Object, o) || strings.Contains(d.Origin, o)
		}))
}

// Diagnostics returns the command `diagnostics`.
func Diagnostics() *cobra.Command {
	cmd := &cobra.Command{
		Use: "diagnostics", Short: "Show problems in the configuration", Args: command.Args(0, 0, ""),
		Long: `Show the problems in the configuration: where each is, what is wrong, how to fix
it, and what the mesh does until then.

If nothing runs on --data, and for an archive, it shows the problems that the
last version names.`,
		Example: `  meshlog diagnostics --data data/
  meshlog diagnostics --data data/ --severity error --source file
  meshlog diagnostics --data data/ --object demo/shop
  meshlog diagnostics --data data/ --fail-on warning   # in a pipeline`,
	}
	var filter diagnosticFilter
	f := cmd.Flags()
	f.StringVar(&filter.severity, "severity", "", "only problems of this `severity` or worse: error, warning or info")
	f.StringSliceVar(&filter.codes, "code", nil, "only problems with this `code`, as -o json prints it")
	f.StringSliceVar(&filter.objects, "object", nil, "only problems whose object or place contains this `text`")
	f.StringSliceVar(&filter.shards, "source", nil, "only problems of this `source`: SOURCE or SOURCE/INSTANCE")
	failOn := f.String("fail-on", "", "exit with 1 if there is a problem of this `severity` or worse: error, warning or info")
	return command.Past(cmd, func(ctx context.Context, e *command.Env, _ []string) error {
		if err := errors.Join(checkSeverity("fail-on", *failOn), checkSeverity("severity", filter.severity)); err != nil {
			return err
		}
		views, err := diagnostics(ctx, e)
		if err != nil {
			return err
		}
		all, bad := len(views), 0
		views = slices.DeleteFunc(views, func(v command.Diagnostic) bool { return !filter.match(&v) })
		for _, v := range views {
			if *failOn != "" && atLeast(v.Severity, *failOn) {
				bad++
			}
		}
		e.Print(views, func() { showDiagnostics(views, all, e.Output) })
		if bad > 0 {
			return fmt.Errorf("%s of severity %s or worse", command.Plural(bad, "problem", "problems"), *failOn)
		}
		return nil
	})
}

// diagnostics returns the problems that the builder and the watchers report or,
// if none does, those of the last version, the worst first.
func diagnostics(ctx context.Context, e *command.Env) ([]command.Diagnostic, error) {
	p, err := e.Past(ctx)
	if err != nil {
		return nil, err
	}
	reports := new(bus.Reports)
	if p.Live {
		if reports, err = e.Reports(ctx, bus.Diagnostics); err != nil {
			return nil, err
		}
	}
	var last []command.Diagnostic
	if command.Newest(reports.Builders) == nil {
		if last, err = published(ctx, e, p); err != nil {
			return nil, err
		}
	}
	return DiagnosticsOf(reports, last), nil
}

// DiagnosticsOf returns the problems that the builder and the watchers report, the worst
// first; last, those of the last version, take the place of a builder that does not answer.
func DiagnosticsOf(reports *bus.Reports, last []command.Diagnostic) []command.Diagnostic {
	views := last
	if b := command.Newest(reports.Builders); b != nil {
		views = command.Diagnostics(b.GetDiagnostics(), "")
	}
	for _, w := range reports.Watchers {
		views = append(views, command.Diagnostics(w.GetDiagnostics(), w.GetSource()+"/"+w.GetInstance())...)
	}
	slices.SortStableFunc(views, func(a, b command.Diagnostic) int {
		return cmp.Or(cmp.Compare(slices.Index(severities, a.Severity), slices.Index(severities, b.Severity)), cmp.Compare(a.Origin, b.Origin))
	})
	return views
}

// namedInManifest is the number of problems that a builder writes into a version
// at most.
const namedInManifest = 1000

// published returns the problems of the last version.
func published(ctx context.Context, e *command.Env, p *past.Past) ([]command.Diagnostic, error) {
	if p.Live {
		fmt.Fprintln(e.Stderr, "No builder reports; these are the problems of the last version.")
	}
	head, err := command.Head(ctx, p.Versions)
	problems := head.Manifest.GetDiagnostics()
	if len(problems) >= namedInManifest {
		fmt.Fprintf(e.Stderr, "A version names the first %d of its problems; there may be more.\n", namedInManifest)
	}
	return command.Diagnostics(problems, ""), err
}

// showDiagnostics shows the selected problems; all counts those without filter.
func showDiagnostics(views []command.Diagnostic, all int, out *command.Output) {
	for _, v := range views {
		v.Show(out)
	}
	switch {
	case all == 0:
		out.Line("No problems.")
	case len(views) == 0:
		out.Line("No problem matches; without the filters there %s.", command.Plural(all, "is", "are"))
	default:
		out.Line("\n%s", countSeverities(views, all))
	}
}

func countSeverities(views []command.Diagnostic, all int) string {
	counts := map[string]int{}
	for _, v := range views {
		counts[v.Severity]++
	}
	var parts []string
	for _, s := range severities {
		many := s + "s"
		if s == "info" {
			many = s
		}
		if n := counts[s]; n > 0 {
			parts = append(parts, command.Plural(n, s, many))
		}
	}
	text := strings.Join(parts, ", ")
	if all > len(views) {
		text += fmt.Sprintf("; %d of %d problems", len(views), all)
	}
	return text
}
