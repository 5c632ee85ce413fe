package rollback

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/command"
)

// Freeze returns the command `freeze`.
func Freeze() *cobra.Command {
	cmd := &cobra.Command{
		Use: "freeze SOURCE/INSTANCE --reason TEXT", Short: "Record the changes of a source without applying them", Args: command.Args(1, 1, "SOURCE/INSTANCE"),
		Long: `Record the changes of a source without applying them, until it is released: all its
objects stay as they are, endpoints included. Proxies go on sending requests to
instances that the source has removed.

What a MeshPolicy forbids is taken from service all the same.`,
		Example: `  meshlog freeze --data data/ consul/dc1 --reason "health checks flap"
  meshlog release --data data/`,
	}
	var a act
	a.reasonFlag(cmd)
	a.flags(cmd)
	return command.Live(cmd, func(ctx context.Context, e *command.Env, args []string) error {
		if err := a.checkReason(); err != nil {
			return err
		}
		return a.run(ctx, e, Intent{Act: ActFreeze, Source: args[0]})
	})
}

// freeze plans a freeze.
func (p *Plan) freeze(ctx context.Context) error {
	source, instance, _ := strings.Cut(p.Intent.Source, "/")
	if source == "" || instance == "" {
		return command.Usage("source %q: want SOURCE/INSTANCE, as `meshlog sources` prints it", p.Intent.Source)
	}
	shard := ident.Shard{Source: source, Instance: instance}
	if err := p.read(ctx); err != nil {
		return err
	}
	if !p.knows(shard) {
		return command.NotFound("source %s: the log has no record of it; `meshlog sources` lists the sources", shard)
	}
	words, err := command.Words(p.head.Snapshot)
	if err != nil {
		return err
	}
	for _, w := range words {
		if w.Kind == "freeze" && w.Scope == shard.String() {
			return command.Usage("source %s: %s froze it already, with %s", shard, w.Actor, w.ID)
		}
	}
	p.Done = fmt.Sprintf("Froze %s", shard)
	id := "freeze-" + strings.ToLower(rand.Text()[:10])
	message := command.NewEvent("freeze", &events.Overlay{ID: id, Kind: ident.Freeze, Reason: p.Intent.Reason, Scope: &ident.Scope{Shard: shard}})
	return p.propose(id, []events.Event{message})
}

// knows reports whether the log has records of a source.
func (p *Plan) knows(shard ident.Shard) bool {
	for _, s := range p.fold.Shards() {
		if s.Shard == shard {
			return true
		}
	}
	return false
}
