package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/store"
)

// waitView is the result of a wait.
type waitView struct {
	Version ident.Position `json:"version"` // that the command waited for
	Reached bool           `json:"reached"`
	Applied uint32         `json:"applied"` // streams that have it, or a newer one
	Streams uint32         `json:"streams"`
	Seconds float64        `json:"seconds"`
	Why     string         `json:"why,omitempty"` // the wait failed
	Lagging []ProxyView    `json:"lagging,omitempty"`
}

// latestAfter is how long a watcher may take to publish a change that was saved
// just before `meshlog wait latest`.
const latestAfter = time.Second

// Wait returns the command `wait`.
func Wait() *cobra.Command {
	cmd := &cobra.Command{
		Use: "wait VERSION", Short: "Wait for proxies to apply a version", Args: command.Args(1, 1, "VERSION"),
		Long: `Wait for proxies to apply a version or a newer one, in all xDS types. VERSION may
be any position of the log, as ` + "`meshlog log`" + ` shows it. "latest" is the end of the
log one second from now, which includes a change that was saved just before.

Exit code 0: enough proxies have it. 1: they do not have it in time; the output
names the proxies that lag, and why.`,
		Example: `  meshlog wait --data data/ 1795275208.13
  meshlog wait --data data/ latest --for 95% --timeout 60s   # in a pipeline, after a change
  meshlog wait --data data/ latest --for 0                   # until it is published`,
	}
	enough := cmd.Flags().String("for", "100%", "how `many` of the connected proxies are enough: a share or a number")
	most := cmd.Flags().Duration("timeout", 30*time.Second, "how long to wait")
	return command.Live(cmd, func(ctx context.Context, e *command.Env, args []string) (err error) {
		w := &wait{started: time.Now(), progress: e.Progress("")}
		if w.Quota, err = command.ParseQuota(*enough); err != nil {
			return err
		}
		if args[0] == command.Latest {
			w.Position, err = latest(ctx, e)
		} else if w.Position, err = ident.ParsePosition(args[0]); err != nil {
			err = command.Usage("%w, or %q", err, command.Latest)
		}
		if err != nil {
			return err
		}
		chain, err := e.Chain(ctx)
		if err != nil {
			return err
		}
		head, err := command.Head(ctx, chain)
		if err != nil {
			return err
		}
		w.Newest = head.Version
		if w.Fleet, err = e.Fleet(); err != nil {
			return err
		}
		return w.run(ctx, e, *most)
	})
}

// latest returns the lastPosition of the mesh.
func latest(ctx context.Context, e *command.Env) (ident.Position, error) {
	log, err := e.Log(ctx)
	if err != nil {
		return ident.Position{}, err
	}
	return lastPosition(ctx, log)
}

// lastPosition returns the position of the last record, latestAfter from now.
func lastPosition(ctx context.Context, log events.Reader) (ident.Position, error) {
	select {
	case <-time.After(latestAfter):
	case <-ctx.Done():
		return ident.Position{}, ctx.Err()
	}
	bounds, err := log.Bounds(ctx)
	if err != nil {
		return ident.Position{}, err
	}
	return command.EpochOf(ctx, log, bounds.Last)
}

type wait struct {
	command.Wait
	started  time.Time
	progress *command.Progress
}

func (w *wait) run(ctx context.Context, e *command.Env, most time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	w.Each = w.tell
	err := w.Wait.Run(limited)
	w.progress.Done()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	v, err := w.view(ctx, e)
	if err != nil {
		return err
	}
	e.Print(v, func() { v.show(e.Output) })
	if !v.Reached {
		return fmt.Errorf("not reached within %s: %s", most, v.Why)
	}
	return nil
}

func streams(n uint32) string { return command.Plural(int(n), "stream", "streams") }

func (w *wait) tell() {
	applied, all := w.Count()
	text := fmt.Sprintf("%s is not published yet", w.Position)
	if !w.Published.IsZero() {
		text = fmt.Sprintf("%s is applied by %d of %s", w.Published, applied, streams(all))
	}
	w.progress.Say("%s, after %d s", text, int(time.Since(w.started).Seconds()))
}

func (w *wait) view(ctx context.Context, e *command.Env) (waitView, error) {
	v := waitView{Version: w.Position, Reached: w.Reached(), Seconds: time.Since(w.started).Seconds()}
	v.Applied, v.Streams = w.Count()
	if !w.Published.IsZero() {
		v.Version = w.Published
	}
	if v.Reached {
		return v, nil
	}
	reports, err := w.Fleet.Reports(ctx, bus.Proxies)
	if err != nil {
		return v, err
	}
	if v.Why = w.why(reports); w.Published.IsZero() {
		return v, nil
	}
	chain, err := e.Chain(ctx)
	if err != nil {
		return v, err
	}
	var unread error
	v.Lagging, unread, err = viewProxies(reports, proxyFilter{}, chain.History(ctx), time.Now())
	sayUnread(e, unread)
	v.Lagging = slices.DeleteFunc(v.Lagging, func(p ProxyView) bool {
		return !p.Version.IsZero() && !p.Version.Less(w.Published)
	})
	return v, err
}

func (w *wait) why(reports *bus.Reports) string {
	b := command.Newest(reports.Builders)
	applied, all := w.Count()
	switch {
	case b == nil:
		return command.ErrNoBuilder.Error()
	case w.Published.IsZero() && b.GetError() != "":
		return fmt.Sprintf("%s is not published: %s", w.Position, b.GetError())
	case w.Published.IsZero() && len(b.GetWaiting()) > 0:
		return fmt.Sprintf("%s is not published: %s", w.Position, strings.Join(b.GetWaiting(), "; "))
	case w.Published.IsZero():
		return fmt.Sprintf("%s is not published; the builder has read the log up to %s", w.Position, store.VersionOf(b.GetPosition()))
	case len(reports.Frontends) == 0:
		return command.ErrNoFrontend.Error()
	case all == 0:
		return "no proxy is connected; `--for 0` waits for the version alone"
	}
	text := fmt.Sprintf("%d of %s have applied %s, %d are wanted", applied, streams(all), w.Published, w.Quota.Of(all))
	for _, f := range reports.Frontends {
		if v := store.VersionOf(f.GetServing()); v.Less(w.Published) && !f.GetLeaving() {
			text += fmt.Sprintf("; frontend %s serves %s", f.GetFrontend(), v)
		}
	}
	return text
}

// maxLagging is the number of lagging proxies that a table shows.
const maxLagging = 20

func (v *waitView) show(out *command.Output) {
	if v.Reached {
		out.Line("%s is applied by %d of %s, after %s.", v.Version, v.Applied, streams(v.Streams),
			command.Span(time.Duration(v.Seconds*float64(time.Second))))
		return
	}
	if len(v.Lagging) > 0 {
		proxyTable(v.Lagging[:min(len(v.Lagging), maxLagging)], time.Now(), out)
	}
	if more := len(v.Lagging) - maxLagging; more > 0 {
		out.Line("and %d more; `meshlog proxy-status --stale` lists them", more)
	}
}
