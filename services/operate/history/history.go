package history

import (
	"cmp"
	"context"
	"slices"

	"github.com/spf13/cobra"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
)

// History returns the command `history`.
func History() *cobra.Command {
	cmd := &cobra.Command{
		Use: "history KEY", Short: "Show every record about an object, and its effect", Args: command.Args(1, 1, "KEY"),
		Long: `Show every record about an object, as far as the log goes back, and its effect:

  served      the record's value is served, from VERSION on
  gone        the object was removed, and is not served from VERSION on
  refused     the value is invalid: the last good value stays
  unchanged   the value equals the one before
  waiting     the rest of its listing or batch has not arrived
  ignored     the record has no effect: its session had ended
  covered     an overlay covers the object: a hold, a rollback
  uncovered   that overlay was removed
  renewed     a new epoch or another build changed the value

KEY is KIND/NAMESPACE/NAME, or KIND/NAME for an object without a namespace. If
several sources have the object, all are shown; --source selects one.`,
		Example: `  meshlog history --data data/ VirtualService/demo/shop
  meshlog history --data data/ MeshPolicy/default
  meshlog history --archive mesh.archive Service/shop/cart --source kubernetes/eu -o json`,
	}
	var only command.Objects
	only.SourceFlags(cmd)
	return command.Past(cmd, func(ctx context.Context, e *command.Env, args []string) error {
		objects, err := command.ParseKey(args[0], only)
		if err != nil {
			return err
		}
		p, err := e.Past(ctx)
		if err != nil {
			return err
		}
		if err := p.HasLog(); err != nil {
			return err
		}
		all, err := ofNamed(ctx, e, p, objects)
		if err == nil && len(all) == 0 {
			all, err = ofAny(ctx, e, p, args[0], objects)
		}
		if err != nil {
			return err
		}
		e.Print(all, func() { showHistory(all, e.Output) })
		return nil
	})
}

// ofNamed returns the history of an object of the sources that the newest version knows, if its
// name is given in full. It need not read all names on the log.
func ofNamed(ctx context.Context, e *command.Env, p *past.Past, o *command.Objects) ([]*past.KeyEvent, error) {
	kd, ok := kind.ByName(o.Kinds[0])
	if !ok || kd.Namespaced != (len(o.Namespaces) == 1) {
		return nil, nil
	}
	shards, err := past.Shards(ctx, p)
	if err != nil {
		return nil, err
	}
	var keys []ident.Key
	for _, s := range shards {
		k := ident.Key{Source: s.Source, Instance: s.Instance, Kind: kd.Name, Name: o.Names[0]}
		if kd.Namespaced {
			k.Namespace = o.Namespaces[0]
		}
		if o.Match(k) {
			keys = append(keys, k)
		}
	}
	return historyOf(ctx, e, p, keys)
}

// ofAny returns the history of an object of any source that was ever on the log.
func ofAny(ctx context.Context, e *command.Env, p *past.Past, asked string, o *command.Objects) ([]*past.KeyEvent, error) {
	known, err := past.Keys(ctx, p)
	if err != nil {
		return nil, err
	}
	keys, err := o.Find(asked, known, "`meshlog show latest` lists the objects that are served")
	if err != nil {
		return nil, err
	}
	return historyOf(ctx, e, p, keys)
}

func historyOf(ctx context.Context, e *command.Env, p *past.Past, keys []ident.Key) ([]*past.KeyEvent, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	read := e.Progress("read")
	defer read.Done()
	return past.Of(ctx, p, keys, read.Show)
}

func showHistory(all []*past.KeyEvent, out *command.Output) {
	several := slices.ContainsFunc(all, func(e *past.KeyEvent) bool { return e.Key != all[0].Key })
	t := command.Rows{Head: []string{"SEQ", "TIME", "WHAT", "EFFECT", "VERSION", "FROM", "BY"}}
	if several {
		t.Head = append(t.Head, "SOURCE")
	}
	for _, e := range all {
		row := []any{e.Seq, e.Time, whatCell(e.What), effectCell(e.Effect), e.Version, cmp.Or(e.Overlay, e.Origin), past.Author(e.Actor, fold.Verdict{Operator: e.Operator, Void: e.Void})}
		if several {
			row = append(row, e.Key.Source+"/"+e.Key.Instance)
		}
		t.Add(row...)
		for _, line := range append(e.Problems, command.FieldLines(e.Fields)...) {
			t.Note(line)
		}
	}
	out.Rows(&t)
}

func effectCell(effect past.Effect) command.Cell {
	c := command.Cell{Text: string(effect), Color: command.Faint}
	switch effect {
	case past.Served:
		c.Color = command.Green
	case past.Gone, past.Refused:
		c.Color = command.Red
	case past.Covered, past.Uncovered, past.Renewed:
		c.Color = command.Yellow
	}
	return c
}
