package rollback

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
)

// Pin returns the command `pin`.
func Pin() *cobra.Command {
	cmd := &cobra.Command{
		Use: "pin VERSION --proxies SELECTOR --reason TEXT", Short: "Keep some proxies on the configuration of a version", Args: command.Args(1, 1, "VERSION"),
		Long: `Keep some proxies on the configuration of a version, until ` + "`meshlog unpin`" + ` ends it.
All other proxies go on. Endpoints, workloads, Secrets, trust bundles, key sets,
policies, ReferenceGrants, MeshConfig, MeshPolicy and MeshNetworks are the same for all
proxies.

A SELECTOR has terms with commas between them, and a proxy matches all of them: id=NODE
(or NODE alone), namespace=NAME, cluster=NAME, or LABEL=VALUE. Of two pins that select a
proxy the latest counts. A ServiceEntry whose configuration has changed since is pinned
with the endpoints that it had then.

` + command.MomentForms,
		Example: `  meshlog pin --data data/ latest --proxies namespace=shop,app=cart --reason "sale until Monday"
  meshlog pin --data data/ latest~1 --proxies cluster=cart --reason "compare"`,
	}
	var a act
	proxies := cmd.Flags().String("proxies", "", "the proxies: a `selector` such as namespace=shop,app=cart (required)")
	a.reasonFlag(cmd)
	a.flags(cmd)
	return command.Live(cmd, func(ctx context.Context, e *command.Env, args []string) error {
		if err := a.checkReason(); err != nil {
			return err
		}
		if *proxies == "" {
			return command.Usage("--proxies is missing: say which proxies stay as they are, such as namespace=shop,app=cart")
		}
		if _, err := ident.ParseProxies(*proxies); err != nil {
			return command.Usage("--proxies: %w", err)
		}
		return a.run(ctx, e, Intent{Act: ActPin, Version: args[0], Proxies: *proxies})
	})
}

// keep plans a pin.
func (p *Plan) keep(ctx context.Context) error {
	proxies, err := ident.ParseProxies(p.Intent.Proxies)
	if err != nil {
		return command.Usage("proxies: %w", err)
	}
	target, err := p.moment(ctx)
	if err != nil {
		return err
	}
	p.pin = "pin-" + strings.ToLower(rand.Text()[:10])
	n := &pin{Plan: p, target: *target, proxies: proxies}
	values, err := n.values(ctx)
	if err != nil {
		return err
	}
	messages, err := n.messages(values)
	if err != nil {
		return err
	}
	p.more = func(ctx context.Context) ([]events.Event, error) {
		values, err := n.values(ctx)
		if err != nil || len(values) == 0 {
			return nil, err
		}
		return n.messages(values)
	}
	p.Done = fmt.Sprintf("Pinned %s to %s", proxies, target.to)
	return p.propose(p.pin, messages)
}

// pin keeps proxies on a version.
type pin struct {
	*Plan
	target
	proxies ident.Proxies
}

// messages returns those of a pin with these values.
func (p *pin) messages(values map[ident.Key]ident.OverlayValue) ([]events.Event, error) {
	return p.split(&events.Overlay{ID: p.pin, Kind: ident.Pin, Reason: p.Intent.Reason, Proxies: &p.proxies}, values)
}

// values returns a value for each object that the proxies are served otherwise than it
// was. What a source changes after the pin is on the log, the pin keeps by itself.
func (p *pin) values(ctx context.Context) (map[ident.Key]ident.OverlayValue, error) {
	if err := p.read(ctx); err != nil {
		return nil, err
	}
	if pins := p.fold.Pins(); len(pins) >= world.MaxPins && !slices.ContainsFunc(pins, func(o world.Overlay) bool { return o.ID == p.pin }) {
		return nil, command.Usage("there are %d pins, as many as there may be: `meshlog unpin` lists them", len(pins))
	}
	now, err := configured(p.head.Snapshot)
	if err != nil {
		return nil, err
	}
	view, _ := p.world.View(p.pin)
	values := map[ident.Key]ident.OverlayValue{}
	for _, k := range slices.Concat(p.known, now) {
		kd, ok := kind.ByName(k.Kind)
		before, after := p.was.Copy(k), view.Copy(k)
		if !ok || !kd.Staged() || same(before, after) || before != nil && after != nil && kd.EndpointsOnly(after.Message, before.Message) {
			continue
		}
		v := ident.OverlayValue{Key: k}
		if before != nil {
			v.Value = &before.Value
		}
		values[k] = v
	}
	return values, nil
}

// Unpin returns the command `unpin`.
func Unpin() *cobra.Command {
	cmd := &cobra.Command{
		Use: "unpin [ID]", Short: "Let pinned proxies follow all others again", Args: command.Args(0, 1, ""),
		Long: `Show the pins, or end one of them: its proxies are served what all others are.
--dry-run shows what would change for them.`,
		Example: `  meshlog unpin --data data/
  meshlog unpin --data data/ pin-k2v9x4ab7q`,
	}
	var a act
	a.flags(cmd)
	return command.Live(cmd, func(ctx context.Context, e *command.Env, args []string) error {
		if len(args) == 1 {
			return a.run(ctx, e, Intent{Act: ActUnpin, ID: args[0]})
		}
		all, err := holding(ctx, e)
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(all, func(w command.Word) bool { return !isPin(w) })
		e.Print(all, func() { showPins(all, e.Output) })
		return nil
	})
}

// unpin plans the end of a pin.
func (p *Plan) unpin(ctx context.Context) error {
	p.pin, p.Done = p.Intent.ID, "Unpinned "+p.Intent.ID
	return p.end(ctx, isPin, command.NotFound("%q: no pin with this id holds; `meshlog unpin` lists the ids", p.Intent.ID))
}

func isPin(w command.Word) bool { return w.Kind == past.OverlayKinds[ident.Pin] }

func showPins(all []command.Word, out *command.Output) {
	if len(all) == 0 {
		out.Line("No proxy is pinned.")
		return
	}
	t := command.Rows{Head: []string{"ID", "SINCE", "BY", "PROXIES", "OBJECTS", "REASON"}}
	for _, w := range all {
		t.Add(w.ID, command.Clock(w.Since), w.Actor, w.Proxies, strconv.Itoa(w.Objects), w.Reason)
	}
	out.Rows(&t)
}
