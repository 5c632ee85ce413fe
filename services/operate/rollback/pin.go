package rollback

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/builder/ledger"
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
policies, MeshConfig, MeshPolicy and MeshNetworks are the same for all proxies.

A SELECTOR has terms with commas between them, and a proxy matches all of them: id=NODE
(or NODE alone), namespace=NAME, cluster=NAME, or LABEL=VALUE. Of two pins that select a
proxy the latest counts. A ServiceEntry whose configuration has changed since is pinned
with the endpoints that it had then.

` + command.MomentForms,
		Example: `  meshlog pin --data data/ latest --proxies namespace=shop,app=cart --reason "sale until Monday"
  meshlog pin --data data/ latest~1 --proxies cluster=cart --reason "compare"`,
	}
	p := &pin{act: &act{}}
	proxies := cmd.Flags().String("proxies", "", "the proxies: a `selector` such as namespace=shop,app=cart (required)")
	p.reasonFlag(cmd)
	p.flags(cmd)
	return command.Live(cmd, func(ctx context.Context, e *command.Env, args []string) error {
		if err := p.checkReason(); err != nil {
			return err
		}
		if *proxies == "" {
			return command.Usage("--proxies is missing: say which proxies stay as they are, such as namespace=shop,app=cart")
		}
		var err error
		if p.proxies, err = ident.ParseProxies(*proxies); err != nil {
			return command.Usage("--proxies: %w", err)
		}
		if err := p.open(ctx, e); err != nil {
			return err
		}
		target, err := command.FindMoment(ctx, p.past, args[0])
		if err != nil {
			return err
		}
		content, err := target.Content(ctx, p.past)
		if err != nil {
			return err
		}
		p.to = target.Version
		if p.was, err = ledger.World(content); err != nil {
			return err
		}
		if p.known, err = configured(content); err != nil {
			return err
		}
		return p.run(ctx)
	})
}

// pin keeps proxies on a version.
type pin struct {
	*act
	proxies ident.Proxies
	to      ident.Position
	was     *world.World // the world at to
	known   []ident.Key  // the configuration at to
}

func (p *pin) run(ctx context.Context) error {
	p.act.pin = "pin-" + strings.ToLower(rand.Text()[:10])
	for n := range attempts {
		values, err := p.values(ctx)
		if err != nil {
			return err
		}
		if n > 0 && len(values) == 0 {
			return p.done("Pinned %s to %s", p.proxies, p.to)
		}
		messages, err := split(&events.Overlay{ID: p.act.pin, Kind: ident.Pin, Reason: p.reason, Proxies: &p.proxies}, values)
		if err != nil {
			return err
		}
		if finished, err := p.do(ctx, p.act.pin, messages); finished || err != nil {
			return err
		}
	}
	return errors.New("pinned, but not all objects are as they were: sources changed them, or a MeshPolicy forbids what they were; `meshlog status` shows the pin")
}

// values returns a value for each object that the proxies are served otherwise than it
// was. What a source changes after the pin is on the log, the pin keeps by itself.
func (p *pin) values(ctx context.Context) (map[ident.Key]ident.OverlayValue, error) {
	if err := p.read(ctx); err != nil {
		return nil, err
	}
	if pins := p.fold.Pins(); len(pins) >= world.MaxPins && !slices.ContainsFunc(pins, func(o world.Overlay) bool { return o.ID == p.act.pin }) {
		return nil, command.Usage("there are %d pins, as many as there may be: `meshlog unpin` lists them", len(pins))
	}
	now, err := configured(p.head.Snapshot)
	if err != nil {
		return nil, err
	}
	view, _ := p.world.View(p.act.pin)
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
		if err := a.open(ctx, e); err != nil {
			return err
		}
		if err := a.read(ctx); err != nil {
			return err
		}
		all, err := command.Words(a.head.Snapshot)
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(all, func(w command.Word) bool { return !isPin(w) })
		if len(args) == 0 {
			e.Print(all, func() { showPins(all, e.Output) })
			return nil
		}
		a.pin = args[0]
		if !slices.ContainsFunc(all, func(w command.Word) bool { return w.ID == a.pin }) {
			return command.NotFound("%q: no pin with this id holds; `meshlog unpin` lists the ids", a.pin)
		}
		return a.end(ctx, "unpin", "Unpinned", a.pin)
	})
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
