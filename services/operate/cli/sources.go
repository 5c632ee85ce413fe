package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/events"
	"meshlog.dev/events/natslog"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/builder/ledger"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/store"
	"meshlog.dev/store/natsfeed"
)

// sourceView is a source as it is printed whole.
type sourceView struct {
	Source   string `json:"source"`
	Instance string `json:"instance"`
	State    string `json:"state"` // following, listing, down, silent, gone
	// Frozen says that its objects stay as they are, because it cannot be read
	// or nobody speaks for it.
	Frozen bool `json:"frozen"`
	// FrozenSince is since when, where that is known.
	FrozenSince *time.Time `json:"frozenSince,omitempty"`
	Holder      string     `json:"holder,omitempty"` // who speaks, or spoke last
	Session     string     `json:"session,omitempty"`
	Objects     int        `json:"objects"`
	Pending     uint64     `json:"pending,omitempty"` // changes that are not on the log yet
	// Synced says that a listing was complete in this epoch.
	Synced   bool     `json:"synced"`
	Partial  bool     `json:"partial,omitempty"`  // something of it could not be read
	Required bool     `json:"required,omitempty"` // nothing is published before it is synced
	Standbys []string `json:"standbys,omitempty"`
	// FrozenKinds are kinds that it could not be read for when it was listed
	// last: their objects stay as they are.
	FrozenKinds []frozenKindView `json:"frozenKinds,omitempty"`

	Listed  *time.Time `json:"listed,omitempty"`  // when its listing was whole on the log
	Changed *time.Time `json:"changed,omitempty"` // when something changed last
	Heard   *time.Time `json:"heard,omitempty"`   // when something was last said for it on the log

	Problems []diagnosticView `json:"problems,omitempty"`
}

type frozenKindView struct {
	Kind    string `json:"kind"`
	Objects int    `json:"objects"`
}

func (v *sourceView) shard() ident.Shard {
	return ident.Shard{Source: v.Source, Instance: v.Instance}
}

// speaks says whether a watcher reports that it speaks for it.
func (v *sourceView) speaks() bool { return v.State != stateSilent && v.State != stateGone }

// States of a source: a watcher reports the first, the others are of one that
// no watcher speaks for.
const (
	stateDown   = "down"
	stateSilent = "silent"
	stateGone   = "gone" // and nothing of it is left
)

func sourcesCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "sources", Short: "Shows each source, and who speaks for it", Args: args(0, 0, ""),
		Long: `Shows each source: who watches it, what state it is in, and when it was last
listed, changed and heard.

  FOLLOWING  its changes are on the log as they come
  LISTING    it is being listed; nothing is removed before that is complete
  DOWN       it cannot be read: its objects stay as they are (frozen)
  SILENT     no watcher speaks for it: its objects stay as they are (frozen)
  GONE       it was removed, and no watcher speaks for it; --all shows those

Where a source cannot be read for some kinds of objects (their CRD is gone, or a
permission is missing), only objects of these kinds are frozen: SYNCED says how
many kinds, the lines below the table which.

Nothing is ever removed because a source is silent or a kind is frozen;
` + "`meshlog sources remove`" + ` does that.`,
		Example: `  meshlog sources --data data/
  meshlog sources --data data/ -o json
  meshlog sources remove --data data/ file/old        # shows what would go
  meshlog sources remove --data data/ file/old --yes`,
	}
	t := targetFlags(cmd)
	format := outputFlag(cmd)
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also sources that are gone")
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
		warnSilent(cmd.ErrOrStderr(), s.reports.Silent, time.Now())
		views, err := s.views(cmd.Context())
		if err != nil {
			return err
		}
		if !all {
			views = slices.DeleteFunc(views, func(v sourceView) bool { return v.State == stateGone })
		}
		return out.print(views, func() error { return showSources(views, time.Now(), out) })
	}
	cmd.AddCommand(sourcesRemoveCommand())
	return cmd
}

// sources is what there is to be known of them, and from where.
type sources struct {
	log   *natslog.Log
	chain *natsfeed.Feed
	fleet *bus.Fleet

	reports *bus.Reports
	head    store.Stored // the newest version; zero: nothing was published yet
}

