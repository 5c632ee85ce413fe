package history

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/published"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/store"
)

// VersionView is a version.
type VersionView struct {
	Version       ident.Position  `json:"version"`
	Time          time.Time       `json:"time"` // of its last record, by the server's clock
	Previous      ident.Position  `json:"previous,omitzero"`
	Positions     uint64          `json:"positions"` // records since the previous version
	ChangeCount   uint32          `json:"changeCount"`
	Changes       []changeView    `json:"changes,omitempty"`
	PublishedAt   time.Time       `json:"publishedAt,omitzero"`
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
	Seq     uint64 `json:"seq,omitempty"`   // of the record that caused it
	Cause   string `json:"cause,omitempty"` // that record in words
}

type watermarkView struct {
	Source   string `json:"source"`
	Instance string `json:"instance"`
	Seq      uint64 `json:"seq"`
	Synced   bool   `json:"synced"`
	Partial  bool   `json:"partial,omitempty"`
}

// versionsOptions select versions.
type versionsOptions struct {
	tail         int
	since, until string    // times
	from, to     time.Time // of since and until; zero: any
}

// Versions returns the command `versions`.
func Versions() *cobra.Command {
	cmd := &cobra.Command{
		Use: "versions [VERSION]", Short: "Show the published versions and what caused them", Args: command.Args(0, 1, ""),
		Long: `Show the published versions, the newest first; or the details of one.

A version is a position of the log, EPOCH.SEQ: it contains every record up to
there. POSITIONS is the number of records that it adds, CAUSE the record that
changed something (` + "`meshlog log --from SEQ`" + ` shows it), LATENCY the time from its
last record until it was published.

` + command.MomentForms,
		Example: `  meshlog versions --data data/
  meshlog versions --data data/ .42
  meshlog versions --data data/ --since 14:00 --until 14:05
  meshlog versions --data data/ latest -o json`,
	}
	var o versionsOptions
	f := cmd.Flags()
	f.IntVarP(&o.tail, "tail", "n", 20, "how many of the newest versions that match; -1 for all")
	f.StringVar(&o.since, "since", "", "only versions published at this `time` or later; --tail has no effect then")
	f.StringVar(&o.until, "until", "", "only versions published before this `time`")
	return command.Past(cmd, func(ctx context.Context, e *command.Env, args []string) error {
		if err := o.read(time.Now()); err != nil {
			return err
		}
		p, err := e.Past(ctx)
		if err != nil {
			return err
		}
		if len(args) == 0 {
			return listVersions(p.Versions.History(ctx), o, e.Output)
		}
		m, err := command.FindMoment(ctx, p, args[0])
		if err != nil {
			return err
		}
		if m.Manifest == nil {
			return command.NotFound("version %s: never published; `meshlog versions` lists the published versions, and `meshlog show` shows any position", args[0])
		}
		v := VersionOf(m.Manifest)
		explain := explainer(ctx, p)
		for i, c := range v.Changes {
			v.Changes[i].Cause = explain(c.Seq)
		}
		e.Print(v, func() { v.show(e.Output) })
		return nil
	})
}

// read parses the times.
func (o *versionsOptions) read(now time.Time) (err error) {
	if o.since != "" {
		o.tail = -1
		if o.from, err = command.ParseWhen(o.since, now); err != nil {
			return command.Usage("--since %w", err)
		}
	}
	if o.until != "" {
		if o.to, err = command.ParseWhen(o.until, now); err != nil {
			return command.Usage("--until %w", err)
		}
	}
	return nil
}

func listVersions(manifests iter.Seq2[*store.Manifest, error], o versionsOptions, out *command.Output) error {
	views, some := []*VersionView{}, false
	for m, err := range manifests {
		if err != nil {
			return err
		}
		some = true
		at := command.PublishedAt(m)
		if !o.to.IsZero() && !at.Before(o.to) {
			continue
		}
		if o.tail >= 0 && len(views) >= o.tail || at.Before(o.from) {
			break
		}
		views = append(views, VersionOf(m))
	}
	out.Print(views, func() {
		switch {
		case !some:
			out.Line("Nothing has been published yet. `meshlog log` shows the records; /readyz of the builder says what it waits for.")
		case len(views) == 0:
			out.Line("No version matches; `meshlog versions -n -1` lists all that are kept.")
		default:
			t := command.Rows{Head: []string{"VERSION", "TIME", "POSITIONS", "KEYS", "CAUSE", "LATENCY", "ROOT", "BUILD"}}
			for _, v := range views {
				t.Add(v.Version, v.Time, v.Positions, v.ChangeCount, v.Because(), v.Latency(), command.Short(v.Root), v.Build)
			}
			out.Rows(&t)
		}
	})
	return nil
}

