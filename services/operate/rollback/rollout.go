package rollback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/world"
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
		Example: `  meshlog rollout status --data data/
  meshlog rollout promote --data data/
  meshlog rollout abort --data data/ --reason "errors in the canary"
  meshlog rollout run --data data/ --check ./canary-is-fine.sh`,
	}
	cmd.AddCommand(rolloutStatus(), promote(), abort(), check())
	return cmd
}

func rolloutStatus() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Show the changes that have not reached all proxies", Args: command.Args(0, 0, ""),
		Long: `Show the changes that have not reached all proxies: the one that runs, the one that waits
for its end, and those that were stopped. HOLD is what is left of the hold time of the step.
--ended also shows the rollouts of the newest versions that have ended.`,
		Example: `  meshlog rollout status --data data/
  meshlog rollout status --data data/ --ended
  meshlog rollout status --bus nats://10.0.0.1:4222 -o json`,
	}
	ended := cmd.Flags().Bool("ended", false, fmt.Sprintf("show also those that have ended, of the newest %d versions", command.RolloutVersions))
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
		if *ended {
			p, err := e.Past(ctx)
			if err != nil {
				return err
			}
			if all, err = command.RolloutHistory(ctx, p, head.Version(), all, command.RolloutVersions); err != nil {
				return err
			}
		}
		e.Print(all, func() { showRollouts(all, time.Now(), e.Output) })
		return nil
	})
}

