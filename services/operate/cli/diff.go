package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/past"
)

// diffView is what differs between two versions.
type diffView struct {
	From    string         `json:"from"`
	To      string         `json:"to"`
	Proxy   string         `json:"proxy,omitempty"` // whose xDS it is; absent: objects
	Changes []objectChange `json:"changes"`
}

func diffCommand() *cobra.Command {
	var only keyPattern
	var proxy configQuery
	cmd := &cobra.Command{
		Use: "diff VERSION [VERSION]", Short: "Shows in which objects two versions differ", Args: args(1, 2, "VERSION"),
		Long: `Shows in which objects two versions differ, field by field, and which record
made it so. Without the second VERSION, what the first one changed: it is
compared with the one before it.

` + momentForms + `
Any position of the log will do, published or not.

With --proxy or --node, in which xDS resources what this proxy would get differs.

Exit code 0, whether they differ or not.`,
		Example: `  meshlog diff --data data/ latest~1 latest
  meshlog diff --data data/ "14:00" "14:05"
  meshlog diff --data data/ .13 --kind VirtualService
  meshlog diff --data data/ latest --proxy edge-1
  meshlog diff --archive mesh.archive latest~5 latest --node envoy.yaml -o json`,
	}
	t := pastFlags(cmd)
	format := outputFlag(cmd)
	only.flags(cmd)
	proxy.flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		defer func() { err = errors.Join(err, t.close()) }()
		out, err := newOutput(cmd, *format)
		if err != nil {
			return err
		}
		if proxy.given() && !only.isEmpty() {
			return usage("--kind, --name and the like say which objects; with --proxy or --node there are none")
		}
		p, err := t.past(cmd)
		if err != nil {
			return err
		}
		from, to, err := twoMoments(cmd.Context(), p, args, time.Now())
		if err != nil {
			return err
		}
		diff := func() (*diffView, error) { return diffObjects(cmd.Context(), p, from, to, &only) }
		if proxy.given() {
			diff = func() (*diffView, error) { return proxy.diff(cmd, t, p, from, to) }
		}
		v, err := diff()
		if err != nil {
			return err
		}
		return out.print(v, func() error { return showDiff(v, out) })
	}
	return cmd
}

// twoMoments reads VERSION [VERSION]; of one alone, what it changed.
func twoMoments(ctx context.Context, p *past.Past, args []string, now time.Time) (from, to moment, err error) {
	if to, err = findMoment(ctx, p, args[len(args)-1], now); err != nil {
		return from, to, err
	}
	if len(args) == 2 {
		from, err = findMoment(ctx, p, args[0], now)
		return from, to, err
	}
	if to.Manifest == nil {
		return from, to, usage("position %s was not published: give two of them", to.Version)
	}
	for m, err := range p.Versions.History(ctx) {
		if err != nil {
			return from, to, err
		}
		if v := momentOf(m); v.Version.Less(to.Version) {
			return v, to, nil
		}
	}
	return from, to, notFound("version %s is the oldest that is kept: there is none before it to compare it with", to.Version)
}

func diffObjects(ctx context.Context, p *past.Past, from, to moment, only *keyPattern) (*diffView, error) {
	a, err := from.content(ctx, p)
	if err != nil {
		return nil, err
	}
	b, err := to.content(ctx, p)
	if err != nil {
		return nil, err
	}
	v := &diffView{From: from.Version.String(), To: to.Version.String(), Changes: []objectChange{}}
	var rows []string
	for _, c := range past.Diff(a, b) {
		if !only.matches(c.Key) {
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
		return nil, err
	}
	say := newExplainer(p)
	for i, row := range rows {
		c := &v.Changes[i]
		c.Seq, c.Cause = seqs[row], say.cause(ctx, seqs[row])
	}
	return v, nil
}

func showDiff(v *diffView, out *output) error {
	if len(v.Changes) == 0 {
		return out.line("%s and %s do not differ in what was asked for.", v.From, v.To)
	}
	count := map[string]int{}
	for _, c := range v.Changes {
		count[c.Change]++
	}
	err := out.line("%s", out.paint(fmt.Sprintf("from %s to %s: %d changed, %d added, %d removed",
		v.From, v.To, count["changed"], count["added"], count["removed"]), faint))
	if err != nil {
		return err
	}
	return printChanges(out, v.Changes)
}
