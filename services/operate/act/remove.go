package act

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
	"meshlog.dev/services/operate/command"
)

// removeView is the result of a removal, or of its preview.
type removeView struct {
	Source   string   `json:"source"`
	Instance string   `json:"instance"`
	Kinds    []string `json:"kinds,omitempty"`    // only these are removed
	Objects  []string `json:"objects"`            // to remove
	Unserved int      `json:"unserved,omitempty"` // further objects to remove, which were never served
	Removed  bool     `json:"removed"`            // false: a preview
	Version  string   `json:"version,omitempty"`
	Approved []string `json:"approved,omitempty"` // holds that the command approved
	Held     []string `json:"held,omitempty"`     // holds that also keep other objects
}

// removedAfter is how long a source must have been silent: as long as a standby
// watcher waits before it takes over.
const removedAfter = 30 * time.Second

// RemoveSource returns the command `remove` of `sources`.
func RemoveSource() *cobra.Command {
	cmd := &cobra.Command{
		Use: "remove SOURCE/INSTANCE", Short: "Remove a source without a watcher, or the frozen kinds of one", Args: command.Args(1, 1, "SOURCE/INSTANCE"),
		Long: `Remove a source for good: record on the log, in place of its watcher, that it has
no objects, and approve their removal. Without --yes the command only shows the
objects.

The command refuses while a watcher publishes for the source or stands by for it,
and for 30 s after it last did. A watcher that starts later lists the source again.

With --kind, only objects of these kinds are removed. The source may have a
watcher, but only kinds that it cannot read are removed: ` + "`meshlog sources`" + ` shows
which are frozen. The watcher then begins a new session. When it can read the kinds
again, the objects that the source still has come back.`,
		Example: `  meshlog sources remove --data data/ file/old
  meshlog sources remove --data data/ file/old --yes
  meshlog sources remove --data data/ kubernetes/eu --kind Sidecar,EnvoyFilter --yes`,
	}
	yes := cmd.Flags().Bool("yes", false, "remove the objects")
	kinds := cmd.Flags().StringSlice("kind", nil, "only objects of this frozen `kind`")
	most := cmd.Flags().Duration("timeout", 30*time.Second, "how long to wait for a version without them")
	return command.Live(cmd, func(ctx context.Context, e *command.Env, args []string) error {
		source, instance, _ := strings.Cut(args[0], "/")
		if source == "" || instance == "" {
			return command.Usage("source %q: want SOURCE/INSTANCE, as `meshlog sources` prints it", args[0])
		}
		s, err := e.Sources(ctx)
		if err != nil {
			return err
		}
		e.WarnSilent(s.Reports)
		r := &removal{Sources: s, shard: ident.Shard{Source: source, Instance: instance}, kinds: events.KindsOf(*kinds...)}
		if err := r.check(ctx, time.Now()); err != nil {
			return err
		}
		if *yes {
			if r.log, err = e.OperatorLog(ctx); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, *most)
			defer cancel()
			if err := r.run(ctx); err != nil {
				return err
			}
		}
		e.Print(r.view, func() { r.view.show(e.Output) })
		return nil
	})
}

// removal removes a source, or some kinds of its objects.
type removal struct {
	*command.Sources
	log   command.EventLog // signs
	shard ident.Shard
	kinds events.Kinds // none: all
	view  removeView
	last  uint64 // the last control record of the shard
}

// check finds the objects to remove, or returns why the source cannot be removed.
func (r *removal) check(ctx context.Context, now time.Time) error {
	views, err := r.Views(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(views, func(v command.Source) bool { return v.Shard() == r.shard })
	if i < 0 {
		return command.NotFound("source %s: no watcher has ever published for it; `meshlog sources` lists the sources", r.shard)
	}
	last, err := r.Log.Last(ctx, events.ControlSubject(r.shard))
	if err != nil && !errors.Is(err, events.ErrNotFound) { // the last record of a source that is long gone has expired
		return err
	}
	r.last = last.Seq
	if len(r.kinds) == 0 {
		err = checkSilent(&views[i], now)
	} else {
		err = r.checkFrozen(last)
	}
	if err != nil {
		return err
	}
	return r.preview(&views[i])
}

// checkSilent returns an error if a watcher may publish for the source.
func checkSilent(v *command.Source, now time.Time) error {
	switch {
	case v.HasWatcher():
		return fmt.Errorf("source %s: watcher %s publishes for it; stop the watcher first", v.Shard(), v.Holder)
	case len(v.Standbys) > 0:
		return fmt.Errorf("source %s: watcher %s stands by for it; stop the watcher first", v.Shard(), strings.Join(v.Standbys, ", "))
	case v.Heard.IsZero() && v.Objects == 0:
		return command.NotFound("source %s: the log has no record of it", v.Shard())
	case v.State == command.StateRest, v.State == command.StateNotConfigured: // the fence is enough
	case !v.Heard.IsZero() && now.Sub(v.Heard) < removedAfter:
		return fmt.Errorf("source %s: watcher %s published for it %s, and does not answer. The source can be removed after %s of silence",
			v.Shard(), v.Holder, command.Since(v.Heard, now), removedAfter)
	}
	return nil
}

// checkFrozen returns an error unless the source's session covers none of the
// kinds, by the session's last record. The removal is fenced on that record.
func (r *removal) checkFrozen(last events.Record) error {
	alive, ok := last.Event.Body.(*events.Alive)
	switch {
	case last.Seq == 0:
		return command.NotFound("source %s: its last record on the log has expired, so it is not known what is frozen; without --kind all of it can be removed", r.shard)
	case !ok:
		return fmt.Errorf("source %s: it is being listed; try again when `meshlog sources` shows it FOLLOWING", r.shard)
	case alive.Ends:
		return fmt.Errorf("source %s: an operator removed objects of it last; try again when its watcher has listed it", r.shard)
	}
	for _, k := range r.kinds {
		if alive.Kinds.Cover(k) {
			return fmt.Errorf("source %s: kind %s is not frozen: its watcher can read it, so an object that is deleted in the source goes by itself", r.shard, k)
		}
	}
	return nil
}

// preview finds the objects to remove.
func (r *removal) preview(v *command.Source) error {
	r.view = removeView{Source: r.shard.Source, Instance: r.shard.Instance, Kinds: r.kinds, Objects: []string{}}
	counts := map[string]int{}
	for _, k := range r.Objects(r.shard) {
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
			return command.NotFound("source %s: it has no objects of kind %s", r.shard, k)
		}
	}
	return nil
}