func showRollouts(all []command.Rollout, now time.Time, out *command.Output) {
	if len(all) == 0 {
		out.Line("All proxies have all changes.")
		return
	}
	t := command.Rows{Head: []string{"ID", "STATE", "STEP", "REACHED", "APPLIED", "HOLD", "SINCE", "BY", "OBJECTS"}}
	for _, r := range all {
		step, applied, hold := "-", "-", "-"
		if r.Step > 0 {
			step = strconv.Itoa(r.Step)
			if r.Steps > 0 {
				step += " of " + strconv.Itoa(r.Steps)
			}
		}
		if r.State == "running" {
			applied = fmt.Sprintf("%d of %d", r.Applied, r.Streams)
			if want := r.AckPercent(); want > 0 {
				applied += fmt.Sprintf(", %d%% wanted", want)
			}
			if left := r.HoldLeft(now); left > 0 {
				hold = left.String()
			}
		}
		t.Add(r.ID, r.State, step, cmp.Or(r.Reached, "-"), applied, hold, command.Clock(r.Since), cmp.Or(r.Actor, "-"), command.Some(r.Objects))
	}
	out.Rows(&t)
	var notes []string
	for _, r := range all {
		if r.WaitsFor != "" || r.State == "stopped" || r.State == "ended" {
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
	var a act
	all := cmd.Flags().Bool("all", false, "give the change to all proxies")
	cmd.Flags().StringVar(&a.reason, "reason", "", "why, for those who read the log")
	a.flags(cmd)
	return command.Live(cmd, func(ctx context.Context, e *command.Env, args []string) error {
		return a.run(ctx, e, Intent{Act: ActPromote, ID: first(args), All: *all})
	})
}

// first returns the first argument, or an empty text.
func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// rollout returns the rollout that the intent names, or the one that runs.
func (p *Plan) rollout(stopped bool) (*fold.Rollout, error) {
	id := p.Intent.ID
	for _, r := range p.fold.Rollouts() {
		switch {
		case id != "" && id != r.ID, id == "" && r.Rollout.State != ident.RolloutRunning:
		case r.Rollout.State == ident.RolloutRunning, r.Rollout.State == ident.RolloutStopped && stopped:
			return &r, nil
		case r.Rollout.State == ident.RolloutStopped:
			return nil, command.Usage("%s was stopped: another value of its objects is a new rollout; `meshlog rollout promote --all %s` gives the present one to all proxies", r.ID, r.ID)
		default:
			return nil, command.Usage("%s waits for the rollout before to end", r.ID)
		}
	}
	if id != "" {
		return nil, command.NotFound("%q: there is no rollout with this id; `meshlog rollout status` lists the ids", id)
	}
	return nil, command.NotFound("no rollout runs")
}

// promote plans the step after that of a rollout or, after the last one and with All, its end.
func (p *Plan) promote(ctx context.Context) error {
	if err := p.read(ctx); err != nil {
		return err
	}
	r, err := p.rollout(p.Intent.All)
	if err != nil {
		return err
	}
	steps := p.world.Policy().Rollout
	next := r.Rollout.Step + 1
	if p.Intent.All || next > len(steps) || r.Rollout.State == ident.RolloutStopped {
		if r.Rollout.State == ident.RolloutRunning {
			p.pin = r.ID // it changes what the others are served
		}
		p.Done, p.For = "All proxies have "+r.ID, "the proxies that do not have it"
		return p.steer(r, &events.Overlay{
			ID: r.ID, Kind: ident.Rollout, Remove: true, Reason: p.Intent.Reason, Rollout: &ident.Staging{State: r.Rollout.State, Ordered: true},
		})
	}
	staging := &ident.Staging{State: ident.RolloutRunning, Step: next, Reached: steps[next-1].Reached, Ordered: true}
	p.Done = fmt.Sprintf("%s has reached %s, step %d of %d", r.ID, staging.Reached, next, len(steps))
	p.For = fmt.Sprintf("the proxies that step %d adds", next)
	if err := p.steer(r, &events.Overlay{ID: r.ID, Kind: ident.Rollout, Reason: p.Intent.Reason, Rollout: staging}); err != nil {
		return err
	}
	// Proxies that the rollout has reached keep what they have; the next ones get the same.
	others, differ := p.world.View(r.ID)
	slices.SortFunc(differ, world.CompareKeys)
	p.Changes = p.compared(slices.Compact(differ), others, p.world)
	return nil
}

func abort() *cobra.Command {
	cmd := &cobra.Command{
		Use: "abort [ID] --reason TEXT", Short: "Stop a rollout: its proxies get the version before", Args: command.Args(0, 1, ""),
		Long: `Stop the rollout that runs: the proxies that it has reached get the version before, as all
others. What the sources offer now is not served until they offer something else, or
` + "`meshlog rollout promote --all`" + ` gives it to all proxies.`,
		Example: `  meshlog rollout abort --data data/ --reason "errors in the canary"`,
	}
	var a act
	a.reasonFlag(cmd)
	a.flags(cmd)
	return command.Live(cmd, func(ctx context.Context, e *command.Env, args []string) error {
		if err := a.checkReason(); err != nil {
			return err
		}
		return a.run(ctx, e, Intent{Act: ActAbort, ID: first(args)})
	})
}

// abort plans to stop a rollout.
func (p *Plan) abort(ctx context.Context) error {
	if err := p.read(ctx); err != nil {
		return err
	}
	r, err := p.rollout(false)
	if err != nil {
		return err
	}
	p.Done, p.For = "Stopped "+r.ID, "the proxies that it has reached"
	staging := &ident.Staging{State: ident.RolloutStopped, Step: r.Rollout.Step, Ordered: true}
	return p.steer(r, &events.Overlay{ID: r.ID, Kind: ident.Rollout, Reason: p.Intent.Reason, Rollout: staging})
}

// errOvertaken says that another record about a rollout came first.
var errOvertaken = errors.New("it has changed meanwhile; `meshlog rollout status` shows it")

// steer proposes a message about r, and has Do find out whether it counted.
func (p *Plan) steer(r *fold.Rollout, o *events.Overlay) error {
	p.Intent.ID, p.step = r.ID, r.Rollout.Step
	p.more = func(ctx context.Context) ([]events.Event, error) {
		if err := p.read(ctx); err != nil {
			return nil, err
		}
		for _, x := range p.fold.Rollouts() {
			if x.ID == r.ID && !o.Remove && (x.Rollout.State != o.Rollout.State || x.Rollout.Step < o.Rollout.Step) {
				return nil, fmt.Errorf("%s: %w", r.ID, errOvertaken)
			}
		}
		return nil, nil
	}
	return p.propose(r.ID, []events.Event{command.NewEvent("rollout", o)})
}

// oneLine returns text in one line, and at most so many bytes of it.
func oneLine(text string, most int) string {
	text = strings.ToValidUTF8(strings.Join(strings.Fields(text), " "), "?")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return text
}
