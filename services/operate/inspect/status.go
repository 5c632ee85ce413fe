package inspect

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/store"
)

// StatusView is a mesh on one page.
type StatusView struct {
	Bus      string         `json:"bus"`
	Leader   string         `json:"leader,omitempty"` // absent: no builder leads
	Standbys int            `json:"standbys"`         // builders that do not lead
	Head     ident.Position `json:"head,omitzero"`
	// Published is when the head was.
	Published   time.Time         `json:"published,omitzero"`
	Sources     int               `json:"sources"`
	Frozen      []string          `json:"frozen,omitempty"`      // sources
	FrozenKinds []frozenKindsView `json:"frozenKinds,omitempty"` // of the other sources
	Frontends   int               `json:"frontends"`
	Behind      []string          `json:"behind,omitempty"` // frontends that serve an older version
	Streams     uint32            `json:"streams"`
	InSync      uint32            `json:"inSync"`    // streams that have applied the head
	Rejecting   int               `json:"rejecting"` // proxies that reject a resource
	Lacking     int               `json:"lacking"`   // proxies that do not get a secret that they ask for
	Identities  identityCounts    `json:"identities"`
	Policies    policyCounts      `json:"policies"`
	Roots       []rootCounts      `json:"roots,omitempty"` // absent: the mesh has no authority
	Held        int               `json:"held"`            // by the guard
	Quarantined int               `json:"quarantined"`
	Words       []command.Word    `json:"words,omitempty"` // rollbacks, freezes and pins that hold
	Rollouts    []command.Rollout `json:"rollouts,omitempty"`
	Errors      int               `json:"errors"` // diagnostics
	Warnings    int               `json:"warnings"`
	Operators   int               `json:"operators"`         // that the MeshPolicy names
	Unknown     string            `json:"unknown,omitempty"` // why log and version chain, and what only they say, are not known
	Wrong       []string          `json:"wrong"`             // what needs attention
}

type frozenKindsView struct {
	Source  string   `json:"source"`
	Kinds   []string `json:"kinds"`
	Objects int      `json:"objects"`
	// Since is when a listing of the source first lacked them.
	Since time.Time `json:"since,omitzero"`
}

// Status returns the command `status`.
func Status() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Show a one-page summary of the mesh", Args: command.Args(0, 0, ""),
		Long: `Show a one-page summary of the mesh: which builder leads, which version is the
newest, the state of the sources, how many proxies have applied the newest
version, how many have a certificate, which security policies hold, and what needs
attention.

A certificate ends soon if less than a quarter of its time is left and its holder has
not renewed it: the connection that shows it began when it should have been renewed.
Policies are AuthorizationPolicies, RequestAuthentications and PeerAuthentications.

Exit code 0: nothing needs attention. 1: something does; the last lines name it.`,
		Example: `  meshlog status --data data/
  meshlog status --bus nats://10.0.0.1:4222 -o json`,
	}
	return command.Live(cmd, func(ctx context.Context, e *command.Env, _ []string) error {
		s, err := e.Sources(ctx)
		var v *StatusView
		switch {
		case err == nil:
			v, err = askStatus(ctx, s)
		case s != nil && len(s.Reports.Builders) > 0: // a builder may say why
			v, err = withoutStreams(s.Reports, err), nil
		}
		if err != nil {
			return err
		}
		nc, err := e.Conn()
		if err != nil {
			return err
		}
		v.Bus = nc.ConnectedUrlRedacted()
		e.Print(v, func() { v.show(time.Now(), e.Output) })
		if len(v.Wrong) > 0 {
			return fmt.Errorf("%s attention", command.Plural(len(v.Wrong), "thing needs", "things need"))
		}
		return nil
	})
}

func askStatus(ctx context.Context, s *command.Sources) (*StatusView, error) {
	proxies, err := s.Fleet.Reports(ctx, bus.Proxies)
	if err != nil {
		return nil, err
	}
	problems, err := s.Fleet.Reports(ctx, bus.Diagnostics)
	if err != nil {
		return nil, err
	}
	return StatusOf(ctx, s, proxies, problems, time.Now())
}

