package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/store"
	"meshlog.dev/store/natsfeed"
)

// waitView is what a wait came to.
type waitView struct {
	Version string  `json:"version"` // that was waited for
	Reached bool    `json:"reached"`
	Applied uint32  `json:"applied"` // streams that have it, or a newer one
	Streams uint32  `json:"streams"`
	Seconds float64 `json:"seconds"`
	// Why says what it waits for, in words, where it is not reached.
	Why     string      `json:"why,omitempty"`
	Lagging []proxyView `json:"lagging,omitempty"`
}

func waitCommand() *cobra.Command {
	var most time.Duration
	var enough string
	cmd := &cobra.Command{
		Use: "wait VERSION", Short: "Waits until proxies have applied a version", Args: args(1, 1, "VERSION"),
		Long: `Waits until proxies have applied a version or a newer one, in all xDS types. A
position of the log, as ` + "`meshlog log`" + ` shows it, will do as well; "latest" is all
that is on the log a second from now: what was saved just before is in it.

Exit code 0: reached. 1: not in time; who lags is shown, and why.`,
		Example: `  meshlog wait --data data/ 1795275208.13
  meshlog wait --data data/ latest --for 95% --timeout 60s   # in a pipeline, after a change
  meshlog wait --data data/ latest --for 0                   # published; no matter who has it`,
	}
	t := targetFlags(cmd)
	format := outputFlag(cmd)
	cmd.Flags().StringVar(&enough, "for", "100%", "how `many` of the proxies that are connected: a share or a number")
	cmd.Flags().DurationVar(&most, "timeout", 30*time.Second, "how long to wait")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		defer func() { err = errors.Join(err, t.close()) }()
		out, err := newOutput(cmd, *format)
		if err != nil {
			return err
		}
		quota, err := parseQuota(enough)
		if err != nil {
			return err
		}
		var v ident.Position
		if args[0] != latest {
			if v, err = ident.ParsePosition(args[0]); err != nil {
				return usage("%w, or %q", err, latest)
			}
		}
		nc, err := t.connect()
		if err != nil {
			return err
		}
		chain, err := t.chain(cmd.Context(), nc)
		if err != nil {
			return err
		}
		w := &waiting{fleet: t.fleet(nc), quota: quota, chain: chain, position: v, started: time.Now(), progress: cmd.ErrOrStderr()}
		if args[0] == latest {
			if w.position, err = t.lastPosition(cmd.Context(), nc, w.fleet); err != nil {
				return err
			}
		}
		return w.command(cmd.Context(), most, out)
	}
	return cmd
}

// latest is all that is on the log, after the time that a watcher may take to put
// there what somebody has just saved.
const (
	latest      = "latest"
	latestAfter = time.Second
)

// lastPosition is that of the last record, in a while.
func (t *target) lastPosition(ctx context.Context, nc *bus.Conn, fleet *bus.Fleet) (ident.Position, error) {
	reports, err := fleet.Reports(ctx, bus.Summary)
	if err != nil {
		return ident.Position{}, err
	}
	b := newest(reports.Builders)
	if b == nil {
		return ident.Position{}, errNoBuilder
	}
	log, err := t.log(ctx, nc)
	if err != nil {
		return ident.Position{}, err
	}
	select {
	case <-time.After(latestAfter):
	case <-ctx.Done():
		return ident.Position{}, ctx.Err()
	}
	bounds, err := log.Bounds(ctx)
	return ident.Position{Epoch: b.GetPosition().GetEpoch(), Seq: bounds.Last}, err
}

var errNoBuilder = errors.New("no builder answers, so nothing is published; is one running, and connected to this bus?")

// quota is how many of some streams are enough.
type quota struct {
	count uint32
	share float64 // of 1; negative: count counts
}

