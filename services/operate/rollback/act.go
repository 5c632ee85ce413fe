package rollback

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// view is what an act changes.
type view struct {
	ID      string              `json:"id"`
	DryRun  bool                `json:"dryRun,omitempty"`
	Changes []past.ObjectChange `json:"changes"`
	Seq     uint64              `json:"seq,omitempty"`    // of its last record; absent if nothing was written
	Version ident.Position      `json:"version,omitzero"` // the first one that has it
}

// act is one word of an operator, which a record of the log carries.
type act struct {
	reason  string
	dryRun  bool
	timeout time.Duration

	env   *command.Env
	log   command.EventLog
	fleet *bus.Fleet
	past  *past.Past

	head  store.Stored // the newest version
	pin   string       // the act is about the proxies of this pin only
	fold  *fold.Fold   // of the whole log
	world *world.World // of fold
	view  view
}

// reasonFlag binds the flag without which nothing overrules a source.
func (a *act) reasonFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.reason, "reason", "", "why, for those who read the log (required)")
}

func (a *act) checkReason() error {
	if strings.TrimSpace(a.reason) == "" {
		return command.Usage("--reason is missing: say why, for those who read the log")
	}
	return nil
}

func (a *act) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&a.dryRun, "dry-run", false, "show what would change, and write nothing")
	cmd.Flags().DurationVar(&a.timeout, "timeout", 30*time.Second, "how long to wait for a version that shows it")
}

// open opens the mesh.
func (a *act) open(ctx context.Context, e *command.Env) (err error) {
	a.env = e
	log, err := e.Log(ctx)
	if err != nil {
		return err
	}
	chain, err := e.Chain(ctx)
	if err != nil {
		return err
	}
	a.past = &past.Past{Name: "the mesh", Log: log, Versions: chain, Blobs: chain, Live: true}
	if a.log, err = e.OperatorLog(ctx); err != nil {
		return err
	}
	a.fleet, err = e.Fleet()
	return err
}

// read reads the newest version, and folds the log: what is withheld makes no version.
func (a *act) read(ctx context.Context) error {
	chain, err := a.env.Chain(ctx)
	if err != nil {
		return err
	}
	if a.head, err = command.FetchHead(ctx, chain); err != nil {
		return err
	}
	if a.head.Manifest == nil {
		return command.NotFound("the mesh has no versions: nothing has been published yet")
	}
	progress := a.env.Progress("read")
	defer progress.Done()
	bounds, err := a.past.Log.Bounds(ctx)
	if err != nil {
		return err
	}
	if a.fold, err = past.Fold(ctx, a.past, bounds.Last, progress.Show); err != nil {
		return err
	}
	a.fold.AssumeSigned()
	a.world, _, err = world.NewWorld().Apply(a.fold.Content())
	return err
}

// do shows what the messages change and, unless that was all that was asked for,
// appends them and waits for a version that shows it.
func (a *act) do(ctx context.Context, id string, messages []events.Event) (finished bool, err error) {
	if a.view.ID == "" { // later messages complete the first ones
		a.view = view{ID: id, DryRun: a.dryRun}
		if a.view.Changes, err = a.preview(messages); err != nil {
			return false, err
		}
	}
	if a.dryRun {
		a.env.Print(a.view, func() {
			a.show()
			a.env.Line("\n%s. Nothing was written; without --dry-run it is.", a.counted())
		})
		return true, nil
	}
	ack, err := a.log.Append(ctx, messages, events.Fence{})
	if err != nil {
		return false, fmt.Errorf("%s: it is not known whether the log has it; `meshlog status` lists what holds: %w", id, err)
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	a.view.Seq = ack.Seq
	if a.view.Version, err = command.WaitFor(ctx, a.log, a.fleet, ack.Seq); err != nil {
		return false, fmt.Errorf("%s is on the log with record %d, but %w", id, ack.Seq, err)
	}
	return false, nil
}

// done prints the result.
func (a *act) done(format string, args ...any) error {
	a.env.Print(a.view, func() {
		a.show()
		if len(a.view.Changes) > 0 {
			a.env.Line("")
		}
		end := "release"
		if a.pin != "" {
			end = "unpin"
		}
		a.env.Line("%s: %s, in version %s. `meshlog %s %s` ends it.", fmt.Sprintf(format, args...), a.counted(), a.view.Version, end, a.view.ID)
	})
	return nil
}

func (a *act) counted() string {
	return command.Plural(len(a.view.Changes), "object changes", "objects change")
}

// preview returns how the objects differ that are served otherwise after the messages.
func (a *act) preview(messages []events.Event) ([]past.ObjectChange, error) {
	seq, after := a.fold.Position().Seq, a.world
	changed := map[ident.Key]bool{}
	for _, m := range messages {
		seq++
		change, _, err := a.fold.Apply(events.Record{Seq: seq, Time: time.Now(), Event: m}, nil)
		if err != nil {
			return nil, fmt.Errorf("fold the act: %w", err)
		}
		next, keys, err := after.Apply(change)
		if err != nil {
			return nil, fmt.Errorf("apply the act: %w", err)
		}
		after = next
		for _, k := range keys {
			changed[k] = true
		}
	}
	changes := []past.ObjectChange{}
	before, differed := a.world.View(a.pin)
	after, differ := after.View(a.pin)
	for _, k := range slices.Concat(differed, differ) {
		changed[k] = before.Served(k) != after.Served(k)
	}
	maps.DeleteFunc(changed, func(_ ident.Key, differs bool) bool { return !differs })
	for _, k := range sorted(changed) {
		if was, is := valueOf(before.Served(k)), valueOf(after.Served(k)); was != nil || is != nil {
			changes = append(changes, past.CompareValues(k, was, is))
		}
	}
	return changes, nil
}

func valueOf(o *world.Object) *ident.Value {
	if o == nil {
		return nil
	}
	return &o.Value
}

func (a *act) show() {
	for _, c := range a.view.Changes {
		a.env.Line("%s", command.ChangeTitle(c, a.env.Output))
		for _, l := range command.ChangeLines(c) {
			a.env.Line("    %s", l)
		}
	}
}

// sorted returns the keys of a map in the order of rows.
func sorted[V any](m map[ident.Key]V) []ident.Key {
	return slices.SortedFunc(maps.Keys(m), func(a, b ident.Key) int { return cmp.Compare(a.Row(), b.Row()) })
}