// StatusOf returns what `meshlog status` shows: of proxies, reports with those of frontends
// in full, and of reports with the problems; s.Reports may be either. It asks no process, and reads the last records of the sources from the log.
func StatusOf(ctx context.Context, s *command.Sources, proxies, reports *bus.Reports, now time.Time) (*StatusView, error) {
	v := &StatusView{Wrong: []string{}}
	v.builders(s.Reports)
	// The newest version says what is held back: any client can answer as a builder.
	holds, quarantines, err := command.HeldBack(s.Head.Snapshot)
	if err != nil {
		return nil, err
	}
	v.held(len(holds), len(quarantines))
	if v.Words, err = command.Words(s.Head.Snapshot); err != nil {
		return nil, err
	}
	for _, w := range v.Words {
		v.wrong("%s; `%s` ends it", w, w.End())
	}
	if v.Rollouts, err = command.Rollouts(s.Head.Snapshot, s.Reports.Builders); err != nil {
		return nil, err
	}
	for _, r := range v.Rollouts {
		if r.State == "stopped" {
			v.wrong("rollout %s; `meshlog rollout status` shows it", r)
		}
	}
	bundles, err := command.TrustBundles(s.Head.Snapshot)
	if err != nil {
		return nil, err
	}
	v.roots(bundles)
	v.Published = command.Stamp(command.PublishedAt(s.Head.Manifest))
	views, err := s.Views(ctx)
	if err != nil {
		return nil, err
	}
	v.sources(views, now)
	v.frontends(s.Reports, v.Published.IsZero() || now.Sub(v.Published) < underWay)
	v.rejections(proxies.Frontends)
	v.identities(proxies.Frontends, now)
	problems := slices.Clone(command.Newest(reports.Builders).GetDiagnostics())
	for _, w := range reports.Watchers { // problems that no record on the log has
		problems = append(problems, w.GetDiagnostics()...)
	}
	w, err := s.World()
	if err != nil {
		return nil, err
	}
	v.policies(w, problems)
	if w != nil {
		v.Operators = len(w.Policy().Operators)
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
		v.wrong("%s in the configuration; `meshlog diagnostics` shows them", command.Plural(v.Errors, "error", "errors"))
	}
	for _, p := range s.Reports.Silent {
		v.wrong("%s reported %s and does not answer", strings.Replace(p.GetName(), ".", " ", 1), command.Ago(now.Sub(p.GetHeard().AsTime())))
	}
	for _, cut := range s.Reports.Cut {
		v.wrong("processes are missing here: %s", cut)
	}
	return v, nil
}

// withoutStreams returns what the reports alone say.
func withoutStreams(r *bus.Reports, why error) *StatusView {
	v := &StatusView{Wrong: []string{}, Unknown: why.Error()}
	v.builders(r)
	v.frontends(r, false)
	v.wrong("sources, policies and holds are not known: %v", why)
	return v
}

func (v *StatusView) wrong(format string, args ...any) {
	v.Wrong = append(v.Wrong, fmt.Sprintf(format, args...))
}

func (v *StatusView) builders(r *bus.Reports) {
	b := command.Newest(r.Builders)
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
	v.Head = store.VersionOf(b.GetHead())
	for _, o := range r.Builders {
		if o.GetError() != "" {
			v.wrong("builder %s: %s", o.GetBuilder(), o.GetError())
		}
		if o.GetAway() != nil {
			v.wrong("builder %s is not connected to log and version chain since %s: %s", o.GetBuilder(), command.Clock(o.GetAway().AsTime()), o.GetAwayReason())
		}
	}
	for _, w := range b.GetWarnings() {
		v.wrong("%s", w)
	}
	if len(b.GetWaiting()) > 0 {
		v.wrong("nothing is published: %s", strings.Join(b.GetWaiting(), "; "))
	}
}