func parseQuota(s string) (quota, error) {
	if share, ok := strings.CutSuffix(s, "%"); ok {
		f, err := strconv.ParseFloat(share, 64)
		if err != nil || f <= 0 || f > 100 {
			return quota{}, usage("--for %q: want a share between 0%% and 100%%, or a number of proxies", s)
		}
		return quota{share: f / 100}, nil
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return quota{}, usage("--for %q: want a share like 95%%, or a number of proxies", s)
	}
	return quota{count: uint32(n), share: -1}, nil
}

// of is how many of that many streams are enough. A share of none is one: who
// waits for proxies wants some to be there.
func (q quota) of(streams uint32) uint32 {
	if q.share < 0 {
		return q.count
	}
	return max(1, uint32(math.Ceil(q.share*float64(streams)-1e-9)))
}

// waiting is one wait.
type waiting struct {
	fleet    *bus.Fleet
	quota    quota
	chain    *natsfeed.Feed
	position ident.Position // to be applied, or what stands there
	started  time.Time
	progress io.Writer
	shown    bool

	// published is the version that says what is at position; zero: none does
	// so far.
	published ident.Position
	frontends map[string]spoken
}

// spoken is what a frontend said last.
type spoken struct {
	*reportv1.FrontendReport
	at time.Time
}

// hear takes in what a frontend says, and forgets those who are gone.
func (w *waiting) hear(r *reportv1.FrontendReport, now time.Time) {
	w.frontends[r.GetFrontend()] = spoken{r, now}
	maps.DeleteFunc(w.frontends, func(_ string, s spoken) bool { return s.GetLeaving() || now.Sub(s.at) > bus.PeerSilence })
}

