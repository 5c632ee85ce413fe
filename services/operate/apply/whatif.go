package apply

import (
	"context"

	"github.com/spf13/cobra"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/draft"
	"meshlog.dev/services/operate/past"
)

// Exit codes of what-if.
const (
	exitChanges = 3
	exitHeld    = 4
)

// WhatIf returns the command `what-if`.
func WhatIf() *cobra.Command {
	cmd := &cobra.Command{
		Use: "what-if -f FILE", Short: "Show what a change would do to each class of proxies", Args: command.Args(0, 0, ""),
		Long: `Show what a change of objects would do, and write nothing: which objects would
differ, which problems the mesh would find, which classes of proxies would get other
resources and what would differ in them, whether a proxy would lose a route or its
last endpoint, and whether the guard would hold the change back.

An object takes the place of the one that is served by that name, whatever its
source; one that nobody serves is of --as. --delete removes an object.

The mesh may run, have ended, or lie in an archive: the change is judged on top of the
last record of its log.

Exit code 0: nothing would change. 1: an object is invalid. 3: something would change.
4: the guard would hold it back.`,
		Example: `  meshlog what-if --data data/ -f mesh/
  meshlog what-if --archive mesh.archive -f routes.yaml --markdown
  meshlog what-if --data data/ --delete DestinationRule/shop/cart
  meshlog what-if --data data/ -f routes.yaml --node envoy.yaml -o json`,
	}
	w := whatIf{}
	files := cmd.Flags().StringArrayP("filename", "f", nil, "`file` or directory with the objects, or - for standard input; may be repeated")
	cmd.Flags().StringArrayVar(&w.deletes, "delete", nil, "`object` that goes: KIND/NAMESPACE/NAME; may be repeated")
	as := cmd.Flags().String("as", ident.API+"/default", "`source` of new objects: SOURCE/INSTANCE")
	cmd.Flags().StringVar(&w.proxy.File, "node", "", "only for this proxy: `file` with Envoy's bootstrap, or its node")
	cmd.Flags().StringVar(&w.proxy.ID, "proxy", "", "only for this connected `proxy`")
	cmd.Flags().BoolVar(&w.markdown, "markdown", false, "print a summary in Markdown, for a pull request")
	return command.Past(cmd, func(ctx context.Context, e *command.Env, _ []string) error {
		if len(*files)+len(w.deletes) == 0 {
			return command.Usage("-f and --delete are missing: give the objects that would change")
		}
		var err error
		if w.as, err = draft.ParseShard(*as); err != nil {
			return err
		}
		d := &draft.Documents{Shard: w.as}
		if len(*files) > 0 {
			if err := readFiles(d, *files, e.Stdin); err != nil {
				return err
			}
		}
		if draft.Failed(d.Problems) {
			v := draft.NewView(d.Problems)
			e.Print(v, func() { v.Show(e.Output, w.markdown) })
			return draft.ErrNothing(d.Problems, "judged")
		}
		return w.run(ctx, e, d)
	})
}

// whatIf has the flags of the command.
type whatIf struct {
	deletes  []string
	as       ident.Shard
	proxy    command.ProxyQuery
	markdown bool
}

func (w *whatIf) run(ctx context.Context, e *command.Env, d *draft.Documents) error {
	p, err := e.Past(ctx)
	if err != nil {
		return err
	}
	q := &draft.Question{Documents: d, Deletes: w.deletes, As: w.as}
	if w.proxy != (command.ProxyQuery{}) {
		if q.Proxy, err = w.proxy.Find(ctx, e.Target, p); err != nil {
			return err
		}
	}
	g, err := w.ground(ctx, e, p)
	if err != nil {
		return err
	}
	v, problems, err := g.Ask(q)
	if err == nil && !draft.Failed(problems) && p.Live && q.Proxy == nil {
		err = w.count(ctx, e, v)
	}
	if err != nil {
		return err
	}
	e.Print(v, func() { v.Show(e.Output, w.markdown) })
	switch {
	case draft.Failed(problems):
		return draft.ErrNothing(problems, "judged further")
	case v.Held != "":
		return command.Coded(exitHeld, "the guard would hold the change back")
	case v.Changes():
		return command.Coded(exitChanges, "the mesh would change")
	}
	return nil
}

// ground folds the log to its end.
func (w *whatIf) ground(ctx context.Context, e *command.Env, p *past.Past) (*draft.Ground, error) {
	if p.Log == nil {
		return nil, past.ErrNoLog
	}
	bounds, err := p.Log.Bounds(ctx)
	if err != nil {
		return nil, err
	}
	progress := e.Progress("read")
	f, err := past.Fold(ctx, p, bounds.Last, progress.Show)
	progress.Done()
	if err != nil {
		return nil, err
	}
	return draft.NewGround(f)
}

// count counts the connected proxies.
func (w *whatIf) count(ctx context.Context, e *command.Env, v *draft.View) error {
	r, err := e.Reports(ctx, bus.Proxies)
	if err != nil {
		return err
	}
	e.WarnSilent(r)
	v.Count(r)
	return nil
}
