package rollback

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/operate/command"
)

// Rollouts returns the command `rollout`.
func Rollouts() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rollout", Short: "See and steer changes that reach proxies step by step",
		Long: `See and steer changes of configuration that reach the proxies step by step, as
MeshPolicy.rollout says: a change goes to the proxies of the first step, then to those of
the next one, once enough of them have applied it and its hold time is over. If one of them
rejects it, all get the version before.

One rollout runs at a time. What changes meanwhile waits, and is the next one.`,
	}
	cmd.AddCommand(rolloutStatus(), promote(), abort(), check())
	return cmd
}

func rolloutStatus() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Show the changes that have not reached all proxies", Args: command.Args(0, 0, ""),
		Long: `Show the changes that have not reached all proxies: the one that runs, the one that waits
for its end, and those that were stopped.`,
		Example: `  meshlog rollout status --data data/
  meshlog rollout status --bus nats://10.0.0.1:4222 -o json`,
	}
	return command.Live(cmd, func(ctx context.Context, e *command.Env, _ []string) error {
		chain, err := e.Chain(ctx)
		if err != nil {
			return err
		}
		head, err := command.FetchHead(ctx, chain)
		if err != nil {
			return err
		}
		reports, err := e.Reports(ctx, bus.Summary)
		if err != nil {
			return err
		}
		all, err := command.Rollouts(head.Snapshot, reports.Builders)
		if err != nil {
			return err
		}
		e.Print(all, func() { showRollouts(all, e.Output) })
		return nil
	})
}

func showRollouts(all []command.Rollout, out *command.Output) {
	if len(all) == 0 {
		out.Line("All proxies have all changes.")
		return
	}
	t := command.Rows{Head: []string{"ID", "STATE", "STEP", "REACHED", "APPLIED", "SINCE", "OBJECTS"}}
	for _, r := range all {
		step, applied := "-", "-"
		if r.Step > 0 {
			step = strconv.Itoa(r.Step)
			if r.Steps > 0 {
				step += " of " + strconv.Itoa(r.Steps)
			}
		}
		if r.State == "running" {
			applied = fmt.Sprintf("%d of %d", r.Applied, r.Streams)
		}
		t.Add(r.ID, r.State, step, r.Reached, applied, command.Clock(r.Since), command.Some(r.Objects))
	}
	out.Rows(&t)
	var notes []string
	for _, r := range all {
		if r.WaitsFor != "" || r.State == "stopped" {
			notes = append(notes, r.String())
		}
	}
	out.Notes(notes)
}

func promote() *cobra.Command {
	cmd := &cobra.Command{
		Use: "promote [ID]", Short: "Begin the next step of a rollout", Args: command.Args(0, 1, ""),
		Long: `Begin the next step of the rollout that runs, whatever it waits for; after the last step
all proxies have the change. With --all they have it at once; with the id of a rollout that
was stopped, too.`,
		Example: `  meshlog rollout promote --data data/
  meshlog rollout promote --data data/ --all --reason "it works"`,
	}
	a := &act{}
	all := cmd.Flags().Bool("all", false, "give the change to all proxies")
	cmd.Flags().StringVar(&a.reason, "reason", "", "why, for those who read the log")
	a.flags(cmd)
	return command.Live(cmd, func(ctx context.Context, e *command.Env, args []string) error {
		if err := a.open(ctx, e); err != nil {
			return err
		}
		if err := a.read(ctx); err != nil {
			return err
		}
		r, err := a.rollout(args, *all)
		if err != nil {
			return err
		}
		return a.promote(ctx, r, *all)
	})
}

// rollout returns the rollout that args name, or the one that runs.
func (a *act) rollout(args []string, stopped bool) (*fold.Rollout, error) {
	for _, r := range a.fold.Rollouts() {
		switch {
		case len(args) > 0 && args[0] != r.ID, len(args) == 0 && r.Rollout.State != ident.RolloutRunning:
		case r.Rollout.State == ident.RolloutRunning, r.Rollout.State == ident.RolloutStopped && stopped:
			return &r, nil
		case r.Rollout.State == ident.RolloutStopped:
			return nil, command.Usage("%s was stopped: another value of its objects is a new rollout; `meshlog rollout promote --all %s` gives the present one to all proxies", r.ID, r.ID)
		default:
			return nil, command.Usage("%s waits for the rollout before to end", r.ID)
		}
	}
	if len(args) > 0 {
		return nil, command.NotFound("%q: there is no rollout with this id; `meshlog rollout status` lists the ids", args[0])
	}
	return nil, command.NotFound("no rollout runs")
}