// VersionOf returns a version without the words of its causes.
func VersionOf(m *store.Manifest) *VersionView {
	v := &VersionView{
		Version: store.VersionOf(m.GetVersion()), Time: m.GetRecordTime().AsTime(), Previous: store.VersionOf(m.GetPrevious()),
		Positions: published.Positions(m), ChangeCount: m.GetChangeCount(),
		Publisher: m.GetPublisher(), Build: m.GetBuild(), Root: store.RootOf(m).String(),
		RecordHash: fmt.Sprintf("%x", m.GetRecordHash()), Checkpoint: m.GetCheckpoint() != nil,
	}
	if v.PublishedAt = command.Stamp(m.GetPublishTime().AsTime()); !v.PublishedAt.IsZero() {
		v.PublishMillis = float64(v.PublishedAt.Sub(v.Time).Microseconds()) / 1000
	}
	for _, c := range m.GetChanges() {
		v.Changes = append(v.Changes, changeView{Object: published.Object(c.GetKey()), Removed: c.GetRemoved(), Seq: c.GetSeq()})
	}
	for _, w := range m.GetWatermark() {
		v.Watermark = append(v.Watermark, watermarkView{w.GetSource(), w.GetInstance(), w.GetSeq(), w.GetSynced(), w.GetPartial()})
	}
	for _, d := range m.GetDiagnostics() {
		if v.Diagnostics == nil {
			v.Diagnostics = map[string]int{}
		}
		v.Diagnostics[command.Severity(d.GetSeverity())]++
	}
	return v
}

// Because names the first object that changed, and the records.
func (v *VersionView) Because() string {
	if len(v.Changes) == 0 {
		return ""
	}
	var seqs []string
	for _, c := range v.Changes {
		if seq := fmt.Sprintf("#%d", c.Seq); c.Seq != 0 && !slices.Contains(seqs, seq) {
			seqs = append(seqs, seq)
		}
	}
	s := v.Changes[0].Object
	if more := int(v.ChangeCount) - 1; more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	if len(seqs) == 0 {
		return s
	}
	if len(seqs) > command.MaxNamed {
		seqs = append(seqs[:command.MaxNamed], "...")
	}
	return s + ", " + strings.Join(seqs, " ")
}

// Latency returns the time from the last record until the version was published.
func (v *VersionView) Latency() string {
	if v.PublishedAt.IsZero() {
		return ""
	}
	return command.Span(v.PublishedAt.Sub(v.Time))
}

func (v *VersionView) show(out *command.Output) {
	var facts command.Rows
	facts.Fact("version", v.Version)
	facts.Fact("previous", v.Previous)
	facts.Fact("time", v.Time)
	facts.Fact("published", fmt.Sprintf("%s by %s", v.Latency(), v.Publisher))
	facts.Fact("positions", v.Positions)
	facts.Fact("build", v.Build)
	facts.Fact("root", v.Root)
	facts.Fact("record", v.RecordHash)
	for _, w := range v.Watermark {
		state := "synced"
		if !w.Synced {
			state = "not synced"
		}
		if w.Partial {
			state += ", partial"
		}
		facts.Fact(w.Source+"/"+w.Instance, fmt.Sprintf("up to %d, %s", w.Seq, state))
	}
	for _, s := range []string{"error", "warning", "info"} {
		if n := v.Diagnostics[s]; n > 0 {
			facts.Fact(s+"s", fmt.Sprintf("%d; `meshlog diagnostics` shows the present ones", n))
		}
	}
	out.Rows(&facts)
	out.Line("\n%s changed", command.Plural(int(v.ChangeCount), "key", "keys"))
	if len(v.Changes) == 0 {
		return
	}
	t := command.Rows{Head: []string{"OBJECT", "CHANGE", "SEQ", "CAUSE"}}
	for _, c := range v.Changes {
		change := command.Cell{Text: "put", Color: command.Green}
		if c.Removed {
			change = command.Cell{Text: "removed", Color: command.Red}
		}
		t.Add(c.Object, change, c.Seq, c.Cause)
	}
	out.Rows(&t)
}
