package rollback

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/services/builder/rollout"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/operate/command"
)

// check returns the command `rollout run`.
func check() *cobra.Command {
	cmd := &cobra.Command{
		Use: "run --check CMD|URL", Short: "Check each manual step of a rollout, and promote or abort it", Args: command.Args(0, 0, ""),
		Long: `Follow the rollout that runs. After each manual step, once its proxies have applied it and
its hold time is over, run the check: a command for sh, or a URL for GET. If the command
exits with 0, or the URL answers 2xx, the next step begins; else the rollout is aborted. The
result is on the log, by you.

Exit code 0: all proxies have the change, or no rollout runs. 1: it was stopped, or it is
not done within --timeout; then it goes on.`,
		Example: `  meshlog rollout run --data data/ --check ./canary-is-fine.sh
  meshlog rollout run --data data/ --check http://prometheus:9090/canary --timeout 1h`,
	}
	c := &checker{}
	cmd.Flags().StringVar(&c.check, "check", "", "`command or URL` that decides about each manual step (required)")
	cmd.Flags().DurationVar(&c.limit, "check-timeout", time.Minute, "how long one check may take; one that takes longer fails")
	c.flags(cmd)
	cmd.Flags().Lookup("timeout").Usage = "how long to follow the rollout"
	cmd.Flags().Lookup("timeout").DefValue = "30m0s"
	c.timeout = 30 * time.Minute
	return command.Live(cmd, func(ctx context.Context, e *command.Env, _ []string) error {
		if c.check == "" {
			return command.Usage("--check is missing: name a command or a URL that decides about each manual step")
		}
		m, err := Open(ctx, e.Target)
		if err != nil {
			return err
		}
		c.env, c.mesh = e, m
		ctx, cancel := context.WithTimeout(ctx, c.timeout)
		defer cancel()
		return c.follow(ctx)
	})
}

// checker follows a rollout.
type checker struct {
	act
	env   *command.Env
	mesh  *Mesh
	check string
	limit time.Duration

	id   string // of the rollout; empty: it has not begun to follow one
	said string // the last progress
}

// lookEvery is how often the checker looks how far the rollout is.
const lookEvery = 500 * time.Millisecond

func (c *checker) follow(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		done, err := c.look(ctx)
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not done: %s: %w", c.id, c.said, ctx.Err())
		case <-tick.C:
		}
	}
}

// look reports whether the rollout has ended, and checks the step that waits for an operator.
func (c *checker) look(ctx context.Context) (done bool, err error) {
	chain, err := c.env.Chain(ctx)
	if err != nil {
		return false, err
	}
	head, err := command.FetchHead(ctx, chain)
	if err != nil {
		return false, err
	}
	reports, err := c.env.Reports(ctx, bus.Summary)
	if err != nil {
		return false, err
	}
	all, err := command.Rollouts(head.Snapshot, reports.Builders)
	if err != nil {
		return false, err
	}
	var is *command.Rollout
	for _, r := range all {
		if r.ID == c.id || c.id == "" && r.State == "running" {
			is = &r
		}
	}
	switch {
	case is == nil && c.id == "":
		c.env.Line("No rollout runs.")
		return true, nil
	case is == nil:
		c.env.Line("All proxies have %s.", c.id)
		return true, nil
	case is.State == "stopped":
		return true, errors.New(is.String())
	}
	if c.id = is.ID; is.String() != c.said {
		c.said = is.String()
		fmt.Fprintln(c.env.Stderr, c.said)
	}
	if is.WaitsFor == rollout.WaitsForOperator {
		return false, c.decide(ctx, is.Step)
	}
	return false, nil
}

// decide runs the check about a step, and promotes or aborts the rollout.
func (c *checker) decide(ctx context.Context, step int) error {
	began := time.Now()
	failed := c.try(ctx)
	if ctx.Err() != nil {
		return nil // the check was not done
	}
	took := time.Since(began).Round(time.Millisecond)
	i := Intent{Act: ActPromote, ID: c.id, Reason: fmt.Sprintf("check %s of step %d passed in %s", oneLine(c.check, 200), step, took)}
	if failed != nil {
		i.Act = ActAbort
		i.Reason = fmt.Sprintf("check %s of step %d failed after %s: %s", oneLine(c.check, 200), step, took, oneLine(failed.Error(), 300))
	}
	p, err := c.mesh.Plan(ctx, i)
	if err != nil || p.step != step {
		return err // the next look shows what it is
	}
	if err := p.Do(ctx); err != nil {
		return err
	}
	c.env.Print(p.View, func() { p.printDone(c.env) })
	return nil
}

// try runs the check. The error is why it has failed.
func (c *checker) try(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	if strings.HasPrefix(c.check, "http://") || strings.HasPrefix(c.check, "https://") {
		return get(ctx, c.check)
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", c.check)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func get(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		return fmt.Errorf("it answers %s", answer.Status)
	}
	return nil
}