// promote begins the step after that of r or, after the last one and with all, gives r to
// all proxies.
func (a *act) promote(ctx context.Context, r *fold.Rollout, all bool) error {
	steps := a.world.Policy().Rollout
	next := r.Rollout.Step + 1
	if all || next > len(steps) || r.Rollout.State == ident.RolloutStopped {
		if r.Rollout.State == ident.RolloutRunning {
			a.pin = r.ID // it changes what the others are served
		}
		message := command.NewEvent("rollout", &events.Overlay{
			ID: r.ID, Kind: ident.Rollout, Remove: true, Reason: a.reason, Rollout: &ident.Staging{State: r.Rollout.State, Ordered: true},
		})
		return a.rolled(ctx, r, message, "All proxies have "+r.ID)
	}
	staging := &ident.Staging{State: ident.RolloutRunning, Step: next, Reached: steps[next-1].Reached, Ordered: true}
	message := command.NewEvent("rollout", &events.Overlay{ID: r.ID, Kind: ident.Rollout, Reason: a.reason, Rollout: staging})
	return a.rolled(ctx, r, message, fmt.Sprintf("%s has reached %s, step %d of %d", r.ID, staging.Reached, next, len(steps)))
}

func abort() *cobra.Command {
	cmd := &cobra.Command{
		Use: "abort [ID] --reason TEXT", Short: "Stop a rollout: its proxies get the version before", Args: command.Args(0, 1, ""),
		Long: `Stop the rollout that runs: the proxies that it has reached get the version before, as all
others. What the sources offer now is not served until they offer something else, or
` + "`meshlog rollout promote --all`" + ` gives it to all proxies.`,
		Example: `  meshlog rollout abort --data data/ --reason "errors in the canary"`,
	}
	a := &act{}
	a.reasonFlag(cmd)
	a.flags(cmd)
	return command.Live(cmd, func(ctx context.Context, e *command.Env, args []string) error {
		if err := a.checkReason(); err != nil {
			return err
		}
		if err := a.open(ctx, e); err != nil {
			return err
		}
		if err := a.read(ctx); err != nil {
			return err
		}
		r, err := a.rollout(args, false)
		if err != nil {
			return err
		}
		return a.abort(ctx, r)
	})
}

func (a *act) abort(ctx context.Context, r *fold.Rollout) error {
	staging := &ident.Staging{State: ident.RolloutStopped, Step: r.Rollout.Step, Ordered: true}
	message := command.NewEvent("rollout", &events.Overlay{ID: r.ID, Kind: ident.Rollout, Reason: a.reason, Rollout: staging})
	return a.rolled(ctx, r, message, "Stopped "+r.ID)
}

// errOvertaken says that another record about a rollout came first.
var errOvertaken = errors.New("it has changed meanwhile; `meshlog rollout status` shows it")

// rolled appends a message about r, and prints what it has done.
func (a *act) rolled(ctx context.Context, r *fold.Rollout, message events.Event, done string) error {
	if finished, err := a.do(ctx, r.ID, []events.Event{message}); finished || err != nil {
		return err
	}
	if err := a.read(ctx); err != nil {
		return err
	}
	o := message.Body.(*events.Overlay)
	if i := slices.IndexFunc(a.fold.Rollouts(), func(x fold.Rollout) bool { return x.ID == r.ID }); i >= 0 && !o.Remove {
		if is := a.fold.Rollouts()[i].Rollout; is.State != o.Rollout.State || is.Step < o.Rollout.Step {
			return fmt.Errorf("%s: %w", r.ID, errOvertaken)
		}
	}
	a.env.Print(a.view, func() {
		a.show()
		a.env.Line("%s, in version %s.", done, a.view.Version)
	})
	return nil
}

// oneLine returns text in one line, and at most so many bytes of it.
func oneLine(text string, most int) string {
	text = strings.ToValidUTF8(strings.Join(strings.Fields(text), " "), "?")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return text
}
