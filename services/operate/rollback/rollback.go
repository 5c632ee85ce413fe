package rollback

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/builder/ledger"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// Rollback returns the command `rollback`.
func Rollback() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rollback VERSION [OBJECT...] --reason TEXT", Short: "Serve configuration as it was in an earlier version", Args: command.Args(1, 1000, "VERSION"),
		Long: `Serve configuration as it was in an earlier version: all of it, that of a namespace,
or single objects. Endpoints, workloads, nodes, Secrets, trust bundles and key sets
are no configuration: they go on as their sources say.

The rollback holds until it is released. What sources offer meanwhile is recorded,
` + "`meshlog diagnostics`" + ` says so, and it is not served: also new objects, unless the
rollback names single ones.

An OBJECT is KIND/NAMESPACE/NAME, or KIND/NAME.

` + command.MomentForms,
		Example: `  meshlog rollback --data data/ latest~1 --reason "503 after the new timeouts"
  meshlog rollback --data data/ "14:00" -N shop --reason "wrong weights" --dry-run
  meshlog rollback --data data/ .13 VirtualService/shop/cart --reason "typo"`,
	}
	var o act
	namespace := cmd.Flags().StringP("namespace", "N", "", "only the configuration of this `namespace`")
	o.reasonFlag(cmd)
	o.flags(cmd)
	return command.Live(cmd, func(ctx context.Context, e *command.Env, args []string) error {
		if err := o.checkReason(); err != nil {
			return err
		}
		if *namespace != "" && len(args) > 1 {
			return command.Usage("--namespace and OBJECT: give one of them")
		}
		return o.run(ctx, e, Intent{Act: ActRollback, Version: args[0], Namespace: *namespace, Objects: args[1:]})
	})
}

// rollback plans a rollback.
func (p *Plan) rollback(ctx context.Context) error {
	if p.Intent.Namespace != "" && len(p.Intent.Objects) > 0 {
		return command.Usage("a namespace and objects: give one of them")
	}
	target, err := p.moment(ctx)
	if err != nil {
		return err
	}
	r := &rollback{Plan: p, target: *target, scope: ident.Scope{Config: true, Namespace: p.Intent.Namespace}, objects: p.Intent.Objects, values: map[ident.Key]ident.OverlayValue{}}
	r.id = "rollback-" + strings.ToLower(rand.Text()[:10])
	messages, err := r.next(ctx)
	if err != nil {
		return err
	}
	if len(messages) == 0 {
		p.Nothing = fmt.Sprintf("Nothing to roll back: the configuration is as it was in %s.", r.to)
		return nil
	}
	if len(r.objects) == 0 { // nothing can come between single objects and the overlay over them
		p.more = r.next
	}
	p.Done = fmt.Sprintf("Rolled back to %s", r.to)
	return p.propose(r.id, messages)
}

// target is a version that an act goes back to.
type target struct {
	to    ident.Position
	was   *world.World // the world at to
	known []ident.Key  // the configuration at to
}

// moment finds the version of the intent, and writes it in full.
func (p *Plan) moment(ctx context.Context) (*target, error) {
	m, err := command.FindMoment(ctx, p.mesh.past, p.Intent.Version)
	if err != nil {
		return nil, err
	}
	p.Intent.Version = m.Version.String()
	content, err := m.Content(ctx, p.mesh.past)
	if err != nil {
		return nil, err
	}
	t := &target{to: m.Version}
	if t.was, err = ledger.World(content); err != nil {
		return nil, err
	}
	t.known, err = configured(content)
	return t, err
}

// rollback puts configuration back to what it was.
type rollback struct {
	*Plan
	target
	id      string
	scope   ident.Scope
	objects []string                         // names of objects, instead of the scope
	values  map[ident.Key]ident.OverlayValue // that it has so far
}

