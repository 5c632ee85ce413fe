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
		if err := a.open(ctx, e); err != nil {
			return err
		}
		if err := a.read(ctx); err != nil {
			return err
		}
		all, err := command.Words(a.head.Snapshot)
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(all, isPin)
		if len(args) == 0 {
			e.Print(all, func() { showWords(all, e.Output) })
			return nil
		}
		id := args[0]
		if !slices.ContainsFunc(all, func(w command.Word) bool { return w.ID == id }) {
			return command.NotFound("%q: no rollback or freeze with this id holds; `meshlog release` lists the ids", id)
		}
		return a.end(ctx, "release", "Released", id)
	})
}

// end removes an overlay.
func (a *act) end(ctx context.Context, by, ended, id string) error {
	message := command.NewEvent(by, &events.Overlay{ID: id, Remove: true})
	if finished, err := a.do(ctx, id, []events.Event{message}); finished || err != nil {
		return err
	}
	a.env.Print(a.view, func() {
		a.show()
		a.env.Line("%s %s: %s, in version %s.", ended, id, a.counted(), a.view.Version)
	})
	return nil
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
