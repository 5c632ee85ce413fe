package history

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
)

// verifyView is the result of a verification.
type verifyView struct {
	Holds bool `json:"holds"`
	*past.Verification
}

// Verify returns the command `verify`.
func Verify() *cobra.Command {
	cmd := &cobra.Command{
		Use: "verify", Short: "Fold the log again and compare the root of every version", Args: command.Args(0, 0, ""),
		Long: `Fold the whole log again, with this build, and compare the root of every published
version: equal roots mean equal contents. The command also checks that each version
follows the one before it, names a record that the log has, and has the content
that its root promises.

Another build may fold the same log to other roots: such versions are counted
apart. Versions from a lost part of the log, and those before the replay floor (the
lowest position from which the log can be folded), cannot be compared; both are
counted. So are messages on the version chain that are no versions: no builder wrote
them, and all readers pass them over.

Exit codes: 0: every version holds. 1: one does not. 4: every version of this build
holds, and this build folds versions of another build to other contents.`,
		Example: `  meshlog verify --data data/
  meshlog verify --archive mesh.archive
  meshlog verify --bus nats://10.0.0.1:4222 -o json`,
	}
	return command.Past(cmd, func(ctx context.Context, e *command.Env, _ []string) error {
		build, err := process.Build()
		if err != nil {
			return err
		}
		p, err := e.Past(ctx)
		if err != nil {
			return err
		}
		folded := e.Progress("folded")
		found, err := past.Verify(ctx, p, build, folded.Show)
		folded.Done()
		if err != nil {
			return err
		}
		e.Print(verifyView{found.Count(past.Broken) == 0, found}, func() { showVerification(found, e.Output) })
		return verdict(found)
	})
}

// verdict returns the error with which the command ends.
func verdict(v *past.Verification) error {
	if n := v.Count(past.Broken); n > 0 {
		return errors.New(command.Plural(n, "thing does not hold", "things do not hold"))
	}
	if n := v.Count(past.OtherBuild); n > 0 {
		return command.OtherBuild("this build comes to another content than the one that made %s", command.Plural(n, "version", "versions"))
	}
	return nil
}

// maxFindings is how many findings of one verdict a text shows.
const maxFindings = 10

func showVerification(v *past.Verification, out *command.Output) {
	var facts command.Rows
	facts.Fact("log", fmt.Sprintf("%d to %d, folded from %s on by %s", v.First, v.Last, v.Floor, v.Build))
	facts.Fact("versions", v.Versions)
	facts.Fact("same root", v.Same)
	if v.SameOther > 0 {
		facts.Fact("same root, by other builds", v.SameOther)
	}
	for _, c := range []struct {
		verdict     past.Verdict
		name, color string
	}{
		{past.Restored, "same root, on a restored log", ""},
		{past.Unfolded, "before the replay floor", ""},
		{past.Unread, "content no longer kept", ""},
		{past.Rewound, "from a lost part of the log", command.Yellow},
		{past.Foreign, "messages on the chain that are no versions", command.Yellow},
		{past.OtherBuild, "other root, by other builds", command.Yellow},
		{past.Broken, "broken", command.Red},
	} {
		if n := v.Count(c.verdict); n > 0 {
			facts.Fact(c.name, command.Cell{Text: fmt.Sprint(n), Color: c.color})
		}
	}
	out.Rows(&facts)
	for _, verdict := range []past.Verdict{past.Broken, past.OtherBuild, past.Foreign} {
		shown := 0
		for _, f := range v.Findings {
			if f.Verdict != verdict || shown == maxFindings {
				continue
			}
			if shown++; f.Version.IsZero() {
				out.Line("%s", f.Reason)
			} else {
				out.Line("%s: %s", f.Version, f.Reason)
			}
		}
		if more := v.Count(verdict) - shown; more > 0 {
			out.Line("and %d more; -o json shows all", more)
		}
	}
	switch {
	case v.Versions == 0:
		out.Line("Nothing has been published yet: there is nothing to compare.")
	case v.Count(past.Broken)+v.Count(past.OtherBuild) == 0:
		out.Line("All versions hold.")
	}
}