// operatorsLine warns of a mesh in which the key of the bus is enough to act.
func operatorsLine(n int) string {
	if n == 0 {
		return "none in the MeshPolicy: what operators append counts without a signature"
	}
	return fmt.Sprintf("%d, who sign", n)
}

func (v *StatusView) held(holds, quarantines int) {
	v.Held, v.Quarantined = holds, quarantines
	if v.Held > 0 {
		v.wrong("the guard holds back %s; `meshlog approve` shows them", command.Plural(v.Held, "loss", "losses"))
	}
	if v.Quarantined > 0 {
		v.wrong("%s in quarantine; `meshlog approve` shows them", command.Plural(v.Quarantined, "resource is", "resources are"))
	}
}

func (v *StatusView) sources(views []command.Source, now time.Time) {
	begun := func(since time.Time) string {
		if since.IsZero() {
			return ""
		}
		return fmt.Sprintf(" since %s (%s)", command.Clock(since), command.Since(since, now))
	}
	for _, s := range views {
		switch {
		case s.State == command.StateGone:
			continue
		case s.Frozen:
			v.Frozen = append(v.Frozen, s.Shard().String())
			v.wrong("%s is %s%s: its objects stay as they are; `meshlog sources` shows more", s.Shard(), s.State, begun(s.FrozenSince))
		case len(s.FrozenKinds) > 0:
			f := frozenKindsView{Source: s.Shard().String(), Since: s.Listed}
			for _, k := range s.FrozenKinds {
				f.Kinds, f.Objects = append(f.Kinds, k.Kind), f.Objects+k.Objects
			}
			v.FrozenKinds = append(v.FrozenKinds, f)
			v.wrong("%s cannot be read for %s%s: %s; `meshlog sources` shows more", f.Source, strings.Join(f.Kinds, ", "), begun(f.Since),
				command.Plural(f.Objects, "object stays as it is", "objects stay as they are"))
		}
		v.Sources++
	}
}

// underWay is how long a version may take to reach all proxies without a
// complaint.
const underWay = 5 * time.Second

func (v *StatusView) frontends(r *bus.Reports, fresh bool) {
	head := command.NewestHead(r)
	v.Frontends = len(r.Frontends)
	if v.Frontends == 0 {
		v.wrong("no frontend answers: proxies keep what they have")
	}
	for _, f := range r.Frontends {
		v.Streams += f.GetStreams()
		v.InSync += command.Applied(f, head)
		switch serving := store.VersionOf(f.GetServing()); {
		case fresh: // the version is under way
		case serving.Less(head):
			v.Behind = append(v.Behind, f.GetFrontend())
			v.wrong("frontend %s serves %s, which is not the newest version", f.GetFrontend(), serving)
		case !f.GetPersisted() && !serving.IsZero():
			v.wrong("frontend %s cannot write its file: it keeps serving, and needs the bus to start", f.GetFrontend())
		}
		if f.GetChainMismatch() != nil {
			v.wrong("frontend %s has a version chain that differs from the bus; the leader begins an epoch, if it can believe that", f.GetFrontend())
		}
		if f.GetAway() != nil {
			v.wrong("frontend %s cannot follow the version chain since %s, and serves what it has: %s", f.GetFrontend(), command.Clock(f.GetAway().AsTime()), f.GetAwayReason())
		}
	}
	if behind := v.Streams - min(v.InSync, v.Streams); behind > 0 && !fresh {
		v.wrong("%s not applied %s; `meshlog proxy-status --stale` lists them", command.Plural(int(behind), "stream has", "streams have"), head)
	}
	slices.Sort(v.Behind)
}

