package history

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/builder/ledger"
	"meshlog.dev/services/mesh/document"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// contentView is the content of a version.
type contentView struct {
	Version  ident.Position `json:"version"`
	Time     time.Time      `json:"time,omitzero"` // published; absent for a position that was not
	Root     string         `json:"root"`
	Objects  []Standing     `json:"objects"`
	Overlays []string       `json:"overlays,omitempty"` // ids
}

// Standing is one object of a version.
type Standing struct {
	Object string   `json:"object"`
	Key    past.Key `json:"key"`
	// Served says that no overlay hides it, and no copy of another source takes
	// precedence.
	Served   bool     `json:"served"`
	Overlays []string `json:"overlays,omitempty"` // ids of the overlays over it
	// Seq is the record that made it so, as far as the kept versions show; Cause
	// is that record in words.
	Seq   uint64 `json:"seq,omitempty"`
	Cause string `json:"cause,omitempty"`
	// Value and Offered are of `show VERSION KEY`: the served value and, if it
	// differs, the last good value of the source.
	Value      json.RawMessage `json:"value,omitempty"`
	Offered    json.RawMessage `json:"offered,omitempty"`
	Unreadable string          `json:"unreadable,omitempty"` // why this build cannot show it
}

// Show returns the command `show`.
func Show() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show VERSION [KEY]", Short: "Show the objects of a version, or one of them in full", Args: command.Args(1, 2, "VERSION"),
		Long: `Show the objects of a version, or one of them in full, as it was served then.

` + command.MomentForms + `
Any position of the log is a VERSION here, published or not.

KEY is KIND/NAMESPACE/NAME, or KIND/NAME for an object without a namespace.
` + "`meshlog versions VERSION`" + ` shows what the version changed.`,
		Example: `  meshlog show --data data/ latest
  meshlog show --data data/ "14:02" VirtualService/demo/shop
  meshlog show --data data/ latest~3 --kind ServiceEntry
  meshlog show --archive mesh.archive .42 VirtualService/demo/shop > shop.yaml`,
	}
	var only command.Objects
	only.Flags(cmd)
	return command.Past(cmd, func(ctx context.Context, e *command.Env, args []string) (err error) {
		objects := &only
		if len(args) == 2 {
			if objects, err = command.ParseKey(args[1], only); err != nil {
				return err
			}
		}
		p, err := e.Past(ctx)
		if err != nil {
			return err
		}
		m, err := command.FindMoment(ctx, p, args[0])
		if err != nil {
			return err
		}
		c, err := openContent(ctx, p, m)
		if err != nil {
			return err
		}
		if len(args) == 1 {
			v, err := c.list(ctx, objects)
			if err != nil {
				return err
			}
			e.Print(v, func() { v.show(e.Output) })
			return nil
		}
		v, err := c.one(ctx, args[1], objects)
		if err != nil {
			return err
		}
		e.Print(v, func() { err = v.show(m.Version, e.Output) })
		return err
	})
}

// content is the content of a moment.
type content struct {
	past   *past.Past
	moment command.Moment
	rows   *store.Snapshot
	world  *world.World
	over   map[ident.Key][]string // the objects, with the ids of the overlays over each
	ids    []string               // of all overlays
}

func openContent(ctx context.Context, p *past.Past, m command.Moment) (*content, error) {
	c := &content{past: p, moment: m}
	var err error
	if c.rows, err = m.Content(ctx, p); err != nil {
		return nil, err
	}
	if c.world, err = ledger.World(c.rows); err != nil {
		return nil, fmt.Errorf("version %s: %w", m.Version, err)
	}
	if c.over, c.ids, err = past.Layers(c.rows); err != nil {
		return nil, fmt.Errorf("version %s: %w", m.Version, err)
	}
	return c, nil
}

func (c *content) keys() []ident.Key { return slices.Collect(maps.Keys(c.over)) }

// standings returns whether objects are served, the overlays over them, and the
// records that they come from.
func (c *content) standings(ctx context.Context, keys ...ident.Key) ([]Standing, error) {
	rows := make([]string, len(keys))
	for i, k := range keys {
		rows[i] = k.Row()
	}
	seqs, err := past.Causes(ctx, c.past, ident.Position{}, c.moment.Version, rows)
	if err != nil {
		return nil, err
	}
	all := make([]Standing, len(keys))
	for i, k := range keys {
		all[i] = Standing{Object: k.String(), Key: past.Key(k), Served: c.world.Served(k) != nil, Overlays: c.over[k], Seq: seqs[rows[i]]}
	}
	return all, nil
}

