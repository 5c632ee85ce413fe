package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/store"
)

// statusView is a mesh on one page.
type statusView struct {
	Bus      string `json:"bus"`
	Leader   string `json:"leader,omitempty"` // absent: nobody leads
	Standbys int    `json:"standbys"`         // builders that do not lead
	Head     string `json:"head,omitempty"`
	// Published is when the head was.
	Published *time.Time `json:"published,omitempty"`
	Sources   int        `json:"sources"`
	Frozen    []string   `json:"frozen,omitempty"` // sources
	// FrozenKinds are those that other sources cannot be read for.
	FrozenKinds []frozenKindsView `json:"frozenKinds,omitempty"`
	Frontends   int               `json:"frontends"`
	Behind      []string          `json:"behind,omitempty"` // frontends that serve something older
	Streams     uint32            `json:"streams"`
	InSync      uint32            `json:"inSync"` // streams that have applied the head
	Held        int               `json:"held"`   // by the guard
	Quarantined int               `json:"quarantined"`
	Errors      int               `json:"errors"` // diagnostics
	Warnings    int               `json:"warnings"`
	// Wrong is what somebody has to see to; empty: nothing.
	Wrong []string `json:"wrong"`
}

type frozenKindsView struct {
	Source  string   `json:"source"`
	Kinds   []string `json:"kinds"`
	Objects int      `json:"objects"`
	// Since is when the source was listed without them.
	Since *time.Time `json:"since,omitempty"`
}

func statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Shows on one page how a mesh is", Args: args(0, 0, ""),
		Long: `Shows on one page how a mesh is: who leads, what is published, who speaks for
sources, how many proxies have applied the newest version, and what somebody has to
see to.

Exit code 0: nothing. 1: something; it stands in the last lines.`,
		Example: `  meshlog status --data data/
  meshlog status --bus nats://10.0.0.1:4222 -o json`,
	}
	t := targetFlags(cmd)
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		defer func() { err = errors.Join(err, t.close()) }()
		out, err := newOutput(cmd, *format)
		if err != nil {
			return err
		}
		s, err := t.openSources(cmd)
		if err != nil {
			return err
		}
		v, err := s.status(cmd.Context(), time.Now())
		if err != nil {
			return err
		}
		v.Bus = t.nc.ConnectedUrlRedacted()
		if err := out.print(v, func() error { return showStatus(v, time.Now(), out) }); err != nil {
			return err
		}
		if len(v.Wrong) > 0 {
			return fmt.Errorf("%s to see to", plural(len(v.Wrong), "thing", "things"))
		}
		return nil
	}
	return cmd
}

// status is what there is to say of everybody who reports.
func (s *sources) status(ctx context.Context, now time.Time) (*statusView, error) {
	v := &statusView{Wrong: []string{}}
	v.builders(s.reports)
	if m := s.head.Manifest; m != nil {
		v.Published = when(publishedAt(m))
	}
	views, err := s.views(ctx)
	if err != nil {
		return nil, err
	}
	v.sources(views, now)
	v.frontends(s.reports, v.Published == nil || now.Sub(*v.Published) < underWay)
	reports, err := s.fleet.Reports(ctx, bus.Diagnostics)
	if err != nil {
		return nil, err
	}
	problems := slices.Clone(newest(reports.Builders).GetDiagnostics())
	for _, w := range reports.Watchers { // what is not on the log
		problems = append(problems, w.GetDiagnostics()...)
	}
	for _, d := range problems {
		switch d.GetSeverity() {
		case snapshotv1.Severity_SEVERITY_ERROR:
			v.Errors++
		case snapshotv1.Severity_SEVERITY_WARNING:
			v.Warnings++
		}
	}
	if v.Errors > 0 {
		v.wrong("%s in what came in; `meshlog diagnostics` shows them", plural(v.Errors, "error", "errors"))
	}
	for _, p := range s.reports.Silent {
		v.wrong("%s was heard %s and does not answer", strings.Replace(p.GetName(), ".", " ", 1), ago(now.Sub(p.GetHeard().AsTime())))
	}
	return v, nil
}

func (v *statusView) wrong(format string, args ...any) {
	v.Wrong = append(v.Wrong, fmt.Sprintf(format, args...))
}

func (v *statusView) builders(r *bus.Reports) {
	b := newest(r.Builders)
	if b == nil {
		v.wrong("no builder answers: nothing new is published")
		return
	}
	v.Standbys = len(r.Builders)
	if b.GetLeader() {
		v.Leader = b.GetBuilder()
		v.Standbys--
	} else {
		v.wrong("no builder leads: nothing new is published")
	}
	if head := store.VersionOf(b.GetHead()); !head.IsZero() {
		v.Head = head.String()
	}
	for _, o := range r.Builders {
		if o.GetError() != "" {
			v.wrong("builder %s: %s", o.GetBuilder(), o.GetError())
		}
	}
	if len(b.GetWaiting()) > 0 {
		v.wrong("nothing is published: %s", strings.Join(b.GetWaiting(), "; "))
	}
	v.Held, v.Quarantined = len(b.GetHolds()), len(b.GetQuarantines())
	if v.Held > 0 {
		v.wrong("the guard holds %s back; `meshlog approve` shows what", plural(v.Held, "loss", "losses"))
	}
	if v.Quarantined > 0 {
		v.wrong("%s in quarantine; `meshlog approve` shows them", plural(v.Quarantined, "resource is", "resources are"))
	}
}

