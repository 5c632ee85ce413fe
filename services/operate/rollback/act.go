package rollback

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
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

// The acts.
const (
	ActRollback = "rollback"
	ActFreeze   = "freeze"
	ActPin      = "pin"
	ActRelease  = "release" // ends a rollback or a freeze
	ActUnpin    = "unpin"
	ActApprove  = "approve"
	ActPromote  = "promote" // begins the next step of a rollout
	ActAbort    = "abort"   // stops a rollout
)

// Intent says what an operator wants: the arguments of a command, or the fields of a form.
type Intent struct {
	Act string
	// Reason is for those who read the log. Rollbacks, freezes, pins and stopped rollouts
	// have one.
	Reason string
	// Version, as for commands, of a rollback or a pin.
	Version string
	// Namespace or Objects of a rollback; neither: all configuration.
	Namespace string
	Objects   []string
	// Proxies is the selector of a pin.
	Proxies string
	// Source is SOURCE/INSTANCE of a freeze.
	Source string
	// ID of what is released, unpinned, approved, promoted or stopped. Without one, a
	// promotion and a stop are about the rollout that runs.
	ID string
	// All promotes a rollout to all proxies at once.
	All bool
}

// View is what an act changes.
type View struct {
	ID      string              `json:"id"`
	DryRun  bool                `json:"dryRun,omitempty"`
	Changes []past.ObjectChange `json:"changes"`
	Seq     uint64              `json:"seq,omitempty"`    // of its last record; absent if nothing was written
	Version ident.Position      `json:"version,omitzero"` // the first one that has it
}

// Mesh is what acts read and write.
type Mesh struct {
	target *command.Target
	past   *past.Past
	log    command.EventLog
	fleet  *bus.Fleet
}

// Open opens a mesh: what acts append is signed with the operator's key of t, which the caller
// closes.
func Open(ctx context.Context, t *command.Target) (*Mesh, error) {
	log, err := t.Log(ctx)
	if err != nil {
		return nil, err
	}
	chain, err := t.Chain(ctx)
	if err != nil {
		return nil, err
	}
	m := &Mesh{target: t, past: &past.Past{Name: "the mesh", Log: log, Versions: chain, Blobs: chain, Live: true}}
	if m.log, err = t.OperatorLog(ctx); err != nil {
		return nil, err
	}
	m.fleet, err = t.Fleet()
	return m, err
}

// Plan is an act that is worked out. Until Do nothing is written.
type Plan struct {
	View
	// Intent names the version in full.
	Intent Intent
	// At is the last record of the log that the plan knows.
	At ident.Position
	// Nothing is why there is nothing to do; empty: there is.
	Nothing string
	// Done is what Do did, in words such as "Froze file/default".
	Done string
	// For says for which proxies the objects change; empty: for all that no pin keeps.
	For string

	mesh     *Mesh
	head     store.Stored // the newest version
	fold     *fold.Fold   // of the whole log
	world    *world.World // of fold
	pin      string       // the act is about the proxies of this pin only
	step     int          // of the rollout that the act is about, before it
	sums     []string     // of the values in Changes
	messages []events.Event
	// more works out what sources changed between reading and writing; nil: nothing can come
	// between.
	more func(context.Context) ([]events.Event, error)
}

// Plan works an act out, and writes nothing.
func (m *Mesh) Plan(ctx context.Context, i Intent) (*Plan, error) {
	work, known := map[string]func(*Plan, context.Context) error{
		ActRollback: (*Plan).rollback, ActFreeze: (*Plan).freeze, ActPin: (*Plan).keep,
		ActRelease: (*Plan).release, ActUnpin: (*Plan).unpin, ActApprove: (*Plan).approve,
		ActPromote: (*Plan).promote, ActAbort: (*Plan).abort,
	}[i.Act]
	if !known {
		return nil, command.Usage("act %q: want rollback, freeze, pin, release, unpin, approve, promote or abort", i.Act)
	}
	p := &Plan{mesh: m, Intent: i, View: View{Changes: []past.ObjectChange{}}}
	return p, work(p, ctx)
}

