package cli

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/past"
)

// keyEventView is one thing that happened to an object.
type keyEventView struct {
	Key      keyView      `json:"key"`
	Seq      uint64       `json:"seq"`
	Time     time.Time    `json:"time"` // the server's
	What     string       `json:"what"` // as in `meshlog log`
	Effect   string       `json:"effect"`
	Applied  string       `json:"applied,omitempty"` // the position from which it counted
	Version  string       `json:"version,omitempty"` // the first one that shows it
	Overlay  string       `json:"overlay,omitempty"` // of covered and uncovered
	Actor    string       `json:"actor,omitempty"`
	Origin   string       `json:"origin,omitempty"`
	Fields   []fieldView  `json:"fields,omitempty"`   // that differ from the last good value before
	Spec     fieldContent `json:"spec,omitempty"`     // what the record says
	Problems []string     `json:"problems,omitempty"` // why it was refused, or what is doubtful
}

func historyCommand() *cobra.Command {
	var only keyPattern
	cmd := &cobra.Command{
		Use: "history KEY", Short: "Shows what was ever said about an object, and what came of it", Args: args(1, 1, "KEY"),
		Long: `Shows what was ever said about an object, as far as the log goes back, and what
came of it:

  served      it is what is served, from VERSION on
  gone        it was removed, and is not served from VERSION on
  refused     it is not good: the last good value is served on
  unchanged   it says what was known
  waiting     the rest of its listing or batch has not come
  ignored     it does not count: it came from a session that had ended
  covered     an overlay lies over it: a hold, a rollback
  uncovered   that overlay is gone
  renewed     an epoch or another build began, and left another value

KEY is KIND/NAMESPACE/NAME, or KIND/NAME for what has no namespace. Where several
sources have it, all are shown; --source names one.`,
		Example: `  meshlog history --data data/ VirtualService/demo/shop
  meshlog history --data data/ MeshPolicy/default
  meshlog history --archive mesh.archive Service/shop/cart --source kubernetes/eu -o json`,
	}
	t := pastFlags(cmd)
	format := outputFlag(cmd)
	only.sourceFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		defer func() { err = errors.Join(err, t.close()) }()
		out, err := newOutput(cmd, *format)
		if err != nil {
			return err
		}
		pattern, err := parseKey(args[0])
		if err != nil {
			return err
		}
		pattern.sources = append(pattern.sources, only.sources...)
		pattern.instances = only.instances
		p, err := t.past(cmd)
		if err != nil {
			return err
		}
		views, err := keyEvents(cmd, p, args[0], pattern)
		if err != nil {
			return err
		}
		return out.print(views, func() error { return showHistory(views, out) })
	}
	return cmd
}

// keyEvents are the histories of all objects that are meant, in one.
func keyEvents(cmd *cobra.Command, p *past.Past, asked string, pattern *keyPattern) ([]keyEventView, error) {
	ctx := cmd.Context()
	known, err := past.Keys(ctx, p)
	if err != nil {
		return nil, err
	}
	keys, err := pattern.find(asked, known, "`meshlog show latest` lists those that are served")
	if err != nil {
		return nil, err
	}
	read := progress{w: cmd.ErrOrStderr(), what: "read"}
	defer read.done()
	views := []keyEventView{}
	for _, key := range keys {
		all, err := past.Of(ctx, p, key, read.show)
		if err != nil {
			return nil, err
		}
		for _, e := range all {
			views = append(views, viewKeyEvent(key, e))
		}
	}
	slices.SortStableFunc(views, func(a, b keyEventView) int { return int(int64(a.Seq) - int64(b.Seq)) })
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

func showHistory(views []keyEventView, out *output) error {
	several := slices.ContainsFunc(views, func(v keyEventView) bool { return v.Key != views[0].Key })
	t := table{head: []string{"SEQ", "TIME", "WHAT", "EFFECT", "VERSION", "FROM", "BY"}}
	if several {
		t.head = append(t.head, "SOURCE")
	}
	for _, v := range views {
		from := v.Origin
		if v.Overlay != "" {
			from = v.Overlay
		}
		row := []any{v.Seq, clock(v.Time), cell{strings.ToUpper(v.What), colorOf(strings.ToUpper(v.What))}, effectCell(v.Effect), v.Version, from, v.Actor}
		if several {
			row = append(row, v.Key.Source+"/"+v.Key.Instance)
		}
		t.add(row...)
		for _, line := range append(v.Problems, fieldLines(v.Fields)...) {
			t.note(line)
		}
	}
	return out.table(&t, true)
}

func effectCell(effect string) cell {
	switch past.Effect(effect) {
	case past.Served:
		return cell{effect, green}
	case past.Gone, past.Refused:
		return cell{effect, red}
	case past.Covered, past.Uncovered, past.Renewed:
		return cell{effect, yellow}
	}
	return cell{effect, faint}
}
