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
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/bus"
)

// removeView is what a removal came to, or would.
type removeView struct {
	Source   string   `json:"source"`
	Instance string   `json:"instance"`
	Kinds    []string `json:"kinds,omitempty"`    // only of these
	Objects  []string `json:"objects"`            // that go
	Unserved int      `json:"unserved,omitempty"` // others that go, of which nothing was ever served
	Removed  bool     `json:"removed"`            // false: they would
	Version  string   `json:"version,omitempty"`
	// Approved are holds of the guard that were let through.
	Approved []string `json:"approved,omitempty"`
	// Held are holds that keep other objects too.
	Held []string `json:"held,omitempty"`
}

// removedAfter is how long a source must have been silent: as long as a watcher
// that stands by waits.
const removedAfter = 30 * time.Second

func sourcesRemoveCommand() *cobra.Command {
	var yes bool
	var kinds []string
	var most time.Duration
	cmd := &cobra.Command{
		Use: "remove SOURCE/INSTANCE", Short: "Removes a source that nobody speaks for, or what is frozen of one", Args: args(1, 1, "SOURCE/INSTANCE"),
		Long: `Removes a source for good: says on the log, in its place, that it holds nothing,
and approves that its objects go. Without --yes it shows them, and removes
nothing.

It is refused while a watcher speaks for the source, stands by for it, or has
spoken within the last 30 s. A watcher that is started later lists the source
again.

With --kind, only objects of these kinds go, and a watcher may speak for the
source, but not for these kinds, because it cannot read them: ` + "`meshlog sources`" + `
shows which are frozen. The watcher begins a new session then. When it can read
the kinds again, the objects that the source still has come back.`,
		Example: `  meshlog sources remove --data data/ file/old
  meshlog sources remove --data data/ file/old --yes
  meshlog sources remove --data data/ kubernetes/eu --kind Sidecar,EnvoyFilter --yes`,
	}
	t := targetFlags(cmd)
	format := outputFlag(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "remove them")
	cmd.Flags().StringSliceVar(&kinds, "kind", nil, "only objects of this frozen `kind`")
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
		r := &removal{sources: s, shard: shard, kinds: events.KindsOf(kinds...)}
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

func parseShard(s string) (ident.Shard, error) {
	source, instance, ok := strings.Cut(s, "/")
	if !ok || source == "" || instance == "" {
		return ident.Shard{}, usage("source %q: want SOURCE/INSTANCE, as `meshlog sources` prints it", s)
	}
	return ident.Shard{Source: source, Instance: instance}, nil
}

// removal removes a source, or some kinds of its objects.
type removal struct {
	*sources
	shard ident.Shard
	kinds events.Kinds // none: all
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
	head, err := r.log.Last(ctx, events.ControlSubject(r.shard))
	if err != nil && !errors.Is(err, events.ErrNotFound) { // the last word for a source that is long gone has expired
		return err
	}
	r.last = head.Seq
	if len(r.kinds) == 0 {
		err = silent(&views[i], now)
	} else {
		err = r.frozen(head)
	}
	if err != nil {
		return err
	}
	return r.show(&views[i])
}

// silent says why a source is not one that nobody speaks for.
func silent(v *sourceView, now time.Time) error {
	switch {
	case v.speaks():
		return fmt.Errorf("source %s: watcher %s speaks for it; stop that first", v.shard(), v.Holder)
	case len(v.Standbys) > 0:
		return fmt.Errorf("source %s: watcher %s stands by for it; stop that first", v.shard(), strings.Join(v.Standbys, ", "))
	case v.Heard == nil && v.Objects == 0:
		return notFound("source %s: nothing was ever said for it on the log", v.shard())
	case v.Heard != nil && now.Sub(*v.Heard) < removedAfter:
		return fmt.Errorf("source %s: %s spoke for it %s; a watcher that speaks and does not report? It can be removed when it was silent for %s",
			v.shard(), v.Holder, ago(now.Sub(*v.Heard)), removedAfter)
	}
	return nil
}

// frozen says why the kinds are not ones that the source's session does not
// speak for. It goes by the session's last word, behind which the removal is
// fenced.
func (r *removal) frozen(head events.Record) error {
	said, ok := head.Event.Body.(*events.Alive)
	switch {
	case head.Seq == 0:
		return notFound("source %s: nothing was said for it on the log for long, so it is not known what is frozen; without --kind all of it can be removed", r.shard)
	case !ok:
		return fmt.Errorf("source %s: it is being listed; try again when `meshlog sources` shows it FOLLOWING", r.shard)
	case said.Ends:
		return fmt.Errorf("source %s: an operator spoke for it last; try again when its watcher has listed it", r.shard)
	}
	for _, k := range r.kinds {
		if said.Kinds.Cover(k) {
			return fmt.Errorf("source %s: kind %s is not frozen: the source can be read for it, and what is removed there goes by itself", r.shard, k)
		}
	}
	return nil
}

// show says what would go.
func (r *removal) show(v *sourceView) error {
	r.view = removeView{Source: r.shard.Source, Instance: r.shard.Instance, Kinds: r.kinds, Objects: []string{}}
	counts := map[string]int{}
	for _, k := range r.objects(r.shard) {
		if r.kinds.Cover(k.Kind) {
			r.view.Objects = append(r.view.Objects, k.String())
			counts[k.Kind]++
		}
	}
	for _, k := range v.FrozenKinds {
		if len(r.kinds) > 0 && r.kinds.Cover(k.Kind) {
			r.view.Unserved += max(0, k.Objects-counts[k.Kind])
			counts[k.Kind] = max(k.Objects, counts[k.Kind])
		}
	}
	for _, k := range r.kinds {
		if counts[k] == 0 {
			return notFound("source %s: it has no objects of kind %s", r.shard, k)
		}
	}
	return nil
}

// run speaks an empty listing for the source, and waits until a version shows
// it. What the guard holds back of it is approved: that is what was asked for.
func (r *removal) run(ctx context.Context) error {
	held := map[string]bool{} // before, for another reason
	if len(r.kinds) > 0 {
		for _, h := range viewHolds(newest(r.reports.Builders)) {
			held[h.ID] = true
		}
	}
	said, err := r.speak(ctx)
	if err != nil {
		return err
	}
	b := newest(r.reports.Builders)
	if b == nil {
		return fmt.Errorf("said on the log at %d, but %w", said, errNoBuilder)
	}
	shown := &waiting{fleet: r.fleet, chain: r.chain, quota: quota{share: -1}, position: ident.Position{Epoch: b.GetPosition().GetEpoch(), Seq: said}}
	if err := shown.run(ctx); err != nil {
		return fmt.Errorf("said on the log at %d, but no version shows it yet: %w", said, err)
	}
	r.view.Removed, r.view.Version = true, shown.published.String()
	reports, err := r.fleet.Reports(ctx, bus.Summary)
	if err != nil {
		return err
	}
	for _, h := range viewHolds(newest(reports.Builders)) {
		if h.Source != r.shard.Source || h.Instance != r.shard.Instance || held[h.ID] {
			continue
		}
		if len(r.kinds) > 0 && int(h.Keys) > len(r.view.Objects) {
			r.view.Held = append(r.view.Held, h.ID)
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

// speak says in the source's place, in a session that ends with that, that it
// holds nothing; fenced on what was said before. It returns where that stands.
func (r *removal) speak(ctx context.Context) (uint64, error) {
	session := "remove-" + rand.Text() + "-1"
	var batch []events.Event
	for _, body := range []events.Body{
		&events.Begin{Shard: r.shard, Session: session, Holder: operator()},
		&events.Alive{
			Shard: r.shard, Session: session, Low: 1, Digest: new(events.ShardDigests).Sum(), Listed: events.AllBuckets(),
			Kinds: r.kinds, Ends: true,
		},
	} {
		batch = append(batch, events.Event{ID: "remove/" + rand.Text(), Observed: time.Now(), Actor: operator(), Body: body})
	}
	ack, err := r.log.Append(ctx, batch, events.Fence{Kind: events.FenceSubject, Subject: events.ControlSubject(r.shard), Seq: r.last})
	if errors.Is(err, events.ErrConflict) {
		return 0, fmt.Errorf("source %s: somebody has spoken for it just now; nothing was removed, try again", r.shard)
	}
	if err != nil {
		return 0, fmt.Errorf("remove %s: %w", r.shard, err)
	}
	// A watcher that is not reached hears it when its next alive is refused.
	_ = r.fleet.AskListing(ctx, &reportv1.ListingRequest{
		Source: r.shard.Source, Instance: r.shard.Instance, Reason: fmt.Sprintf("%s has removed objects from the log", operator()),
	})
	return ack.Seq, nil
}

// shownObjects is how many of what goes are named.
const shownObjects = 20

func showRemoval(v removeView, out *output) error {
	name := ident.Shard{Source: v.Source, Instance: v.Instance}.String()
	if len(v.Kinds) > 0 {
		name = strings.Join(v.Kinds, ", ") + " of " + name
	}
	switch {
	case len(v.Held) > 0:
		return out.line("Nothing of %s is on the log any more, but the guard goes on serving it, with more that was lost: `meshlog approve %s` lets all of that go.",
			name, strings.Join(v.Held, "` and `meshlog approve "))
	case v.Removed:
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
	unserved := ""
	if v.Unserved > 0 {
		unserved = fmt.Sprintf(", and %d more of which nothing was ever served,", v.Unserved)
	}
	return out.line("\n%s%s would go for good. Nothing was removed; --yes does it.", plural(len(v.Objects), "object", "objects"), unserved)
}