func (w *waiting) command(ctx context.Context, most time.Duration, out *output) error {
	limited, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	err := w.run(limited)
	if w.shown {
		fmt.Fprint(w.progress, "\r\x1b[K")
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	v, err := w.view(ctx)
	if err != nil {
		return err
	}
	err = out.print(v, func() error { return w.show(v, out) })
	if err == nil && !v.Reached {
		return fmt.Errorf("not reached within %s: %s", most, v.Why)
	}
	return err
}

// run returns nil when it is reached.
func (w *waiting) run(ctx context.Context) error {
	w.frontends = map[string]spoken{}
	reports, err := w.fleet.Reports(ctx, bus.Summary)
	if err != nil {
		return err
	}
	if b := newest(reports.Builders); b != nil {
		w.hearHead(store.VersionOf(b.GetHead()), store.VersionOf(b.GetHead()))
	}
	for _, f := range reports.Frontends {
		w.hear(f, time.Now())
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ticks, heard := make(chan *reportv1.Tick), make(chan *reportv1.FrontendReport)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return w.fleet.Ticks(ctx, func(t *reportv1.Tick) { hand(ctx, ticks, t) })
	})
	g.Go(func() error {
		return w.fleet.FrontendReports(ctx, func(r *reportv1.FrontendReport) { hand(ctx, heard, r) })
	})
	g.Go(func() error {
		for !w.reached() {
			w.tell()
			select {
			case t := <-ticks:
				w.hearHead(store.VersionOf(t.GetHead()), store.VersionOf(t.GetPosition()))
			case r := <-heard:
				w.hear(r, time.Now())
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return errReached
	})
	if err := g.Wait(); !errors.Is(err, errReached) {
		return err
	}
	return nil
}

var errReached = errors.New("reached")

// hand hands v to who receives from c, unless nobody does any more.
func hand[T any](ctx context.Context, c chan<- T, v T) {
	select {
	case c <- v:
	case <-ctx.Done():
	}
}

// hearHead takes in that head says what is at all positions up to one.
func (w *waiting) hearHead(head, stands ident.Position) {
	switch {
	case !head.Less(w.position):
		w.published = w.position // what is applied after it will do
	case !stands.Less(w.position):
		w.published = head // nothing differs between the two
	}
}

// count is how many streams have what is waited for, of how many.
func (w *waiting) count() (applied, streams uint32) {
	for _, f := range w.frontends {
		streams += f.GetStreams()
		for _, a := range f.GetApplied() {
			if v := store.VersionOf(a.GetVersion()); !v.IsZero() && !w.published.IsZero() && !v.Less(w.published) {
				applied += a.GetStreams()
			}
		}
	}
	return applied, streams
}

func (w *waiting) reached() bool {
	applied, streams := w.count()
	return !w.published.IsZero() && applied >= w.quota.of(streams)
}

// tell shows on a terminal how far it is.
func (w *waiting) tell() {
	if !isTerminal(w.progress) {
		return
	}
	w.shown = true
	applied, streams := w.count()
	what := fmt.Sprintf("%s is not published yet", w.position)
	if !w.published.IsZero() {
		what = fmt.Sprintf("%s is applied by %d of %s", w.published, applied, plural(int(streams), "stream", "streams"))
	}
	fmt.Fprintf(w.progress, "\r%s, after %d s\x1b[K", what, int(time.Since(w.started).Seconds()))
}

// view is what it came to; where it was not reached, with who lags.
func (w *waiting) view(ctx context.Context) (waitView, error) {
	v := waitView{Version: w.position.String(), Reached: w.reached(), Seconds: time.Since(w.started).Seconds()}
	v.Applied, v.Streams = w.count()
	if !w.published.IsZero() {
		v.Version = w.published.String()
	}
	if v.Reached {
		return v, nil
	}
	reports, err := w.fleet.Reports(ctx, bus.Proxies)
	if err != nil {
		return v, err
	}
	v.Why = w.why(reports)
	if !w.published.IsZero() {
		v.Lagging, err = viewProxies(ctx, reports, lagging{chain: w.chain, now: time.Now()}, proxyFilter{})
		v.Lagging = slices.DeleteFunc(v.Lagging, func(p proxyView) bool {
			applied, _ := ident.ParsePosition(p.Version)
			return p.Version != "" && !applied.Less(w.published)
		})
	}
	return v, err
}

// why says in words what is missing.
func (w *waiting) why(reports *bus.Reports) string {
	b := newest(reports.Builders)
	applied, streams := w.count()
	switch {
	case b == nil:
		return errNoBuilder.Error()
	case w.published.IsZero() && b.GetError() != "":
		return fmt.Sprintf("%s is not published: %s", w.position, b.GetError())
	case w.published.IsZero() && len(b.GetWaiting()) > 0:
		return fmt.Sprintf("%s is not published: %s", w.position, strings.Join(b.GetWaiting(), "; "))
	case w.published.IsZero():
		return fmt.Sprintf("%s is not published; the log was read up to %s", w.position, store.VersionOf(b.GetPosition()))
	case len(reports.Frontends) == 0:
		return errNoFrontend.Error()
	case streams == 0:
		return "no proxy is connected; `--for 0` waits for the version alone"
	}
	text := fmt.Sprintf("%d of %s have applied %s, %d are wanted", applied, plural(int(streams), "stream", "streams"), w.published, w.quota.of(streams))
	for _, f := range reports.Frontends {
		if v := store.VersionOf(f.GetServing()); v.Less(w.published) && !f.GetLeaving() {
			text += fmt.Sprintf("; frontend %s serves %s", f.GetFrontend(), v)
		}
	}
	return text
}

// maxLagging is how many of those who lag are shown.
const maxLagging = 20

func (w *waiting) show(v waitView, out *output) error {
	if v.Reached {
		return out.line("%s is applied by %d of %s, after %s.", v.Version, v.Applied, plural(int(v.Streams), "stream", "streams"),
			span(time.Duration(v.Seconds*float64(time.Second))))
	}
	if len(v.Lagging) == 0 {
		return nil
	}
	if err := proxyTable(v.Lagging[:min(len(v.Lagging), maxLagging)], time.Now(), out); err != nil {
		return err
	}
	if more := len(v.Lagging) - maxLagging; more > 0 {
		return out.line("and %d more; `meshlog proxy-status --stale` lists them", more)
	}
	return nil
}