// openSources asks the fleet, and reads the head of the chain.
func (t *target) openSources(cmd *cobra.Command) (*sources, error) {
	ctx := cmd.Context()
	nc, err := t.connect()
	if err != nil {
		return nil, err
	}
	s := &sources{fleet: t.fleet(nc)}
	if s.log, err = t.log(ctx, nc); err != nil {
		return nil, err
	}
	if s.chain, err = t.chain(ctx, nc); err != nil {
		return nil, err
	}
	if s.reports, err = s.fleet.Reports(ctx, bus.Summary); err != nil {
		return nil, err
	}
	for m, err := range s.chain.History(ctx) {
		if err != nil {
			return nil, err
		}
		s.head, err = s.chain.Fetch(ctx, store.VersionOf(m.GetVersion()))
		return s, err
	}
	return s, nil
}

// policy is that of the newest version.
func (s *sources) policy() (world.Policy, error) {
	if s.head.Snapshot == nil {
		return world.DefaultPolicy(), nil
	}
	w, err := ledger.World(s.head.Snapshot)
	if err != nil {
		return world.Policy{}, err
	}
	return w.Policy(), nil
}

// objects are what the newest version has of a source, sorted.
func (s *sources) objects(of ident.Shard) []ident.Key {
	if s.head.Snapshot == nil {
		return nil
	}
	var keys []ident.Key
	for row := range s.head.Snapshot.Rows() {
		if k, overlay, err := ident.ParseRow(row.Key); err == nil && overlay == "" && k.Shard() == of {
			keys = append(keys, k)
		}
	}
	return keys
}

// views are all sources that the head knows or a watcher reports, sorted.
func (s *sources) views(ctx context.Context) ([]sourceView, error) {
	byShard := map[ident.Shard]*sourceView{}
	of := func(source, instance string) *sourceView {
		shard := ident.Shard{Source: source, Instance: instance}
		if byShard[shard] == nil {
			byShard[shard] = &sourceView{Source: source, Instance: instance, State: stateSilent}
		}
		return byShard[shard]
	}
	for _, m := range s.head.Manifest.GetWatermark() {
		v := of(m.GetSource(), m.GetInstance())
		v.Synced, v.Partial = m.GetSynced(), m.GetPartial()
	}
	for _, w := range s.reports.Watchers {
		of(w.GetSource(), w.GetInstance()).hear(w)
	}
	for _, k := range newest(s.reports.Builders).GetFrozen() {
		v := of(k.GetSource(), k.GetInstance())
		v.FrozenKinds = append(v.FrozenKinds, frozenKindView{k.GetKind(), int(k.GetKeys())})
	}
	policy, err := s.policy()
	if err != nil {
		return nil, err
	}
	for _, r := range policy.Required {
		of(r.Source, r.Instance).Required = true
	}
	views := []sourceView{}
	for _, v := range byShard {
		if err := s.lastWord(ctx, v); err != nil {
			return nil, err
		}
		if !v.speaks() {
			if v.Objects = len(s.objects(v.shard())); v.Objects == 0 && len(v.Standbys) == 0 {
				v.State = stateGone
			}
		}
		v.freeze()
		if v.Frozen && v.Objects == 0 { // its watcher has not listed since it was started
			v.Objects = len(s.objects(v.shard()))
		}
		views = append(views, *v)
	}
	slices.SortFunc(views, func(a, b sourceView) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Instance, b.Instance))
	})
	return views, nil
}

// hear takes in what a watcher reports.
func (v *sourceView) hear(w *reportv1.WatcherReport) {
	switch w.GetState() {
	case "standby":
		v.Standbys = append(v.Standbys, w.GetHolder())
		return
	case "": // it waits for a builder to begin the log
		return
	}
	v.State, v.Holder, v.Session = w.GetState(), w.GetHolder(), w.GetSession()
	v.Objects, v.Pending, v.Partial = int(w.GetKeys()), w.GetPending(), w.GetPartial()
	if w.GetListed() != nil {
		v.Listed = when(w.GetListed().AsTime())
	}
	if w.GetChanged() != nil {
		v.Changed = when(w.GetChanged().AsTime())
	}
	if w.GetDown() != nil {
		v.FrozenSince = when(w.GetDown().AsTime())
	}
	v.Problems = viewDiagnostics(w.GetDiagnostics())
}

// freeze says whether the whole source is frozen, and since when.
func (v *sourceView) freeze() {
	switch v.State {
	case stateSilent:
		v.Frozen, v.FrozenSince = true, v.Heard
	case stateDown:
		v.Frozen = true
	}
}