// read reads the newest version, and folds the log: what is withheld makes no version.
func (p *Plan) read(ctx context.Context) (err error) {
	if p.head, err = command.FetchHead(ctx, p.mesh.past.Versions); err != nil {
		return err
	}
	if p.head.Manifest == nil {
		return command.NotFound("the mesh has no versions: nothing has been published yet")
	}
	progress := p.mesh.target.Progress("read")
	defer progress.Done()
	bounds, err := p.mesh.past.Log.Bounds(ctx)
	if err != nil {
		return err
	}
	if p.fold, err = past.Fold(ctx, p.mesh.past, bounds.Last, progress.Show); err != nil {
		return err
	}
	p.At = p.fold.Position()
	p.fold.AssumeSigned()
	p.world, _, err = world.NewWorld().Apply(p.fold.Content())
	return err
}

// propose makes these messages the first ones of the plan, and works out what they change.
func (p *Plan) propose(id string, messages []events.Event) (err error) {
	p.ID, p.messages = id, messages
	p.Changes, err = p.preview(messages)
	return err
}

// Sum is a digest of what the plan would do: plans with one sum change the same objects from
// the same values to the same values.
func (p *Plan) Sum() string {
	i := p.Intent
	i.Reason = ""
	intent, err := json.Marshal(i)
	if err != nil {
		panic(err) // of strings only
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%d\n%s", intent, p.Nothing, p.step, strings.Join(p.sums, "\n"))
	return hex.EncodeToString(h.Sum(nil))
}

// attempts is how often a plan goes on because a source has changed something between the
// version that was read and the records.
const attempts = 5

// Do appends the plan's records, and returns when a version shows them. If it fails and Seq is
// not 0, they are on the log.
func (p *Plan) Do(ctx context.Context) error { return p.do(ctx, events.Fence{}) }

// DoUnchanged is Do if the log has no record that the plan does not know. Otherwise it writes
// nothing, and its error is events.ErrConflict.
func (p *Plan) DoUnchanged(ctx context.Context) error {
	return p.do(ctx, events.Fence{Kind: events.FenceLog, Seq: p.At.Seq})
}

func (p *Plan) do(ctx context.Context, fence events.Fence) error {
	messages := p.messages
	for range attempts {
		ack, err := p.mesh.log.Append(ctx, messages, fence)
		if errors.Is(err, events.ErrConflict) {
			return err
		}
		if err != nil {
			return fmt.Errorf("%s: it is not known whether the log has it; `meshlog status` lists what holds: %w", p.ID, err)
		}
		p.Seq = ack.Seq
		if p.Version, err = command.WaitFor(ctx, p.mesh.log, p.mesh.fleet, ack.Seq); err != nil {
			return fmt.Errorf("%s is on the log with record %d, but %w", p.ID, ack.Seq, err)
		}
		if p.more == nil {
			return nil
		}
		fence = events.Fence{}
		if messages, err = p.more(ctx); err != nil || len(messages) == 0 {
			return err
		}
	}
	if p.Intent.Act == ActPin {
		return errors.New("pinned, but not all objects are as they were: sources changed them, or a MeshPolicy forbids what they were; `meshlog status` shows the pin")
	}
	return errors.New("rolled back, but sources changed other objects each time; run the command again")
}

// preview returns how the objects differ that are served otherwise after the messages.
func (p *Plan) preview(messages []events.Event) ([]past.ObjectChange, error) {
	seq, after := p.fold.Position().Seq, p.world
	changed := map[ident.Key]bool{}
	for _, m := range messages {
		seq++
		change, _, err := p.fold.Apply(events.Record{Seq: seq, Time: time.Now(), Event: m}, nil)
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
	before, differed := p.world.View(p.pin)
	then, differ := after.View(p.pin)
	for _, k := range slices.Concat(differed, differ) {
		changed[k] = before.Served(k) != then.Served(k)
	}
	maps.DeleteFunc(changed, func(_ ident.Key, differs bool) bool { return !differs })
	return p.compared(sorted(changed), before, then), nil
}

// compared returns how objects differ between two worlds, and notes their sums.
func (p *Plan) compared(keys []ident.Key, before, after *world.World) []past.ObjectChange {
	changes := []past.ObjectChange{}
	for _, k := range keys {
		if was, is := valueOf(before.Served(k)), valueOf(after.Served(k)); was != nil || is != nil {
			changes = append(changes, past.CompareValues(k, was, is))
			p.sums = append(p.sums, sumOf(k, was)+" "+sumOf(k, is))
		}
	}
	return changes
}

func sumOf(k ident.Key, v *ident.Value) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%s %x", k.Row(), events.ContentHash(k, *v))
}

func valueOf(o *world.Object) *ident.Value {
	if o == nil {
		return nil
	}
	return &o.Value
}

// Counted says how many objects change.
func (v *View) Counted() string {
	return command.Plural(len(v.Changes), "object changes", "objects change")
}

// Scoped is Counted with the proxies for which they change.
func (p *Plan) Scoped() string {
	if p.For == "" {
		return p.Counted()
	}
	return p.Counted() + " for " + p.For
}

// sorted returns the keys of a map in the order of rows.
func sorted[V any](m map[ident.Key]V) []ident.Key {
	return slices.SortedFunc(maps.Keys(m), func(a, b ident.Key) int { return cmp.Compare(a.Row(), b.Row()) })
}

// act has the flags of a command.
type act struct {
	reason  string
	dryRun  bool
	timeout time.Duration
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

// run plans an act and shows the plan or, unless that was all that was asked for, carries it
// out and waits for a version that shows it.
func (a *act) run(ctx context.Context, e *command.Env, i Intent) error {
	m, err := Open(ctx, e.Target)
	if err != nil {
		return err
	}
	i.Reason = a.reason
	p, err := m.Plan(ctx, i)
	switch {
	case err != nil:
		return err
	case p.Nothing != "":
		e.Line("%s", p.Nothing)
		return nil
	case a.dryRun:
		p.DryRun = true
		e.Print(p.View, func() {
			p.show(e)
			e.Line("\n%s. Nothing was written; without --dry-run it is.", p.Scoped())
		})
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	if err := p.Do(ctx); err != nil {
		return err
	}
	e.Print(p.View, func() { p.printDone(e) })
	return nil
}

// printDone prints the result.
func (p *Plan) printDone(e *command.Env) {
	p.show(e)
	switch p.Intent.Act {
	case ActRelease, ActUnpin, ActPromote, ActAbort:
		e.Line("%s: %s, in version %s.", p.Done, p.Scoped(), p.Version)
		return
	}
	if len(p.Changes) > 0 {
		e.Line("")
	}
	end := ActRelease
	if p.Intent.Act == ActPin {
		end = ActUnpin
	}
	e.Line("%s: %s, in version %s. `meshlog %s %s` ends it.", p.Done, p.Counted(), p.Version, end, p.ID)
}

func (p *Plan) show(e *command.Env) {
	for _, c := range p.Changes {
		e.Line("%s", command.ChangeTitle(c, e.Output))
		for _, l := range command.ChangeLines(c) {
			e.Line("    %s", l)
		}
	}
}

// Command returns the command line that does the same.
func (i Intent) Command() string {
	words := []string{"meshlog", i.Act}
	if i.Act == ActPromote || i.Act == ActAbort {
		words = []string{"meshlog", "rollout", i.Act}
	}
	add := func(flag, value string) {
		if value != "" {
			words = append(words, flag, quoted(value))
		}
	}
	for _, w := range append([]string{i.Version, i.Source, i.ID}, i.Objects...) {
		if w != "" {
			words = append(words, quoted(w))
		}
	}
	add("--namespace", i.Namespace)
	add("--proxies", i.Proxies)
	if i.All {
		words = append(words, "--all")
	}
	if i.NeedsReason() {
		add("--reason", cmp.Or(i.Reason, "..."))
	}
	return strings.Join(words, " ")
}

// NeedsReason reports whether the act needs a reason: what ends an overlay does not.
func (i Intent) NeedsReason() bool {
	return i.Act == ActRollback || i.Act == ActFreeze || i.Act == ActPin || i.Act == ActAbort
}

// quoted returns a word as a shell takes it.
func quoted(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:=,@+", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
