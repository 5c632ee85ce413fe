package rollback

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"meshlog.dev/events"
	"meshlog.dev/services/operate/command"
)

// Release returns the command `release`.
func Release() *cobra.Command {
	cmd := &cobra.Command{
		Use: "release [ID]", Short: "Return from a rollback or a freeze to what the sources offer", Args: command.Args(0, 1, ""),
		Long: `Show the rollbacks and freezes that hold, or end one of them: what the sources offer
counts again. --dry-run shows what would change.

If a source has lost many objects meanwhile, the guard may hold this loss back:
` + "`meshlog approve`" + ` lists it.`,
		Example: `  meshlog release --data data/
  meshlog release --data data/ rollback-k2v9x4ab7q --dry-run
  meshlog release --data data/ rollback-k2v9x4ab7q`,
	}
	var a act
	a.flags(cmd)
	return command.Live(cmd, func(ctx context.Context, e *command.Env, args []string) error {
		if len(args) == 1 {
			return a.run(ctx, e, Intent{Act: ActRelease, ID: args[0]})
		}
		all, err := holding(ctx, e)
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(all, isPin)
		e.Print(all, func() { showWords(all, e.Output) })
		return nil
	})
}

// holding returns the rollbacks, freezes and pins in the newest version.
func holding(ctx context.Context, e *command.Env) ([]command.Word, error) {
	chain, err := e.Chain(ctx)
	if err != nil {
		return nil, err
	}
	head, err := command.FetchHead(ctx, chain)
	if err != nil {
		return nil, err
	}
	if head.Manifest == nil {
		return nil, command.NotFound("the mesh has no versions: nothing has been published yet")
	}
	return command.Words(head.Snapshot)
}

// release plans the end of a rollback or a freeze.
func (p *Plan) release(ctx context.Context) error {
	p.Done = "Released " + p.Intent.ID
	return p.end(ctx, func(w command.Word) bool { return !isPin(w) },
		command.NotFound("%q: no rollback or freeze with this id holds; `meshlog release` lists the ids", p.Intent.ID))
}

// end plans the removal of an overlay, which must be one of those that can be ended so.
func (p *Plan) end(ctx context.Context, can func(command.Word) bool, missing error) error {
	if err := p.read(ctx); err != nil {
		return err
	}
	all, err := command.Words(p.head.Snapshot)
	if err != nil {
		return err
	}
	id := p.Intent.ID
	if !slices.ContainsFunc(all, func(w command.Word) bool { return w.ID == id && can(w) }) {
		return missing
	}
	return p.propose(id, []events.Event{command.NewEvent(p.Intent.Act, &events.Overlay{ID: id, Remove: true})})
}

func showWords(all []command.Word, out *command.Output) {
	if len(all) == 0 {
		out.Line("Nothing is rolled back or frozen.")
		return
	}
	t := command.Rows{Head: []string{"ID", "SINCE", "BY", "KEEPS", "ROLLED BACK", "REASON"}}
	for _, w := range all {
		t.Add(w.ID, command.Clock(w.Since), w.Actor, cmp.Or(w.Scope, "single objects"), strconv.Itoa(w.Objects), w.Reason)
	}
	out.Rows(&t)
}