// lastWord looks up what was last said for it on the log.
func (s *sources) lastWord(ctx context.Context, v *sourceView) error {
	r, err := s.log.Last(ctx, events.ControlSubject(v.shard()))
	switch {
	case errors.Is(err, events.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("last word of %s: %w", v.shard(), err)
	}
	v.Heard = when(r.Time)
	if v.Holder == "" {
		v.Holder = r.Event.Actor
	}
	return nil
}

func showSources(views []sourceView, now time.Time, out *output) error {
	if len(views) == 0 {
		return out.line("No source has been heard. `meshlog up` watches a directory; `watcher-file --help` says how to start a watcher of its own.")
	}
	t := table{head: []string{"SOURCE", "STATE", "WATCHER", "OBJECTS", "PENDING", "SYNCED", "LISTED", "CHANGED", "HEARD", "STANDBYS"}}
	for _, v := range views {
		t.add(v.shard(), v.stateCell(), v.Holder, v.Objects, v.Pending, v.synced(), since(v.Listed, now), since(v.Changed, now), since(v.Heard, now),
			strings.Join(v.Standbys, ", "))
	}
	if err := out.table(&t, true); err != nil {
		return err
	}
	var notes []string
	for _, v := range views {
		notes = append(notes, v.notes(now)...)
	}
	if len(notes) == 0 {
		return nil
	}
	return out.line("\n%s", strings.Join(notes, "\n"))
}

func since(t *time.Time, now time.Time) string {
	if t == nil {
		return ""
	}
	return ago(now.Sub(*t))
}

func (v *sourceView) stateCell() cell {
	color := green
	switch v.State {
	case stateDown, stateSilent:
		color = red
	case stateGone:
		color = faint
	case "listing":
		color = yellow
	}
	text := strings.ToUpper(v.State)
	if v.Frozen {
		text += ", FROZEN"
	}
	return cell{text, color}
}

func (v *sourceView) synced() cell {
	switch {
	case v.Partial:
		return cell{"in part", yellow}
	case v.Synced && len(v.FrozenKinds) > 0:
		return cell{"but " + plural(len(v.FrozenKinds), "kind", "kinds"), yellow}
	case v.Synced:
		return cell{"yes", ""}
	}
	return cell{"no", yellow}
}

// notes say what does not fit into the table.
func (v *sourceView) notes(now time.Time) (notes []string) {
	if v.State == stateSilent {
		spoke := "nobody has ever spoken for it"
		if v.Heard != nil {
			spoke = fmt.Sprintf("nobody speaks for it since %s (%s)", clock(*v.Heard), ago(now.Sub(*v.Heard)))
		}
		notes = append(notes, fmt.Sprintf("%s: %s. What it had said (%s) stays as it is: start its watcher, or `meshlog sources remove %s`.",
			v.shard(), spoke, plural(v.Objects, "object", "objects"), v.shard()))
	}
	if len(v.FrozenKinds) > 0 && !v.Frozen {
		var kinds, counts []string
		for _, k := range v.FrozenKinds {
			kinds, counts = append(kinds, k.Kind), append(counts, fmt.Sprintf("%d %s", k.Objects, k.Kind))
		}
		notes = append(notes, fmt.Sprintf("%s: cannot be read for some kinds, whose objects stay as they are (%s): make it readable for them, or `meshlog sources remove %s --kind %s`.",
			v.shard(), strings.Join(counts, ", "), v.shard(), strings.Join(kinds, ",")))
	}
	if v.Required && !v.Synced {
		notes = append(notes, fmt.Sprintf("%s: nothing is published before it has listed in this epoch (MeshPolicy spec.requiredSources).", v.shard()))
	}
	for _, p := range v.Problems[:min(len(v.Problems), maxNamed)] {
		notes = append(notes, fmt.Sprintf("%s: %s", v.shard(), p.line()))
	}
	if more := len(v.Problems) - maxNamed; more > 0 {
		notes = append(notes, fmt.Sprintf("%s: and %s; `meshlog diagnostics` shows them.", v.shard(), plural(more, "more problem", "more problems")))
	}
	return notes
}

// line is a problem in one line.
func (v diagnosticView) line() string {
	text := v.Reason
	if v.Field != "" {
		text = v.Field + ": " + text
	}
	if where := cmp.Or(v.Origin, v.Object); where != "" {
		text = where + ": " + text
	}
	return v.Severity + ": " + text
}
