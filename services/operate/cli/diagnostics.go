package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/store"
)

// diagnosticView is a problem as it is printed whole.
type diagnosticView struct {
	Severity string `json:"severity"`
	Code     string `json:"code"`
	Object   string `json:"object,omitempty"`
	Origin   string `json:"origin,omitempty"`
	Field    string `json:"field,omitempty"`
	Reason   string `json:"reason"`
	Advice   string `json:"advice,omitempty"`
	Effect   string `json:"effect,omitempty"`

	shard string // of the watcher that says so
}

// diagnosticFilter says which problems are wanted; zero: all.
type diagnosticFilter struct {
	severity               string // this or worse
	codes, objects, shards []string
}

func (f *diagnosticFilter) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.severity, "severity", "", "only problems of this `severity` or worse: error, warning or info")
	cmd.Flags().StringSliceVar(&f.codes, "code", nil, "only problems of this `code`, as -o json prints it")
	cmd.Flags().StringSliceVar(&f.objects, "object", nil, "only problems whose object or place contains this `text`")
	cmd.Flags().StringSliceVar(&f.shards, "source", nil, "only problems of this `source`: SOURCE or SOURCE/INSTANCE")
}

// is says whether a problem is wanted.
func (f *diagnosticFilter) is(d *diagnosticView) bool {
	shard := d.shard
	if i := strings.LastIndex(d.Object, "("); i >= 0 {
		shard = strings.TrimSuffix(d.Object[i+1:], ")")
	}
	source, _, _ := strings.Cut(shard, "/")
	return (f.severity == "" || slices.Index(severities, d.Severity) <= slices.Index(severities, f.severity)) &&
		(len(f.codes) == 0 || slices.Contains(f.codes, d.Code)) &&
		(len(f.shards) == 0 || slices.Contains(f.shards, source) || slices.Contains(f.shards, shard)) &&
		(len(f.objects) == 0 || slices.ContainsFunc(f.objects, func(o string) bool {
			return strings.Contains(d.Object, o) || strings.Contains(d.Origin, o)
		}))
}

// severities are their names, the worst first.
var severities = []string{"error", "warning", "info"}

func checkSeverity(flag, name string) error {
	if name != "" && !slices.Contains(severities, name) {
		return usage("--%s %q: want error, warning or info", flag, name)
	}
	return nil
}

func diagnosticsCommand() *cobra.Command {
	var failOn string
	var filter diagnosticFilter
	cmd := &cobra.Command{
		Use: "diagnostics", Short: "Shows what is wrong with what came in", Args: args(0, 0, ""),
		Long: `Shows the problems that stand: where each is, what is wrong, what to do, and what
happens meanwhile.

Where nothing runs on --data, and of an archive, those of the last version are
shown, as far as it names them.`,
		Example: `  meshlog diagnostics --data data/
  meshlog diagnostics --data data/ --severity error --source file
  meshlog diagnostics --data data/ --object demo/shop
  meshlog diagnostics --data data/ --fail-on warning   # in a pipeline`,
	}
	t := pastFlags(cmd)
	format := outputFlag(cmd)
	filter.flags(cmd)
	cmd.Flags().StringVar(&failOn, "fail-on", "", "exit with 1 if there is a problem of this `severity` or worse: error, warning or info")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		defer func() { err = errors.Join(err, t.close()) }()
		out, err := newOutput(cmd, *format)
		if err != nil {
			return err
		}
		if err := errors.Join(checkSeverity("fail-on", failOn), checkSeverity("severity", filter.severity)); err != nil {
			return err
		}
		all, err := standing(cmd, t)
		if err != nil {
			return err
		}
		views := slices.DeleteFunc(slices.Clone(all), func(v diagnosticView) bool { return !filter.is(&v) })
		if err := out.print(views, func() error { return showDiagnostics(views, len(all), out) }); err != nil {
			return err
		}
		bad := 0
		for _, v := range views {
			if failOn != "" && slices.Index(severities, v.Severity) <= slices.Index(severities, failOn) {
				bad++
			}
		}
		if bad > 0 {
			return fmt.Errorf("%s of severity %s or worse", plural(bad, "problem", "problems"), failOn)
		}
		return nil
	}
	return cmd
}

