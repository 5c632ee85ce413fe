package history

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
)

// DiffView is the difference between two versions.
type DiffView struct {
	From    ident.Position `json:"from"`
	To      ident.Position `json:"to"`
	Proxy   string         `json:"proxy,omitempty"` // whose xDS differs; absent: objects
	Changes []causedChange `json:"changes"`
}

// causedChange is a change and the record that caused it, in words.
type causedChange struct {
	past.ObjectChange
	Cause string `json:"cause,omitempty"`
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
	var of command.ProxyQuery
	only.Flags(cmd)
	cmd.Flags().StringVar(&of.ID, "proxy", "", "compare the xDS resources of this `proxy` instead of objects")
	cmd.Flags().StringVar(&of.File, "node", "", "compare the xDS resources of a proxy that need not be connected: `file` with Envoy's bootstrap, or its node")
	return command.Past(cmd, func(ctx context.Context, e *command.Env, args []string) error {
		ofProxy := of != command.ProxyQuery{}
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
		v := &DiffView{From: from.Version, To: to.Version, Changes: []causedChange{}}
		if ofProxy {
			err = v.proxy(ctx, e.Target, p, from, to, &of)
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
	return before(ctx, p, to)
}

// before returns the version before a moment, and the moment.
func before(ctx context.Context, p *past.Past, to command.Moment) (from, _ command.Moment, err error) {
	if to.Manifest == nil {
		return from, to, command.Usage("position %s was not published: give two positions", to.Version)
	}
	from, err = command.FindVersion(ctx, p.Versions, func(m command.Moment) bool { return m.Version.Less(to.Version) })
	if err == nil && from.Manifest == nil {
		err = command.NotFound("version %s is the oldest that is kept: there is none before it to compare it with", to.Version)
	}
	return from, to, err
}

func (v *DiffView) objects(ctx context.Context, p *past.Past, from, to command.Moment, only *command.Objects) error {
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
		if only.Match(ident.Key(c.Key)) {
			v.Changes, rows = append(v.Changes, causedChange{ObjectChange: c}), append(rows, c.Row)
		}
	}
	seqs, err := past.Causes(ctx, p, from.Version, to.Version, rows)
	if err != nil {
		return err
	}
	explain := explainer(ctx, p)
	for i, row := range rows {
		v.Changes[i].Seq, v.Changes[i].Cause = seqs[row], explain(seqs[row])
	}
	return nil
}

// proxy compares the xDS resources of a proxy.
func (v *DiffView) proxy(ctx context.Context, t *command.Target, p *past.Past, from, to command.Moment, q *command.ProxyQuery) error {
	of, err := q.Find(ctx, t, p)
	if err != nil {
		return err
	}
	v.Proxy = of.ID
	return v.resources(ctx, p, from, to, of)
}

func (v *DiffView) resources(ctx context.Context, p *past.Past, from, to command.Moment, of *proxy.Proxy) error {
	before, err := command.ServedTo(ctx, p, from.Version, of)
	if err != nil {
		return err
	}
	after, err := command.ServedTo(ctx, p, to.Version, of)
	if err != nil {
		return err
	}
	for t := range ident.ResourceTypes {
		xds.Compare(before.Sets[t], after.Sets[t], func(was, is *xds.Resource) {
			change, _ := command.CompareResources(t, was, is)
			v.Changes = append(v.Changes, causedChange{ObjectChange: change})
		})
	}
	return nil
}

func (v *DiffView) show(out *command.Output) {
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
	for _, c := range v.Changes {
		line := command.ChangeTitle(c.ObjectChange, out)
		if c.Seq != 0 {
			line += out.Paint(strings.TrimRight(fmt.Sprintf("  #%d %s", c.Seq, c.Cause), " "), command.Faint)
		}
		out.Line("%s", line)
		for _, l := range command.ChangeLines(c.ObjectChange) {
			out.Line("    %s", l)
		}
	}
}