func (v *statusView) sources(views []sourceView, now time.Time) {
	begun := func(since *time.Time) string {
		if since == nil {
			return ""
		}
		return fmt.Sprintf(" since %s (%s)", clock(*since), ago(now.Sub(*since)))
	}
	for _, s := range views {
		switch {
		case s.State == stateGone:
			continue
		case s.Frozen:
			v.Frozen = append(v.Frozen, s.shard().String())
			v.wrong("%s is %s%s: its objects stay as they are; `meshlog sources` says more", s.shard(), s.State, begun(s.FrozenSince))
		case len(s.FrozenKinds) > 0:
			f := frozenKindsView{Source: s.shard().String(), Since: s.Listed}
			for _, k := range s.FrozenKinds {
				f.Kinds, f.Objects = append(f.Kinds, k.Kind), f.Objects+k.Objects
			}
			v.FrozenKinds = append(v.FrozenKinds, f)
			v.wrong("%s cannot be read for %s%s: %s; `meshlog sources` says more", f.Source, strings.Join(f.Kinds, ", "), begun(f.Since),
				plural(f.Objects, "object stays as it is", "objects stay as they are"))
		}
		v.Sources++
	}
}

// underWay is how long nobody wonders that a version is not everywhere.
const underWay = 5 * time.Second

func (v *statusView) frontends(r *bus.Reports, fresh bool) {
	head := newestHead(r)
	v.Frontends = len(r.Frontends)
	if v.Frontends == 0 {
		v.wrong("no frontend answers: proxies keep what they have")
	}
	for _, f := range r.Frontends {
		v.Streams += f.GetStreams()
		for _, a := range f.GetApplied() {
			if at := store.VersionOf(a.GetVersion()); !at.IsZero() && !at.Less(head) {
				v.InSync += a.GetStreams()
			}
		}
		switch serving := store.VersionOf(f.GetServing()); {
		case fresh: // it is on its way
		case serving.Less(head):
			v.Behind = append(v.Behind, f.GetFrontend())
			v.wrong("frontend %s serves %s, which is not the newest", f.GetFrontend(), serving)
		case !f.GetPersisted() && !serving.IsZero():
			v.wrong("frontend %s cannot write its file: it serves on, and starts from the bus", f.GetFrontend())
		}
		if f.GetChainMismatch() != nil {
			v.wrong("frontend %s has another chain of versions than the bus; the leader begins an epoch", f.GetFrontend())
		}
	}
	if behind := v.Streams - min(v.InSync, v.Streams); behind > 0 && !fresh {
		v.wrong("%s not applied %s; `meshlog proxy-status --stale` lists them", plural(int(behind), "stream has", "streams have"), head)
	}
	slices.Sort(v.Behind)
}

func showStatus(v *statusView, now time.Time, out *output) error {
	t := table{head: []string{"", ""}}
	row := func(name string, ok bool, format string, args ...any) {
		color := ""
		if !ok {
			color = yellow
		}
		t.add(cell{name, faint}, cell{fmt.Sprintf(format, args...), color})
	}
	row("bus", true, "%s", v.Bus)
	switch {
	case v.Leader == "":
		row("builder", false, "none leads")
	case v.Standbys > 0:
		row("builder", true, "%s leads, %s", v.Leader, plural(v.Standbys, "stands by", "stand by"))
	default:
		row("builder", true, "%s leads", v.Leader)
	}
	if v.Head == "" {
		row("version", false, "none so far")
	} else {
		row("version", true, "%s, published %s", v.Head, since(v.Published, now))
	}
	row("sources", len(v.Frozen)+len(v.FrozenKinds) == 0, "%d%s%s", v.Sources, besides(len(v.Frozen), "frozen"), besides(len(v.FrozenKinds), "frozen in part"))
	row("frontends", len(v.Behind) == 0 && v.Frontends > 0, "%d%s", v.Frontends, besides(len(v.Behind), "behind"))
	row("proxies", v.InSync >= v.Streams, "%d of %s in sync", v.InSync, plural(int(v.Streams), "stream", "streams"))
	row("held back", v.Held+v.Quarantined == 0, "%d by the guard, %d in quarantine", v.Held, v.Quarantined)
	row("problems", v.Errors == 0, "%s, %s", plural(v.Errors, "error", "errors"), plural(v.Warnings, "warning", "warnings"))
	if err := out.table(&t, false); err != nil {
		return err
	}
	if len(v.Wrong) == 0 {
		return out.line("\nAll is well.")
	}
	return out.line("\n%s", strings.Join(v.Wrong, "\n"))
}

func besides(n int, what string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", %d %s", n, what)
}
