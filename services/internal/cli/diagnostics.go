package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
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
}

func diagnosticsCommand() *cobra.Command {
	var failOn string
	cmd := &cobra.Command{
		Use: "diagnostics", Short: "Shows what is wrong with what came in", Args: args(0, 0, ""),
		Long: `Shows the problems that stand: where each is, what is wrong, what to do, and what
happens meanwhile.

Where nothing runs on --data, those of the last version are read from a copy of
the file that was left there.`,
		Example: `  meshlog diagnostics --data data/
  meshlog diagnostics --data data/ --fail-on warning   # in a pipeline`,
	}
	t := targetFlags(cmd)
	format := outputFlag(cmd)
	cmd.Flags().StringVar(&failOn, "fail-on", "", "exit with 1 if there is a problem of this `severity` or worse: error, warning or info")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		defer func() { err = errors.Join(err, t.close()) }()
		out, err := newOutput(cmd, *format)
		if err != nil {
			return err
		}
		least, ok := map[string]snapshotv1.Severity{
			"": 4, "error": snapshotv1.Severity_SEVERITY_ERROR,
			"warning": snapshotv1.Severity_SEVERITY_WARNING, "info": snapshotv1.Severity_SEVERITY_INFO,
		}[failOn]
		if !ok {
			return usage("--fail-on %q: want error, warning or info", failOn)
		}
		ds, err := standing(cmd, t)
		if err != nil {
			return err
		}
		if err := out.print(viewDiagnostics(ds), func() error { return showDiagnostics(ds, out) }); err != nil {
			return err
		}
		bad := 0
		for _, d := range ds {
			if d.GetSeverity() >= least {
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

// standing are the problems that stand: as the leader's fold and the watchers
// have them, or, where nothing runs, as the last version has them.
func standing(cmd *cobra.Command, t *target) ([]*snapshotv1.Diagnostic, error) {
	p, err := t.versions(cmd)
	if err != nil {
		return nil, err
	}
	if p.nc == nil {
		return lastVersion(p)
	}
	reports, err := t.fleet(p.nc).Reports(cmd.Context(), false)
	if err != nil {
		return nil, err
	}
	ds := newest(reports.Builders).GetDiagnostics()
	if len(reports.Builders) == 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "No builder reports; these are the problems of the last version.")
		if ds, err = lastVersion(p); err != nil {
			return nil, err
		}
	}
	for _, w := range reports.Watchers {
		ds = append(ds, w.GetDiagnostics()...)
	}
	slices.SortStableFunc(ds, func(a, b *snapshotv1.Diagnostic) int {
		return cmp.Or(cmp.Compare(b.GetSeverity(), a.GetSeverity()), cmp.Compare(a.GetOrigin(), b.GetOrigin()))
	})
	return ds, nil
}

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
			severity(d.GetSeverity()), d.GetCode(), d.GetObject(), d.GetOrigin(), d.GetField(),
			d.GetReason(), d.GetAdvice(), d.GetEffect(),
		})
	}
	return views
}

func showDiagnostics(ds []*snapshotv1.Diagnostic, out *output) error {
	for _, v := range viewDiagnostics(ds) {
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
	if len(ds) == 0 {
		return out.line("Nothing is wrong.")
	}
	return nil
}
