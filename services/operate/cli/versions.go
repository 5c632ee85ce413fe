package cli

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/store"
)

// versionView is a version as it is printed whole.
type versionView struct {
	Version       string          `json:"version"`
	Time          time.Time       `json:"time"` // of its last record, by the server's clock
	Previous      string          `json:"previous,omitempty"`
	Positions     uint64          `json:"positions"` // records since the previous version
	ChangeCount   uint32          `json:"changeCount"`
	Changes       []changeView    `json:"changes,omitempty"`
	PublishedAt   *time.Time      `json:"publishedAt,omitempty"`
	PublishMillis float64         `json:"publishMillis"` // from the last record to the publish
	Publisher     string          `json:"publisher,omitempty"`
	Build         string          `json:"build"`
	Root          string          `json:"root"`
	RecordHash    string          `json:"recordHash"`
	Checkpoint    bool            `json:"checkpoint,omitempty"`
	Watermark     []watermarkView `json:"watermark,omitempty"`
	Diagnostics   map[string]int  `json:"diagnostics,omitempty"` // by severity
}

type changeView struct {
	Object  string `json:"object"`
	Removed bool   `json:"removed,omitempty"`
	Seq     uint64 `json:"seq,omitempty"`   // the record that caused it
	Cause   string `json:"cause,omitempty"` // what that record says
}

type watermarkView struct {
	Source   string `json:"source"`
	Instance string `json:"instance"`
	Seq      uint64 `json:"seq"`
	Synced   bool   `json:"synced"`
	Partial  bool   `json:"partial,omitempty"`
}

// versionsOptions say which versions are listed.
type versionsOptions struct {
	tail         int
	since, until string // times

	from, to time.Time // of them; zero: any
}

func versionsCommand() *cobra.Command {
	var o versionsOptions
	cmd := &cobra.Command{
		Use: "versions [VERSION]", Short: "Shows what was published, and why", Args: args(0, 1, ""),
		Long: `Shows the published versions, the newest first; or one version whole.

A version is a position of the log, EPOCH.SEQ: it contains every record up to
there. POSITIONS is how many records it spans, CAUSE the record that changed
something (` + "`meshlog log --from SEQ`" + ` shows it), LATENCY how long after its last
record it was published.

` + momentForms,
		Example: `  meshlog versions --data data/
  meshlog versions --data data/ .42
  meshlog versions --data data/ --since 14:00 --until 14:05
  meshlog versions --data data/ latest -o json`,
	}
	t := pastFlags(cmd)
	format := outputFlag(cmd)
	f := cmd.Flags()
	f.IntVarP(&o.tail, "tail", "n", 20, "how many of the newest that match; -1 for all")
	f.StringVar(&o.since, "since", "", "only those published at this `time` or later; then --tail does not count")
	f.StringVar(&o.until, "until", "", "only those published before this `time`")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		defer func() { err = errors.Join(err, t.close()) }()
		out, err := newOutput(cmd, *format)
		if err != nil {
			return err
		}
		now := time.Now()
		if err := o.read(now); err != nil {
			return err
		}
		p, err := t.past(cmd)
		if err != nil {
			return err
		}
		if len(args) == 0 {
			return listVersions(p.Versions.History(cmd.Context()), o, out)
		}
		m, err := findMoment(cmd.Context(), p, args[0], now)
		if err != nil {
			return err
		}
		if m.Manifest == nil {
			return notFound("version %s: never published; `meshlog versions` lists those that were, and `meshlog show` shows any position", args[0])
		}
		view := viewVersion(m.Manifest)
		view.explain(cmd.Context(), newExplainer(p))
		return out.print(view, func() error { return showVersion(view, out) })
	}
	return cmd
}

// read reads the times.
func (o *versionsOptions) read(now time.Time) (err error) {
	for _, t := range []struct {
		flag, s string
		to      *time.Time
	}{{"--since", o.since, &o.from}, {"--until", o.until, &o.to}} {
		if t.s == "" {
			continue
		}
		if *t.to, err = parseWhen(t.s, now); err != nil {
			return usage("%s %w", t.flag, err)
		}
	}
	if o.since != "" {
		o.tail = -1
	}
	return nil
}

// matching are the manifests that are to be listed, newest first.
func (o *versionsOptions) matching(manifests iter.Seq2[*store.Manifest, error]) (found []*store.Manifest, some bool, err error) {
	for m, err := range manifests {
		if err != nil {
			return nil, some, err
		}
		some = true
		at := publishedAt(m)
		if !o.to.IsZero() && !at.Before(o.to) {
			continue
		}
		if o.tail >= 0 && len(found) >= o.tail || at.Before(o.from) {
			break
		}
		found = append(found, m)
	}
	return found, some, nil
}

func listVersions(manifests iter.Seq2[*store.Manifest, error], o versionsOptions, out *output) error {
	found, some, err := o.matching(manifests)
	if err != nil {
		return err
	}
	views := []*versionView{}
	for _, m := range found {
		views = append(views, viewVersion(m))
	}
	return out.print(views, func() error {
		switch {
		case !some:
			return out.line("Nothing was published yet. `meshlog log` shows what came in; /readyz of the builder says what it waits for.")
		case len(views) == 0:
			return out.line("No version matches; `meshlog versions -n -1` lists all that are kept.")
		}
		t := table{head: []string{"VERSION", "TIME", "POSITIONS", "KEYS", "CAUSE", "LATENCY", "ROOT", "BUILD"}}
		for _, v := range views {
			t.add(v.Version, clock(v.Time), v.Positions, v.ChangeCount, v.cause(), v.latency(), short(v.Root), v.Build)
		}
		return out.table(&t, true)
	})
}

