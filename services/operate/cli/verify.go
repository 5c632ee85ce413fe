package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/past"
)

// verifyView is what a verification found.
type verifyView struct {
	Holds bool   `json:"holds"`
	Build string `json:"build"` // that folded again
	// ReplayFloor is the position behind which the log could be folded.
	ReplayFloor string `json:"replayFloor"`
	First       uint64 `json:"first"` // record of the log
	Last        uint64 `json:"last"`
	Versions    int    `json:"versions"`
	Same        int    `json:"same"`      // of this build, folded to the same root
	SameOther   int    `json:"sameOther"` // of other builds
	// Findings are all versions of which there is more to be said.
	Findings []findingView `json:"findings"`
}

type findingView struct {
	Version string `json:"version"`
	// Verdict is broken, other-build, rewound, restored, unfolded, or unread.
	Verdict string `json:"verdict"`
	Build   string `json:"build,omitempty"`
	Reason  string `json:"reason"`
}

// errOtherBuild says that only what other builds made comes out differently.
type errOtherBuild struct{ err error }

func (e errOtherBuild) Error() string { return e.err.Error() }

// ExitCode is that of the process.
func (e errOtherBuild) ExitCode() int { return 4 }

func verifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "verify", Short: "Folds the log again, and compares every version's root", Args: args(0, 0, ""),
		Long: `Folds the whole log again, with this build, and compares the root of every
version that was published: equal roots are equal contents. It also sees that
each version follows the one before it, stands on the record that it names, and
has the content that its root says.

Of versions that another build made, equal roots are not promised: what differs
is named and counted apart. Versions from a part of the log that was lost, and
those before the replay floor (the lowest position from which the log can be
folded), cannot be compared; both are counted.

Exit codes: 0 all holds. 1 something does not. 4 all that this build made holds,
and it comes to another content than the build that made other versions.`,
		Example: `  meshlog verify --data data/
  meshlog verify --archive mesh.archive
  meshlog verify --bus nats://10.0.0.1:4222 -o json`,
	}
	t := pastFlags(cmd)
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		defer func() { err = errors.Join(err, t.close()) }()
		out, err := newOutput(cmd, *format)
		if err != nil {
			return err
		}
		build, err := process.Build()
		if err != nil {
			return err
		}
		p, err := t.past(cmd)
		if err != nil {
			return err
		}
		folded := progress{w: cmd.ErrOrStderr(), what: "folded"}
		found, err := past.Verify(cmd.Context(), p, build, folded.show)
		folded.done()
		if err != nil {
			return err
		}
		v := viewVerification(found)
		if err := out.print(v, func() error { return showVerification(found, v, out) }); err != nil {
			return err
		}
		return verdict(found)
	}
	return cmd
}

// verdict is the error with which the command ends.
func verdict(v *past.Verification) error {
	if n := v.Count(past.Broken); n > 0 {
		return fmt.Errorf("%s", plural(n, "thing does not hold", "things do not hold"))
	}
	if n := v.Count(past.OtherBuild); n > 0 {
		return errOtherBuild{fmt.Errorf("this build comes to another content than the one that made %s", plural(n, "version", "versions"))}
	}
	return nil
}

func viewVerification(v *past.Verification) *verifyView {
	view := &verifyView{
		Holds: v.Count(past.Broken) == 0, Build: v.Build, ReplayFloor: v.Floor.String(), First: v.First, Last: v.Last,
		Versions: v.Versions, Same: v.Same, SameOther: v.SameOther, Findings: []findingView{},
	}
	for _, f := range v.Findings {
		view.Findings = append(view.Findings, findingView{f.Version.String(), string(f.Verdict), f.Build, f.Reason})
	}
	return view
}

// maxFindings is how many findings of one verdict are shown one by one.
const maxFindings = 10

func showVerification(v *past.Verification, view *verifyView, out *output) error {
	facts := table{head: []string{"", ""}}
	fact := func(name string, value any) { facts.add(cell{name, faint}, value) }
	fact("log", fmt.Sprintf("%d to %d, folded from %s on by %s", v.First, v.Last, view.ReplayFloor, v.Build))
	fact("versions", v.Versions)
	fact("the same again", v.Same)
	if v.SameOther > 0 {
		fact("by other builds, the same", v.SameOther)
	}
	for _, c := range []struct {
		verdict past.Verdict
		name    string
		color   string
	}{
		{past.Restored, "the same, on a restored log", ""},
		{past.Unfolded, "before the replay floor", ""},
		{past.Unread, "without a content any more", ""},
		{past.Rewound, "of a part of the log that was lost", yellow},
		{past.OtherBuild, "by other builds, different", yellow},
		{past.Broken, "broken", red},
	} {
		if n := v.Count(c.verdict); n > 0 {
			facts.add(cell{c.name, faint}, cell{fmt.Sprint(n), c.color})
		}
	}
	if err := out.table(&facts, false); err != nil {
		return err
	}
	for _, verdict := range []past.Verdict{past.Broken, past.OtherBuild} {
		n := 0
		for _, f := range v.Findings {
			if f.Verdict != verdict {
				continue
			}
			if n++; n > maxFindings {
				break
			}
			if err := out.line("%s: %s", f.Version, f.Reason); err != nil {
				return err
			}
		}
		if n > maxFindings {
			if err := out.line("and %d more; -o json shows all", v.Count(verdict)-maxFindings); err != nil {
				return err
			}
		}
	}
	switch {
	case v.Versions == 0:
		return out.line("Nothing was published yet: there is nothing to compare.")
	case v.Count(past.Broken)+v.Count(past.OtherBuild) == 0:
		return out.line("All holds.")
	}
	return nil
}