// rejections names the proxies that reject resources, also those for which no quarantine
// is: secrets, above all of files that only the proxy can read, and filters of policies. It
// names those that ask for secrets and do not get them, too.
func (v *StatusView) rejections(frontends []*reportv1.FrontendReport) {
	rejected, lacking := map[string]string{}, map[string]string{} // the first resource, by proxy
	for _, f := range frontends {
		if f.GetLeaving() {
			continue
		}
		for _, p := range f.GetProxies() {
			for _, t := range p.GetTypes() {
				if lacks := slices.Concat(t.GetUnknownSecrets(), t.GetMissingKeys()); len(lacks) > 0 {
					lacking[p.GetId()] = lacks[0]
				}
				names := slices.Concat(t.GetNack().GetResources(), t.GetHeldBack())
				if t.GetNack() == nil && len(names) == 0 {
					continue
				}
				what := command.TypeName(t.GetTypeUrl())
				if len(names) > 0 {
					what += " " + names[0]
				}
				if rejected[p.GetId()] == "" {
					rejected[p.GetId()] = what
				}
			}
		}
	}
	v.Rejecting, v.Lacking = len(rejected), len(lacking)
	v.some(rejected, "proxy rejects resources", "proxies reject resources")
	v.some(lacking, "proxy does not get a secret that it asks for", "proxies do not get a secret that they ask for")
}

// some adds a line about proxies, with a resource of each.
func (v *StatusView) some(of map[string]string, one, many string) {
	if len(of) == 0 {
		return
	}
	var all []string
	for _, id := range slices.Sorted(maps.Keys(of)) {
		all = append(all, fmt.Sprintf("%s (%s)", id, of[id]))
	}
	v.wrong("%s: %s; `meshlog proxy-status --rejected` says why", command.Plural(len(all), one, many), command.Some(all))
}

func (v *StatusView) show(now time.Time, out *command.Output) {
	var t command.Rows
	row := func(name string, ok bool, format string, args ...any) {
		color := ""
		if !ok {
			color = command.Yellow
		}
		t.Fact(name, command.Cell{Text: fmt.Sprintf(format, args...), Color: color})
	}
	and := func(n int, what string) string {
		if n == 0 {
			return ""
		}
		return fmt.Sprintf(", %d %s", n, what)
	}
	row("bus", true, "%s", v.Bus)
	switch {
	case v.Leader == "":
		row("builder", false, "none leads")
	case v.Standbys > 0:
		row("builder", true, "%s leads, %s", v.Leader, command.Plural(v.Standbys, "standby", "standbys"))
	default:
		row("builder", true, "%s leads", v.Leader)
	}
	if v.Head.IsZero() {
		row("version", false, "none yet")
	} else {
		row("version", true, "%s, published %s", v.Head, command.Since(v.Published, now))
	}
	if v.Unknown != "" {
		row("frontends", v.Frontends > 0, "%d", v.Frontends)
		out.Rows(&t)
		out.Notes(v.Wrong)
		return
	}
	row("sources", len(v.Frozen)+len(v.FrozenKinds) == 0, "%d%s%s", v.Sources, and(len(v.Frozen), "frozen"), and(len(v.FrozenKinds), "frozen in part"))
	row("frontends", len(v.Behind) == 0 && v.Frontends > 0, "%d%s", v.Frontends, and(len(v.Behind), "behind"))
	row("proxies", v.InSync >= v.Streams && v.Rejecting == 0, "%d of %s in sync%s", v.InSync, command.Plural(int(v.Streams), "stream", "streams"), and(v.Rejecting, "with rejected resources"))
	row("identities", v.Identities.Ended+v.Identities.EndsSoon == 0, "%s", v.Identities)
	row("policies", len(v.Policies.NotEnforced) == 0, "%s", v.Policies)
	row("roots", true, "%s", rootsLine(v.Roots))
	row("operators", v.Operators > 0, "%s", operatorsLine(v.Operators))
	row("held back", v.Held+v.Quarantined == 0, "%d by the guard, %d in quarantine", v.Held, v.Quarantined)
	for _, r := range v.Rollouts {
		if r.State != "stopped" {
			row("rollout", true, "%s", r)
		}
	}
	row("problems", v.Errors == 0, "%s, %s", command.Plural(v.Errors, "error", "errors"), command.Plural(v.Warnings, "warning", "warnings"))
	out.Rows(&t)
	if len(v.Wrong) == 0 {
		out.Line("\nNothing needs attention.")
	}
	out.Notes(v.Wrong)
}