// run publishes an empty listing for the source, and waits until a version shows
// it. Then it approves the holds of these objects, which the operator asked to
// remove.
func (r *removal) run(ctx context.Context) error {
	held := map[string]bool{} // before, for another reason
	if len(r.kinds) > 0 {
		before, err := viewHolds(r.Head.Snapshot)
		if err != nil {
			return err
		}
		for _, h := range before {
			held[h.ID] = true
		}
	}
	seq, err := r.publish(ctx)
	if err != nil {
		return err
	}
	version, err := command.WaitFor(ctx, r.Log, r.Fleet, seq)
	if err != nil {
		return fmt.Errorf("removed on the log with record %d, but %w", seq, err)
	}
	r.view.Removed, r.view.Version = true, version.String()
	if r.Head, err = command.FetchHead(ctx, r.Chain); err != nil {
		return err
	}
	after, err := viewHolds(r.Head.Snapshot)
	if err != nil {
		return err
	}
	for _, h := range after {
		if h.Source != r.shard.Source || h.Instance != r.shard.Instance || held[h.ID] {
			continue
		}
		if len(r.kinds) > 0 && int(h.Keys) > len(r.view.Objects) {
			r.view.Held = append(r.view.Held, h.ID)
			continue
		}
		a, err := approve(ctx, r.log, r.Fleet, h)
		if err != nil {
			return err
		}
		r.view.Approved, r.view.Version = append(r.view.Approved, h.ID), a.Version
	}
	return nil
}

// publish appends an empty listing of the source, in a session of its own that
// ends with it, and returns its record. It is fenced on the source's last record.
func (r *removal) publish(ctx context.Context) (uint64, error) {
	session := "remove-" + rand.Text() + "-1"
	batch := []events.Event{
		command.NewEvent("remove", &events.Begin{Shard: r.shard, Session: session, Holder: command.Operator()}),
		command.NewEvent("remove", &events.Alive{
			Shard: r.shard, Session: session, Low: 1, Digest: new(events.ShardDigests).Sum(), Listed: events.AllBuckets(),
			Kinds: r.kinds, Ends: true,
		}),
	}
	ack, err := r.log.Append(ctx, batch, events.Fence{Kind: events.FenceSubject, Subject: events.ControlSubject(r.shard), Seq: r.last})
	if errors.Is(err, events.ErrConflict) {
		return 0, fmt.Errorf("source %s: its watcher has just published; nothing was removed, try again", r.shard)
	}
	if err != nil {
		return 0, fmt.Errorf("remove %s: %w", r.shard, err)
	}
	// A watcher that this does not reach finds out when its next alive is refused.
	_ = r.Fleet.AskListing(ctx, &reportv1.ListingRequest{
		Source: r.shard.Source, Instance: r.shard.Instance, Reason: fmt.Sprintf("%s has removed objects from the log", command.Operator()),
	})
	return ack.Seq, nil
}

// shownObjects is how many objects a preview names.
const shownObjects = 20

func (v *removeView) show(out *command.Output) {
	name := v.Source + "/" + v.Instance
	if len(v.Kinds) > 0 {
		name = strings.Join(v.Kinds, ", ") + " of " + name
	}
	objects := command.Plural(len(v.Objects), "object", "objects")
	switch {
	case len(v.Held) > 0:
		out.Line("Removed %s from the log, but the guard keeps serving it, with other objects that were lost: `meshlog approve %s` removes all of them.",
			name, strings.Join(v.Held, "` and `meshlog approve "))
		return
	case v.Removed:
		out.Line("Removed: version %s has no objects of %s any more; it had %s.", v.Version, name, objects)
		return
	}
	for _, o := range v.Objects[:min(len(v.Objects), shownObjects)] {
		out.Line("%s", o)
	}
	if more := len(v.Objects) - shownObjects; more > 0 {
		out.Line("and %d more", more)
	}
	unserved := ""
	if v.Unserved > 0 {
		unserved = fmt.Sprintf(", and %d more that were never served,", v.Unserved)
	}
	out.Line("\n%s%s would be removed for good. Nothing was removed yet; --yes removes them.", objects, unserved)
}
