package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/builder/ledger"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// contentView is what a version holds.
type contentView struct {
	Version string           `json:"version"`
	Time    *time.Time       `json:"time,omitempty"` // published; absent of a position that was not
	Root    string           `json:"root"`
	Objects []objectStanding `json:"objects"`
	// Overlays are the ids of those that lie over something.
	Overlays []string `json:"overlays,omitempty"`
}

// objectStanding is one object of a version.
type objectStanding struct {
	Object string  `json:"object"`
	Key    keyView `json:"key"`
	// Served says whether it counts: no overlay keeps it away, and no other
	// source's copy wins.
	Served bool `json:"served"`
	// Overlays are the ids of those that lie over it.
	Overlays []string `json:"overlays,omitempty"`
	// Seq is the record that made it so, as far as the versions that are kept
	// say; Cause is what that record says.
	Seq   uint64 `json:"seq,omitempty"`
	Cause string `json:"cause,omitempty"`
	// Of `show VERSION KEY`: what is served and, where that differs, the last
	// good value of its source.
	Value      fieldContent `json:"value,omitempty"`
	Offered    fieldContent `json:"offered,omitempty"`
	Unreadable string       `json:"unreadable,omitempty"` // why this build cannot show it
}

func showCommand() *cobra.Command {
	var only keyPattern
	cmd := &cobra.Command{
		Use: "show VERSION [KEY]", Short: "Shows what a version serves: its objects, or one of them whole", Args: args(1, 2, "VERSION"),
		Long: `Shows the objects of a version, or one of them whole, as it was served then.

` + momentForms + `
Any position of the log will do, published or not.

KEY is KIND/NAMESPACE/NAME, or KIND/NAME for what has no namespace. ` + "`meshlog\nversions VERSION`" + ` shows what the version changed.`,
		Example: `  meshlog show --data data/ latest
  meshlog show --data data/ "14:02" VirtualService/demo/shop
  meshlog show --data data/ latest~3 --kind ServiceEntry
  meshlog show --archive mesh.archive .42 VirtualService/demo/shop > shop.yaml`,
	}
	t := pastFlags(cmd)
	format := outputFlag(cmd)
	only.flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		defer func() { err = errors.Join(err, t.close()) }()
		out, err := newOutput(cmd, *format)
		if err != nil {
			return err
		}
		pattern := &only
		if len(args) == 2 {
			if pattern, err = parseKey(args[1]); err != nil {
				return err
			}
			pattern.sources = append(pattern.sources, only.sources...)
			pattern.instances = only.instances
		}
		p, err := t.past(cmd)
		if err != nil {
			return err
		}
		m, err := findMoment(cmd.Context(), p, args[0], time.Now())
		if err != nil {
			return err
		}
		c, err := openContent(cmd.Context(), p, m)
		if err != nil {
			return err
		}
		if len(args) == 1 {
			v, err := c.list(cmd.Context(), pattern)
			if err != nil {
				return err
			}
			return out.print(v, func() error { return showContent(v, out) })
		}
		v, err := c.one(cmd.Context(), args[1], pattern)
		if err != nil {
			return err
		}
		return out.print(v, func() error { return showObject(v, m, out) })
	}
	return cmd
}

// content is a version that is looked into.
type content struct {
	past   *past.Past
	moment moment
	rows   *store.Snapshot
	world  *world.World
	over   map[ident.Key][]string // ids of the overlays over a key
	ids    []string               // of all overlays
}

func openContent(ctx context.Context, p *past.Past, m moment) (*content, error) {
	c := &content{past: p, moment: m, over: map[ident.Key][]string{}}
	var err error
	if c.rows, err = m.content(ctx, p); err != nil {
		return nil, err
	}
	if c.world, err = ledger.World(c.rows); err != nil {
		return nil, fmt.Errorf("version %s: %w", m.Version, err)
	}
	for row := range c.rows.Rows() {
		_, id, err := ident.ParseRow(row.Key)
		if err != nil || id == "" {
			continue
		}
		c.ids = append(c.ids, id)
		o, err := world.UnmarshalOverlay(id, row.Value)
		if err != nil {
			return nil, fmt.Errorf("version %s: %w", m.Version, err)
		}
		for _, v := range o.Values {
			if v.Resource == nil {
				c.over[v.Key] = append(c.over[v.Key], id)
			}
		}
	}
	return c, nil
}

// standings says how objects stand.
func (c *content) standings(ctx context.Context, keys ...ident.Key) ([]objectStanding, error) {
	rows := make([]string, len(keys))
	for i, k := range keys {
		rows[i] = k.Row()
	}
	seqs, err := causes(ctx, c.past, ident.Position{}, c.moment.Version, rows)
	if err != nil {
		return nil, err
	}
	all := make([]objectStanding, len(keys))
	for i, k := range keys {
		all[i] = objectStanding{Object: k.String(), Key: viewKey(k), Served: c.world.Served(k) != nil, Overlays: c.over[k], Seq: seqs[rows[i]]}
	}
	return all, nil
}

