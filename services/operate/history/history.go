package history

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
)

// keyEventView is one event in the history of an object.
type keyEventView struct {
	Key      keyView         `json:"key"`
	Seq      uint64          `json:"seq"`
	Time     time.Time       `json:"time"` // the server's
	What     string          `json:"what"` // as in `meshlog log`
	Effect   string          `json:"effect"`
	Applied  string          `json:"applied,omitempty"` // the position from which it had its effect
	Version  string          `json:"version,omitempty"` // the first version that shows it
	Overlay  string          `json:"overlay,omitempty"` // of covered and uncovered
	Actor    string          `json:"actor,omitempty"`
	Origin   string          `json:"origin,omitempty"`
	Fields   []fieldView     `json:"fields,omitempty"`   // that differ from the last good value before
	Spec     json.RawMessage `json:"spec,omitempty"`     // in the record
	Problems []string        `json:"problems,omitempty"` // why it was refused, or warnings
}

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
		known, err := past.Keys(ctx, p)
		if err != nil {
			return err
		}
		keys, err := objects.Find(args[0], known, "`meshlog show latest` lists the objects that are served")
		if err != nil {
			return err
		}
		views, err := keyEvents(ctx, p, keys, e.Progress("read"))
		if err != nil {
			return err
		}
		e.Print(views, func() { showHistory(views, e.Output) })
		return nil
	})
}

// keyEvents returns the histories of all keys in the order of the log.
func keyEvents(ctx context.Context, p *past.Past, keys []ident.Key, read *command.Progress) ([]keyEventView, error) {
	defer read.Done()
	views := []keyEventView{}
	for _, key := range keys {
		all, err := past.Of(ctx, p, key, read.Show)
		if err != nil {
			return nil, err
		}
		for _, e := range all {
			views = append(views, viewKeyEvent(key, e))
		}
	}
	slices.SortStableFunc(views, func(a, b keyEventView) int { return cmp.Compare(a.Seq, b.Seq) })
	return views, nil
}

func viewKeyEvent(key ident.Key, e past.KeyEvent) keyEventView {
	what, _, _, by := summary(e.Record)
	v := keyEventView{
		Key: viewKey(key), Seq: e.Record.Seq, Time: e.Record.Time.UTC(), What: strings.ToLower(what),
		Effect: string(e.Effect), Overlay: e.Overlay, Actor: by, Fields: viewFields(e.Fields),
	}
	if !e.Applied.IsZero() {
		v.Applied = e.Applied.String()
	}
	if !e.Version.IsZero() {
		v.Version = e.Version.String()
	}
	if o, ok := e.Record.Event.Body.(*events.Object); ok {
		v.Origin = o.Origin
		if o.Op == events.Put {
			v.Spec = specJSON(o.Key.Kind, o.Value)
		}
	}
	for _, d := range e.Problems {
		s := d.Reason
		if d.Field != "" {
			s = d.Field + ": " + s
		}
		v.Problems = append(v.Problems, s)
	}
	return v
}

func showHistory(views []keyEventView, out *command.Output) {
	several := slices.ContainsFunc(views, func(v keyEventView) bool { return v.Key != views[0].Key })
	t := command.Rows{Head: []string{"SEQ", "TIME", "WHAT", "EFFECT", "VERSION", "FROM", "BY"}}
	if several {
		t.Head = append(t.Head, "SOURCE")
	}
	for _, v := range views {
		row := []any{v.Seq, command.Clock(v.Time), whatCell(v.What), effectCell(v.Effect), v.Version, cmp.Or(v.Overlay, v.Origin), v.Actor}
		if several {
			row = append(row, v.Key.Source+"/"+v.Key.Instance)
		}
		t.Add(row...)
		for _, line := range append(v.Problems, fieldLines(v.Fields)...) {
			t.Note(line)
		}
	}
	out.Rows(&t)
}

func effectCell(effect string) command.Cell {
	c := command.Cell{Text: effect, Color: command.Faint}
	switch past.Effect(effect) {
	case past.Served:
		c.Color = command.Green
	case past.Gone, past.Refused:
		c.Color = command.Red
	case past.Covered, past.Uncovered, past.Renewed:
		c.Color = command.Yellow
	}
	return c
}