// standing are the problems that stand, the worst first: as the leader's fold
// and the watchers have them, or, where nothing runs, as the last version has
// them.
func standing(cmd *cobra.Command, t *target) ([]diagnosticView, error) {
	p, err := t.versions(cmd)
	if err != nil {
		return nil, err
	}
	var views []diagnosticView
	var reports bus.Reports
	if p.nc != nil {
		r, err := t.fleet(p.nc).Reports(cmd.Context(), bus.Diagnostics)
		if err != nil {
			return nil, err
		}
		reports = *r
	}
	switch b := newest(reports.Builders); {
	case b != nil:
		views = viewDiagnostics(b.GetDiagnostics())
	default:
		if p.nc != nil {
			fmt.Fprintln(cmd.ErrOrStderr(), "No builder reports; these are the problems of the last version.")
		}
		ds, err := lastVersion(p)
		if err != nil {
			return nil, err
		}
		if len(ds) >= namedInManifest {
			fmt.Fprintf(cmd.ErrOrStderr(), "A version names the first %d of its problems; there may be more.\n", namedInManifest)
		}
		views = viewDiagnostics(ds)
	}
	for _, w := range reports.Watchers {
		of := viewDiagnostics(w.GetDiagnostics())
		for i := range of {
			of[i].shard = w.GetSource() + "/" + w.GetInstance()
		}
		views = append(views, of...)
	}
	slices.SortStableFunc(views, func(a, b diagnosticView) int {
		return cmp.Or(cmp.Compare(slices.Index(severities, a.Severity), slices.Index(severities, b.Severity)), cmp.Compare(a.Origin, b.Origin))
	})
	return views, nil
}

// namedInManifest is how many problems a builder puts into a version.
const namedInManifest = 1000

// lastVersion are the problems of the last version.
func lastVersion(p *published) ([]*snapshotv1.Diagnostic, error) {
	for m, err := range p.manifests {
		return m.GetDiagnostics(), err
	}
	return nil, nil
}

// newest is the builder that leads or, between leaders, has read most.
func newest(bs []*reportv1.BuilderReport) *reportv1.BuilderReport {
	if len(bs) == 0 {
		return nil
	}
	return slices.MaxFunc(bs, func(a, b *reportv1.BuilderReport) int {
		switch {
		case a.GetLeader() != b.GetLeader() && a.GetLeader():
			return 1
		case a.GetLeader() != b.GetLeader():
			return -1
		}
		return store.VersionOf(a.GetPosition()).Compare(store.VersionOf(b.GetPosition()))
	})
}

func viewDiagnostics(ds []*snapshotv1.Diagnostic) []diagnosticView {
	views := []diagnosticView{}
	for _, d := range ds {
		views = append(views, diagnosticView{
			Severity: severity(d.GetSeverity()), Code: d.GetCode(), Object: d.GetObject(), Origin: d.GetOrigin(), Field: d.GetField(),
			Reason: d.GetReason(), Advice: d.GetAdvice(), Effect: d.GetEffect(),
		})
	}
	return views
}

// showDiagnostics shows those of all problems that are wanted.
func showDiagnostics(views []diagnosticView, all int, out *output) error {
	for _, v := range views {
		where := cmp.Or(v.Origin, v.Object)
		what := v.Reason
		if v.Field != "" {
			what = v.Field + ": " + what
		}
		color := map[string]string{"error": red, "warning": yellow}[v.Severity]
		if err := out.line("%s  %s: %s", out.paint(v.Severity, color), where, what); err != nil {
			return err
		}
		object := v.Object
		if where == object {
			object = ""
		}
		for _, more := range [][2]string{{"object", object}, {"to do", v.Advice}, {"meanwhile", v.Effect}} {
			if more[1] == "" {
				continue
			}
			if err := out.line("  %s %s", out.paint(fmt.Sprintf("%-10s", more[0]), faint), more[1]); err != nil {
				return err
			}
		}
	}
	switch {
	case all == 0:
		return out.line("Nothing is wrong.")
	case len(views) == 0:
		return out.line("None of %s is like that.", plural(all, "problem", "problems"))
	}
	return out.line("\n%s", countSeverities(views, all))
}

// countSeverities is how many there are of each.
func countSeverities(views []diagnosticView, all int) string {
	count := map[string]int{}
	for _, v := range views {
		count[v.Severity]++
	}
	var parts []string
	for _, s := range severities {
		if n := count[s]; n > 0 {
			many := s + "s"
			if s == "info" {
				many = s
			}
			parts = append(parts, plural(n, s, many))
		}
	}
	text := strings.Join(parts, ", ")
	if all > len(views) {
		text += fmt.Sprintf("; %d of %d problems", len(views), all)
	}
	return text
}