func viewVersion(m *store.Manifest) *versionView {
	v := &versionView{
		Version: store.VersionOf(m.GetVersion()).String(), Time: m.GetRecordTime().AsTime(),
		Positions: m.GetVersion().GetSeq(), ChangeCount: m.GetChangeCount(),
		Publisher: m.GetPublisher(), Build: m.GetBuild(), Root: store.RootOf(m).String(),
		RecordHash: fmt.Sprintf("%x", m.GetRecordHash()), Checkpoint: m.GetCheckpoint() != nil,
	}
	if p := store.VersionOf(m.GetPrevious()); !p.IsZero() {
		v.Previous = p.String()
		if p.Epoch == m.GetVersion().GetEpoch() {
			v.Positions -= p.Seq
		}
	}
	if m.GetPublishTime() != nil {
		v.PublishedAt = when(m.GetPublishTime().AsTime())
		v.PublishMillis = float64(v.PublishedAt.Sub(v.Time).Microseconds()) / 1000
	}
	for _, c := range m.GetChanges() {
		v.Changes = append(v.Changes, changeView{Object: rowName(c.GetKey()), Removed: c.GetRemoved(), Seq: c.GetSeq()})
	}
	for _, w := range m.GetWatermark() {
		v.Watermark = append(v.Watermark, watermarkView{w.GetSource(), w.GetInstance(), w.GetSeq(), w.GetSynced(), w.GetPartial()})
	}
	for _, d := range m.GetDiagnostics() {
		if v.Diagnostics == nil {
			v.Diagnostics = map[string]int{}
		}
		v.Diagnostics[severity(d.GetSeverity())]++
	}
	return v
}

// rowName is the object of a content row, for people.
func rowName(row string) string {
	key, overlay, err := ident.ParseRow(row)
	switch {
	case err != nil:
		return row
	case overlay != "":
		return "overlay " + overlay
	}
	return key.String()
}

func severity(s snapshotv1.Severity) string { return problem.Severity(s).String() }

// cause names the records that changed something, in short.
func (v *versionView) cause() string {
	if len(v.Changes) == 0 {
		return ""
	}
	var seqs []string
	seen := map[uint64]bool{}
	for _, c := range v.Changes {
		if c.Seq != 0 && !seen[c.Seq] {
			seen[c.Seq] = true
			seqs = append(seqs, fmt.Sprint(c.Seq))
		}
	}
	s := v.Changes[0].Object
	if more := int(v.ChangeCount) - 1; more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	switch {
	case len(seqs) == 0:
		return s
	case len(seqs) > 3:
		return s + ", #" + strings.Join(seqs[:3], " #") + " ..."
	}
	return s + ", #" + strings.Join(seqs, " #")
}

func (v *versionView) latency() string {
	if v.PublishedAt == nil {
		return ""
	}
	return span(v.PublishedAt.Sub(v.Time))
}

// explain says what the records say that caused the changes; what the log no
// longer has stays unexplained.
func (v *versionView) explain(ctx context.Context, say *explainer) {
	for i := range v.Changes {
		v.Changes[i].Cause = say.cause(ctx, v.Changes[i].Seq)
	}
}

func showVersion(v *versionView, out *output) error {
	rows := [][2]string{
		{"version", v.Version}, {"previous", v.Previous}, {"time", clock(v.Time)},
		{"published", fmt.Sprintf("%s by %s", v.latency(), v.Publisher)}, {"positions", fmt.Sprint(v.Positions)},
		{"build", v.Build}, {"root", v.Root}, {"record", v.RecordHash},
	}
	for _, w := range v.Watermark {
		state := "synced"
		if !w.Synced {
			state = "not synced"
		}
		if w.Partial {
			state += ", partial"
		}
		rows = append(rows, [2]string{w.Source + "/" + w.Instance, fmt.Sprintf("up to %d, %s", w.Seq, state)})
	}
	for _, s := range []string{"error", "warning", "info"} {
		if n := v.Diagnostics[s]; n > 0 {
			rows = append(rows, [2]string{s + "s", fmt.Sprintf("%d; `meshlog diagnostics` shows those that stand now", n)})
		}
	}
	facts := table{head: []string{"", ""}}
	for _, r := range rows {
		facts.add(cell{r[0], faint}, r[1])
	}
	if err := out.table(&facts, false); err != nil {
		return err
	}
	if err := out.line("\n%s changed", plural(int(v.ChangeCount), "key", "keys")); err != nil {
		return err
	}
	changes := table{head: []string{"OBJECT", "CHANGE", "SEQ", "CAUSE"}}
	for _, c := range v.Changes {
		change := cell{"put", green}
		if c.Removed {
			change = cell{"removed", red}
		}
		changes.add(c.Object, change, c.Seq, c.Cause)
	}
	return out.table(&changes, len(changes.rows) > 0)
}