// list is all objects that are meant.
func (c *content) list(ctx context.Context, only *keyPattern) (v *contentView, err error) {
	v = &contentView{Version: c.moment.Version.String(), Root: c.rows.Root().String(), Overlays: c.ids}
	if m := c.moment.Manifest; m != nil {
		v.Time = when(publishedAt(m))
	}
	keys := slices.DeleteFunc(keysIn(c.rows), func(k ident.Key) bool { return !only.matches(k) })
	v.Objects, err = c.standings(ctx, keys...)
	return v, err
}

// one is the object that is meant; of several copies, the one that counts.
func (c *content) one(ctx context.Context, asked string, pattern *keyPattern) (*objectStanding, error) {
	keys, err := pattern.find(asked, keysIn(c.rows), fmt.Sprintf("`meshlog history %s` says whether there ever was", asked))
	if err != nil {
		return nil, fmt.Errorf("version %s: %w", c.moment.Version, err)
	}
	k := keys[0]
	for _, other := range keys {
		if c.world.Served(other) != nil {
			k = other
			break
		}
	}
	all, err := c.standings(ctx, k)
	if err != nil {
		return nil, err
	}
	v := all[0]
	v.Cause = newExplainer(c.past).cause(ctx, v.Seq)
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

func showContent(v *contentView, out *output) error {
	if len(v.Objects) == 0 {
		return out.line("Version %s has no objects that match; without filters, `meshlog show %[1]s` lists all.", v.Version)
	}
	t := table{head: []string{"OBJECT", "SERVED", "SEQ"}}
	for _, o := range v.Objects {
		served := cell{"yes", ""}
		switch {
		case len(o.Overlays) > 0 && o.Served:
			served = cell{"by " + o.Overlays[0], yellow}
		case len(o.Overlays) > 0:
			served = cell{"not: " + o.Overlays[0], yellow}
		case !o.Served:
			served = cell{"no: another copy wins", faint}
		}
		seq := ""
		if o.Seq != 0 {
			seq = fmt.Sprint(o.Seq)
		}
		t.add(o.Object, served, seq)
	}
	return out.table(&t, true)
}

// showObject prints an object as a document that may be applied again, with
// what is to be said about it as comments.
func showObject(v *objectStanding, m moment, out *output) error {
	comments := []string{fmt.Sprintf("%s at version %s", v.Object, m.Version)}
	if v.Cause != "" {
		comments = append(comments, fmt.Sprintf("record %d: %s", v.Seq, v.Cause))
	}
	for _, id := range v.Overlays {
		comments = append(comments, "overlay "+id+" lies over it: this is not what its source offers")
	}
	doc := v.Value
	switch {
	case v.Unreadable != "":
		return out.line("# %s\n# cannot be shown: %s", comments[0], v.Unreadable)
	case !v.Served && v.Offered != nil:
		comments, doc = append(comments, "it is not served"), v.Offered
	case !v.Served:
		comments = append(comments, "it is not served, and its source does not offer it")
	}
	for _, c := range comments {
		if err := out.line("%s", out.paint("# "+c, faint)); err != nil {
			return err
		}
	}
	if doc == nil {
		return nil
	}
	b, err := manifestYAML(v.Key, doc)
	if err == nil {
		_, err = out.w.Write(b)
	}
	return err
}

// manifestYAML is an object as people write it.
func manifestYAML(k keyView, doc json.RawMessage) ([]byte, error) {
	kd, ok := kind.ByName(k.Kind)
	if !ok || kd.Form == kind.Converted {
		return yaml.JSONToYAML(doc)
	}
	version := kd.Versions[0]
	if kd.Group != "" {
		version = kd.Group + "/" + version
	}
	var fields map[string]any
	if err := json.Unmarshal(doc, &fields); err != nil {
		return nil, err
	}
	meta := map[string]any{}
	if kd.Form == kind.Spec {
		fields = map[string]any{"spec": fields}
	} else if was, ok := fields["metadata"].(map[string]any); ok {
		meta = was
	}
	meta["name"] = k.Name
	if k.Namespace != "" {
		meta["namespace"] = k.Namespace
	}
	b, err := yaml.Marshal(map[string]any{"apiVersion": version, "kind": k.Kind, "metadata": meta})
	if err != nil {
		return nil, err
	}
	delete(fields, "metadata")
	rest, err := yaml.Marshal(fields)
	return append(b, rest...), err
}
