package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/events"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/model"
	"meshlog.dev/store"
)

// removeView is what a removal came to, or would.
type removeView struct {
	Source   string   `json:"source"`
	Instance string   `json:"instance"`
	Objects  []string `json:"objects"` // that go
	Removed  bool     `json:"removed"` // false: they would
	Version  string   `json:"version,omitempty"`
	// Approved are holds of the guard that were let through.
	Approved []string `json:"approved,omitempty"`
}

// removedAfter is how long a source must have been silent: as long as a watcher
// that stands by waits.
const removedAfter = 30 * time.Second

func sourcesRemoveCommand() *cobra.Command {
	var yes bool
	var most time.Duration
	cmd := &cobra.Command{
		Use: "remove SOURCE/INSTANCE", Short: "Removes a source that nobody speaks for, with all of its objects", Args: args(1, 1, "SOURCE/INSTANCE"),
		Long: `Removes a source for good: says on the log, in its place, that it holds nothing,
and approves that its objects go. Without --yes it shows them, and removes
nothing.

It is refused while a watcher speaks for the source, stands by for it, or has
spoken within the last 30 s. A watcher that is started later lists the source
again.`,
		Example: `  meshlog sources remove --data data/ file/old
  meshlog sources remove --data data/ file/old --yes`,
	}
	t := targetFlags(cmd)
	format := outputFlag(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "remove them")
	cmd.Flags().DurationVar(&most, "timeout", 30*time.Second, "how long to wait for a version without them")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		defer func() { err = errors.Join(err, t.close()) }()
		out, err := newOutput(cmd, *format)
		if err != nil {
			return err
		}
		shard, err := parseShard(args[0])
		if err != nil {
			return err
		}
		s, err := t.openSources(cmd)
		if err != nil {
			return err
		}
		warnSilent(cmd.ErrOrStderr(), s.reports.Silent, time.Now())
		r := &removal{sources: s, shard: shard}
		if err := r.check(cmd.Context(), time.Now()); err != nil {
			return err
		}
		if !yes {
			return out.print(r.view, func() error { return showRemoval(r.view, out) })
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), most)
		defer cancel()
		if err := r.run(ctx); err != nil {
			return err
		}
		return out.print(r.view, func() error { return showRemoval(r.view, out) })
	}
	return cmd
}

func parseShard(s string) (events.Shard, error) {
	source, instance, ok := strings.Cut(s, "/")
	if !ok || source == "" || instance == "" {
		return events.Shard{}, usage("source %q: want SOURCE/INSTANCE, as `meshlog sources` prints it", s)
	}
	return events.Shard{Source: source, Instance: instance}, nil
}

// removal removes a source.
type removal struct {
	*sources
	shard events.Shard
	view  removeView
	last  uint64 // control record of the shard
}

// check says why the source cannot be removed, or what would go.
func (r *removal) check(ctx context.Context, now time.Time) error {
	views, err := r.views(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(views, func(v sourceView) bool { return v.shard() == r.shard })
	if i < 0 {
		return notFound("source %s: nobody has ever spoken for it; `meshlog sources` lists those there are", r.shard)
	}
	v := views[i]
	switch {
	case v.speaks():
		return fmt.Errorf("source %s: watcher %s speaks for it; stop that first", r.shard, v.Holder)
	case len(v.Standbys) > 0:
		return fmt.Errorf("source %s: watcher %s stands by for it; stop that first", r.shard, strings.Join(v.Standbys, ", "))
	case v.Heard == nil && v.Objects == 0:
		return notFound("source %s: nothing was ever said for it on the log", r.shard)
	case v.Heard != nil && now.Sub(*v.Heard) < removedAfter:
		return fmt.Errorf("source %s: %s spoke for it %s; a watcher that speaks and does not report? It can be removed when it was silent for %s",
			r.shard, v.Holder, ago(now.Sub(*v.Heard)), removedAfter)
	}
	r.view = removeView{Source: r.shard.Source, Instance: r.shard.Instance, Objects: []string{}}
	for _, k := range r.objects(r.shard) {
		r.view.Objects = append(r.view.Objects, k.String())
	}
	head, err := r.log.Last(ctx, events.ControlSubject(r.shard))
	if err != nil && !errors.Is(err, events.ErrNotFound) { // the last word for a source that is long gone has expired
		return err
	}
	r.last = head.Seq
	return nil
}

// run speaks an empty listing for the source, and waits until a version shows
// it. What the guard holds back of it is approved: that is what was asked for.
func (r *removal) run(ctx context.Context) error {
	said, err := r.speak(ctx)
	if err != nil {
		return err
	}
	b := newest(r.reports.Builders)
	if b == nil {
		return fmt.Errorf("said on the log at %d, but %w", said, errNoBuilder)
	}
	shown := &waiting{fleet: r.fleet, chain: r.chain, quota: quota{share: -1}, position: store.Version{Epoch: b.GetPosition().GetEpoch(), Seq: said}}
	if err := shown.run(ctx); err != nil {
		return fmt.Errorf("said on the log at %d, but no version shows it yet: %w", said, err)
	}
	r.view.Removed, r.view.Version = true, shown.published.String()
	reports, err := r.fleet.Reports(ctx, bus.Summary)
	if err != nil {
		return err
	}
	for _, h := range viewHolds(newest(reports.Builders)) {
		if h.Source != r.shard.Source || h.Instance != r.shard.Instance {
			continue
		}
		a, err := approve(ctx, r.log, r.chain, h)
		if err != nil {
			return err
		}
		r.view.Approved, r.view.Version = append(r.view.Approved, h.ID), a.Version
	}
	return nil
}

// speak begins a session for the source and closes it as an empty listing, each
// fenced on what was said before. It returns where that stands.
func (r *removal) speak(ctx context.Context) (uint64, error) {
	session := "remove-" + rand.Text() + "-1"
	last := r.last
	for _, body := range []events.Body{
		&events.Begin{Shard: r.shard, Session: session, Holder: operator()},
		&events.Alive{Shard: r.shard, Session: session, Low: 1, Digest: new(events.ShardDigests).Sum(), Listed: events.AllBuckets()},
	} {
		e := events.Event{ID: "remove/" + rand.Text(), Observed: time.Now(), Actor: operator(), Body: body}
		ack, err := r.log.Append(ctx, []events.Event{e}, events.Fence{Kind: events.FenceSubject, Subject: events.ControlSubject(r.shard), Seq: last})
		if errors.Is(err, events.ErrConflict) {
			return 0, fmt.Errorf("source %s: somebody has begun to speak for it just now; nothing was removed", r.shard)
		}
		if err != nil {
			return 0, fmt.Errorf("remove %s: %w", r.shard, err)
		}
		last = ack.Seq
	}
	return last, nil
}

// shownObjects is how many of what goes are named.
const shownObjects = 20

func showRemoval(v removeView, out *output) error {
	name := model.Shard{Source: v.Source, Instance: v.Instance}
	if v.Removed {
		return out.line("Removed: version %s has nothing of %s any more, which were %s.", v.Version, name, plural(len(v.Objects), "object", "objects"))
	}
	for _, o := range v.Objects[:min(len(v.Objects), shownObjects)] {
		if err := out.line("%s", o); err != nil {
			return err
		}
	}
	if more := len(v.Objects) - shownObjects; more > 0 {
		if err := out.line("and %d more", more); err != nil {
			return err
		}
	}
	return out.line("\n%s would go for good. Nothing was removed; --yes does it.", plural(len(v.Objects), "object", "objects"))
}