// list returns the selected objects.
func (c *content) list(ctx context.Context, only *command.Objects) (v *contentView, err error) {
	v = &contentView{Version: c.moment.Version, Root: c.rows.Root().String(), Overlays: c.ids}
	v.Time = command.Stamp(command.PublishedAt(c.moment.Manifest))
	v.Objects, err = c.standings(ctx, only.Select(c.keys())...)
	return v, err
}

// one returns the selected object; of several copies, the served one.
func (c *content) one(ctx context.Context, asked string, only *command.Objects) (*Standing, error) {
	keys, err := only.Find(asked, c.keys(), fmt.Sprintf("`meshlog history %s` shows whether it ever existed", asked))
	if err != nil {
		return nil, fmt.Errorf("version %s: %w", c.moment.Version, err)
	}
	k := keys[max(0, slices.IndexFunc(keys, func(k ident.Key) bool { return c.world.Served(k) != nil }))]
	all, err := c.standings(ctx, k)
	if err != nil {
		return nil, err
	}
	v := all[0]
	v.Cause = explainer(ctx, c.past)(v.Seq)
	if o := c.world.Served(k); o != nil {
		v.Value, err = past.Document(k.Kind, o.Value)
	}
	if b, ok := c.rows.Get(k.Row()); ok && (len(v.Overlays) > 0 || !v.Served) && err == nil {
		var good ident.Value
		if good, err = world.UnmarshalValue(b); err == nil {
			v.Offered, err = past.Document(k.Kind, good)
		}
	}
	if err != nil {
		v.Unreadable = err.Error()
	}
	return &v, nil
}

func (v *contentView) show(out *command.Output) {
	if len(v.Objects) == 0 {
		out.Line("No object of version %s matches; without filters, `meshlog show %[1]s` lists all.", v.Version)
		return
	}
	t := command.Rows{Head: []string{"OBJECT", "SERVED", "SEQ"}}
	for _, o := range v.Objects {
		served := command.Cell{Text: "yes"}
		switch {
		case len(o.Overlays) > 0 && o.Served:
			served = command.Cell{Text: "by " + o.Overlays[0], Color: command.Yellow}
		case len(o.Overlays) > 0:
			served = command.Cell{Text: "not: " + o.Overlays[0], Color: command.Yellow}
		case !o.Served:
			served = command.Cell{Text: "no: another copy is", Color: command.Faint}
		}
		seq := ""
		if o.Seq != 0 {
			seq = fmt.Sprint(o.Seq)
		}
		t.Add(o.Object, served, seq)
	}
	out.Rows(&t)
}

// show prints an object as a document that can be applied again, with comments.
func (v *Standing) show(at ident.Position, out *command.Output) error {
	comments := []string{fmt.Sprintf("%s at version %s", v.Object, at)}
	if v.Cause != "" {
		comments = append(comments, fmt.Sprintf("record %d: %s", v.Seq, v.Cause))
	}
	for _, id := range v.Overlays {
		comments = append(comments, "overlay "+id+" covers it: its source has another value")
	}
	doc := v.Value
	switch {
	case v.Unreadable != "":
		comments, doc = []string{comments[0], "cannot be shown: " + v.Unreadable}, nil
	case !v.Served && v.Offered != nil:
		comments, doc = append(comments, "it is not served"), v.Offered
	case !v.Served:
		comments = append(comments, "it is not served, and its source does not have it")
	}
	for _, c := range comments {
		out.Line("%s", out.Paint("# "+c, command.Faint))
	}
	if doc == nil {
		return nil
	}
	b, err := documentYAML(v.Key, doc)
	fmt.Fprintf(out, "%s", b)
	return err
}

// documentYAML returns an object in the form of a configuration file.
func documentYAML(k past.Key, doc json.RawMessage) ([]byte, error) {
	kd, ok := kind.ByName(k.Kind)
	if !ok || kd.Form == kind.Converted || kd.Form == kind.Produced {
		return yaml.JSONToYAML(doc)
	}
	fields, err := document.Fields(kd, k.Namespace, k.Name, doc)
	if err != nil {
		return nil, err
	}
	return yaml.Marshal(fields)
}