// next returns the messages that put back what differs; none: nothing does.
func (r *rollback) next(ctx context.Context) ([]events.Event, error) {
	more, err := r.differing(ctx)
	if err != nil || len(more) == 0 {
		return nil, err
	}
	for _, v := range more {
		r.values[v.Key] = v
	}
	return r.split(&events.Overlay{ID: r.id, Kind: ident.Rollback, Reason: r.Intent.Reason, Scope: r.kept()}, r.values)
}

// kept returns what stays as it is beside the objects that are rolled back.
func (r *rollback) kept() *ident.Scope {
	if len(r.objects) > 0 {
		return nil
	}
	return &r.scope
}

// differing returns a value for each object that is served otherwise than it was.
func (r *rollback) differing(ctx context.Context) (values []ident.OverlayValue, err error) {
	if err := r.read(ctx); err != nil {
		return nil, err
	}
	now, err := configured(r.head.Snapshot)
	if err != nil {
		return nil, err
	}
	keys, err := r.selected(slices.Concat(r.known, now))
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		before, after := r.world.Copy(k), r.was.Copy(k)
		if same(before, after) {
			continue
		}
		offered, _ := r.fold.Offered(k)
		v := ident.OverlayValue{Key: k, Base: offered}
		if after != nil {
			v.Value = &after.Value
		}
		values = append(values, v)
	}
	return values, nil
}

// selected returns the keys that the command is about, each once, sorted.
func (r *rollback) selected(keys []ident.Key) ([]ident.Key, error) {
	slices.SortFunc(keys, func(a, b ident.Key) int { return strings.Compare(a.Row(), b.Row()) })
	keys = slices.Compact(keys)
	if len(r.objects) == 0 {
		return slices.DeleteFunc(keys, func(k ident.Key) bool { return !r.scope.Covers(k, true) }), nil
	}
	var found []ident.Key
	for _, name := range r.objects {
		only, err := command.ParseKey(name, command.Objects{})
		if err != nil {
			return nil, err
		}
		if k, ok := kind.ByName(only.Kinds[0]); ok && k.State {
			return nil, command.Usage("object %q: a %s is no configuration, so it cannot be rolled back; `meshlog freeze` keeps what a source offers as it is", name, k.Name)
		}
		some, err := only.Find(name, keys, "`meshlog versions` and `meshlog diff` show what there was")
		if err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	return found, nil
}

func same(a, b *world.Object) bool {
	return a == nil && b == nil || a != nil && b != nil && events.ContentHash(a.Key, a.Value) == events.ContentHash(b.Key, b.Value)
}

// configured returns the keys of the configuration in a content.
func configured(s *store.Snapshot) (keys []ident.Key, err error) {
	objects, _, err := past.Layers(s)
	for k := range objects {
		if kd, ok := kind.ByName(k.Kind); ok && !kd.State {
			keys = append(keys, k)
		}
	}
	return keys, err
}

// maxValues is how many bytes of values a message has: every log takes it.
const maxValues = 256 << 10

// split returns the messages of an overlay with these values.
func (p *Plan) split(o *events.Overlay, values map[ident.Key]ident.OverlayValue) ([]events.Event, error) {
	var parts []*events.Overlay
	size := 0
	for _, k := range sorted(values) {
		v := values[k]
		n := 1 << 10
		if v.Value != nil {
			n += len(v.Value.Bytes)
		}
		if len(parts) == 0 || size+n > maxValues {
			part := *o
			parts, size = append(parts, &part), 0
		}
		last := parts[len(parts)-1]
		last.Values, size = append(last.Values, v), size+n
	}
	if len(parts) == 0 { // a pin may have no values yet
		parts = []*events.Overlay{o}
	}
	if len(parts) > events.MaxBatch {
		return nil, fmt.Errorf("%d objects are too many for one rollback; roll back a namespace after the other, with --namespace", len(values))
	}
	var messages []events.Event
	batch := rand.Text()
	for i, part := range parts {
		if len(parts) > 1 {
			part.Batch = events.Batch{ID: batch, Index: uint32(i), Total: uint32(len(parts))}
		}
		messages = append(messages, command.NewEvent(past.OverlayKinds[o.Kind], part))
	}
	return messages, nil
}
