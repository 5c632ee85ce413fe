package history

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
)

// diffView is the difference between two versions.
type diffView struct {
	From    string         `json:"from"`
	To      string         `json:"to"`
	Proxy   string         `json:"proxy,omitempty"` // whose xDS differs; absent: objects
	Changes []objectChange `json:"changes"`
}

// Diff returns the command `diff`.
func Diff() *cobra.Command {
	cmd := &cobra.Command{
		Use: "diff VERSION [VERSION]", Short: "Show the objects that differ between two versions", Args: command.Args(1, 2, "VERSION"),
		Long: `Show the objects that differ between two versions, field by field, and the record
that caused each difference. With one VERSION, show what it changed: compare it
with the version before it.

` + command.MomentForms + `
Any position of the log is a VERSION here, published or not.

With --proxy or --node, show the xDS resources of that proxy that differ.

The exit code is 0 whether the versions differ or not.`,
		Example: `  meshlog diff --data data/ latest~1 latest
  meshlog diff --data data/ "14:00" "14:05"
  meshlog diff --data data/ .13 --kind VirtualService
  meshlog diff --data data/ latest --proxy edge-1
  meshlog diff --archive mesh.archive latest~5 latest --node envoy.yaml -o json`,
	}
	var only command.Objects
	var proxy command.ProxyQuery
	only.Flags(cmd)
	cmd.Flags().StringVar(&proxy.ID, "proxy", "", "compare the xDS resources of this `proxy` instead of objects")
	cmd.Flags().StringVar(&proxy.File, "node", "", "compare the xDS resources of a proxy that need not be connected: `file` with Envoy's bootstrap, or its node")
	return command.Past(cmd, func(ctx context.Context, e *command.Env, args []string) error {
		ofProxy := proxy != command.ProxyQuery{}
		if ofProxy && !only.IsEmpty() {
			return command.Usage("--kind, --name and the like select objects; --proxy and --node compare xDS resources: give one of them")
		}
		p, err := e.Past(ctx)
		if err != nil {
			return err
		}
		from, to, err := twoMoments(ctx, p, args)
		if err != nil {
			return err
		}
		v := &diffView{From: from.Version.String(), To: to.Version.String(), Changes: []objectChange{}}
		if ofProxy {
			err = v.proxy(ctx, e.Target, p, from, to, &proxy)
		} else {
			err = v.objects(ctx, p, from, to, &only)
		}
		if err != nil {
			return err
		}
		e.Print(v, func() { v.show(e.Output) })
		return nil
	})
}

// twoMoments reads VERSION [VERSION]; one alone is compared with the version
// before it.
func twoMoments(ctx context.Context, p *past.Past, args []string) (from, to command.Moment, err error) {
	if to, err = command.FindMoment(ctx, p, args[len(args)-1]); err != nil {
		return from, to, err
	}
	if len(args) == 2 {
		from, err = command.FindMoment(ctx, p, args[0])
		return from, to, err
	}
	if to.Manifest == nil {
		return from, to, command.Usage("position %s was not published: give two positions", to.Version)
	}
	for m, err := range p.Versions.History(ctx) {
		if err != nil {
			return from, to, err
		}
		if v := command.MomentOf(m); v.Version.Less(to.Version) {
			return v, to, nil
		}
	}
	return from, to, command.NotFound("version %s is the oldest that is kept: there is none before it to compare it with", to.Version)
}

func (v *diffView) objects(ctx context.Context, p *past.Past, from, to command.Moment, only *command.Objects) error {
	a, err := from.Content(ctx, p)
	if err != nil {
		return err
	}
	b, err := to.Content(ctx, p)
	if err != nil {
		return err
	}
	var rows []string
	for _, c := range past.Diff(a, b) {
		if !only.Match(c.Key) {
			continue
		}
		row := c.Key.Row()
		if c.Overlay != "" {
			row = ident.OverlayRow(c.Overlay)
		}
		v.Changes, rows = append(v.Changes, viewChange(c)), append(rows, row)
	}
	seqs, err := causes(ctx, p, from.Version, to.Version, rows)
	if err != nil {
		return err
	}
	explain := newExplainer(p)
	for i, row := range rows {
		v.Changes[i].Seq, v.Changes[i].Cause = seqs[row], explain.cause(ctx, seqs[row])
	}
	return nil
}

// proxy compares the xDS resources of a proxy.
func (v *diffView) proxy(ctx context.Context, t *command.Target, p *past.Past, from, to command.Moment, q *command.ProxyQuery) error {
	proxy, err := q.Find(ctx, t, p)
	if err != nil {
		return err
	}
	v.Proxy = proxy.ID
	before, err := command.ServedTo(ctx, p, from.Version, proxy)
	if err != nil {
		return err
	}
	after, err := command.ServedTo(ctx, p, to.Version, proxy)
	if err != nil {
		return err
	}
	for t := range ident.ResourceTypes {
		v.Changes = append(v.Changes, diffSets(t, before.Sets[t], after.Sets[t])...)
	}
	return nil
}

// diffSets returns the resources of a type that differ, sorted by name.
func diffSets(t ident.ResourceType, a, b *xds.Set) (changes []objectChange) {
	i, j := 0, 0
	for i < len(a.Resources) || j < len(b.Resources) {
		switch {
		case j == len(b.Resources) || i < len(a.Resources) && a.Resources[i].Name < b.Resources[j].Name:
			changes = append(changes, diffResource(t, a.Resources[i], nil))
			i++
		case i == len(a.Resources) || b.Resources[j].Name < a.Resources[i].Name:
			changes = append(changes, diffResource(t, nil, b.Resources[j]))
			j++
		default:
			if !a.Resources[i].Same(b.Resources[j]) {
				changes = append(changes, diffResource(t, a.Resources[i], b.Resources[j]))
			}
			i, j = i+1, j+1
		}
	}
	return changes
}

// diffResource returns the change from before to after; nil: there is none.
func diffResource(t ident.ResourceType, before, after *xds.Resource) (c objectChange) {
	var docs [2][]byte
	unreadable := ""
	for i, r := range []*xds.Resource{before, after} {
		if r == nil {
			continue
		}
		c.Object = t.Message() + " " + r.Name
		_, doc, err := command.Resource(t, r)
		if docs[i] = doc; err != nil {
			docs[i], unreadable = []byte{}, err.Error()
		}
	}
	var fields []past.FieldChange
	if unreadable == "" && before != nil && after != nil {
		fields = past.DiffDocuments("", docs[0], docs[1])
	}
	c.fill(docs[0], docs[1], fields, unreadable)
	return c
}

func (v *diffView) show(out *command.Output) {
	if len(v.Changes) == 0 {
		out.Line("Nothing differs between %s and %s.", v.From, v.To)
		return
	}
	count := map[string]int{}
	for _, c := range v.Changes {
		count[c.Change]++
	}
	out.Line("%s", out.Paint(fmt.Sprintf("from %s to %s: %d changed, %d added, %d removed",
		v.From, v.To, count["changed"], count["added"], count["removed"]), command.Faint))
	printChanges(out, v.Changes)
}
