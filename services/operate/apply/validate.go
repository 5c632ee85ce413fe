package apply

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/gate"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/trial"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/draft"
)

// Validate returns the command `validate`.
func Validate() *cobra.Command {
	cmd := &cobra.Command{
		Use: "validate -f FILE", Short: "Check objects in files, without a mesh", Args: command.Args(0, 0, ""),
		Long: `Check objects in files, directories or standard input (-) as a mesh does that has
nothing else: each object for itself, as "meshlog apply" does before it writes, and
then together, for destinations that no object has and for hosts that two claim.
The source rules are those of a MeshPolicy in the files, or the defaults.

"meshlog apply --dry-run" checks them against the objects and the rules of a mesh.

Exit code 1: an object is invalid. Warnings do not count.`,
		Example: `  meshlog validate -f mesh/
  kustomize build . | meshlog validate -f -
  meshlog validate -f mesh/ -o json`,
	}
	files := filesFlag(cmd, "check")
	return command.Local(cmd, func(_ context.Context, e *command.Env, _ []string) error {
		if len(*files) == 0 {
			return command.Usage("-f is missing: give a file, a directory, or - for standard input")
		}
		d := &draft.Documents{Shard: ident.Shard{Source: ident.API, Instance: "default"}}
		if err := readFiles(d, *files, e.Stdin); err != nil {
			return err
		}
		problems, err := check(d)
		if err != nil {
			return err
		}
		v := validation{Objects: len(d.Items), Problems: []command.Diagnostic{}}
		v.Problems = append(v.Problems, draft.Diagnostics(problems)...)
		e.Print(v, func() { v.show(e.Output) })
		if draft.Failed(problems) {
			n := draft.CountErrors(problems)
			return errors.New(command.Plural(n, "error", "errors") + " in the objects")
		}
		return nil
	})
}

// validation is the result of validate.
type validation struct {
	Objects  int                  `json:"objects"`
	Problems []command.Diagnostic `json:"problems"`
}

func (v *validation) show(out *command.Output) {
	for _, p := range v.Problems {
		p.Show(out)
	}
	text := command.Plural(v.Objects, "object", "objects")
	if len(v.Problems) == 0 {
		out.Line("%s, no problems.", text)
		return
	}
	out.Line("\n%s, %s.", text, command.Plural(len(v.Problems), "problem", "problems"))
}

// check returns the problems of the documents, and of their objects as a mesh of their own.
func check(d *draft.Documents) ([]problem.Diagnostic, error) {
	const build = "validate"
	s := &draft.Shard{Name: d.Shard, Fold: fold.New(build, fold.KindJudge{Trial: trial.Problems})}
	begin := events.Record{Seq: 1, Event: events.Event{Body: &events.Segment{Epoch: 1, Build: build}}}
	if _, _, err := s.Fold.Apply(begin, nil); err != nil {
		return nil, err
	}
	for _, i := range d.Items {
		i.ResourceVersion = ident.Position{} // there is no mesh to compare with
	}
	c := draft.NewChange(s, d.Items, false)
	if err := c.Judge(s); err != nil {
		return nil, err
	}
	together, err := gate.Problems(s.Fold.Content())
	if err != nil {
		return nil, fmt.Errorf("a builder cannot build the objects: %w", err)
	}
	places := map[ident.Key]string{}
	for _, st := range c.Steps {
		places[st.Key] = st.Place("")
	}
	for n := range together {
		if p := &together[n]; p.Origin == "" {
			p.Origin = places[p.Key]
		}
	}
	all := append(append(d.Problems, c.Problems...), together...)
	return all, nil
}
