package history

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// stepView is one record and its effect.
type stepView struct {
	Position ident.Position      `json:"position"`
	Time     time.Time           `json:"time"` // the server's
	What     string              `json:"what"`
	Object   string              `json:"object,omitempty"`
	Detail   string              `json:"detail,omitempty"`
	Actor    string              `json:"actor,omitempty"`
	Reset    bool                `json:"reset,omitempty"` // a segment replaced the content
	Changes  []past.ObjectChange `json:"changes,omitempty"`
	Problems []string            `json:"problems,omitempty"`
}

// replayView is the result of a replay.
type replayView struct {
	From     ident.Position `json:"from"` // the position after which it began
	To       ident.Position `json:"to"`
	Time     time.Time      `json:"time"` // of the last record
	Records  int            `json:"records"`
	Objects  int            `json:"objects"`
	Root     string         `json:"root"`
	Recorded string         `json:"recorded,omitempty"` // the root of the version that was published there
	Build    string         `json:"build,omitempty"`    // that published it
	Steps    []stepView     `json:"steps"`
}

type replayOptions struct {
	from, to  string
	step, all bool
}

// Replay returns the command `replay`.
func Replay() *cobra.Command {
	cmd := &cobra.Command{
		Use: "replay", Short: "Fold the log again and show what each record changed", Args: command.Args(0, 0, ""),
		Long: `Fold the log again and show what each record changed: the objects that were added
(+), changed (~) or removed (-). A batch, or the listing of a source, counts as one:
its last record shows all its changes. Records that change nothing are hidden
unless --all is given.

The last line compares the root of the resulting content with the version that was
published there, if any. ` + "`meshlog verify`" + ` compares all versions.

--from and --to are positions (SEQ, EPOCH.SEQ) or times ("14:02", "10m ago"). The
replay begins at the nearest checkpoint before --from.`,
		Example: `  meshlog replay --data data/ --from "14:00" --to "14:05"
  meshlog replay --data data/ --from 120 --step   # with the fields before and after
  meshlog replay --archive mesh.archive --to 1795275208.13 -o json`,
	}
	var o replayOptions
	f := cmd.Flags()
	f.StringVar(&o.from, "from", "", "first `position` or time to show; default: the start of the newest epoch")
	f.StringVar(&o.to, "to", "", "last `position` or time; default: the end of the log")
	f.BoolVar(&o.step, "step", false, "show fields before and after, and problems; on a terminal, wait for Enter after each record")
	f.BoolVar(&o.all, "all", false, "also show records that change nothing")
	return command.Past(cmd, func(ctx context.Context, e *command.Env, _ []string) error {
		p, err := e.PastLog(ctx)
		if err != nil {
			return err
		}
		r, from, to, err := o.begin(ctx, p)
		if err != nil {
			return err
		}
		s := &replayer{out: e.Output, o: o, from: from}
		if o.step && e.IsTerminal() && command.IsTerminal(e.Stdin) {
			s.enter = e.Stdin
		}
		if err := s.run(ctx, r, to, e.Progress("folded")); err != nil {
			return err
		}
		return s.end(ctx, p, r)
	})
}

// begin returns a replay that stands before the record from.
func (o *replayOptions) begin(ctx context.Context, p *past.Past) (r *past.Replay, from, to uint64, err error) {
	bounds, err := p.Log.Bounds(ctx)
	if err != nil {
		return nil, 0, 0, err
	}
	if bounds.Last < bounds.First {
		return nil, 0, 0, command.NotFound("%s: the log is empty; there is nothing to fold", p.Name)
	}
	if to, err = command.SeqOrTime(ctx, p.Log, "--to", o.to, bounds.Last); err != nil {
		return nil, 0, 0, err
	}
	if o.to != "" && !command.IsSeq(o.to) {
		to = max(to-1, bounds.First) // the last record before that time
	}
	if from, err = command.SeqOrTime(ctx, p.Log, "--from", o.from, 0); err != nil {
		return nil, 0, 0, err
	}
	to = min(to, bounds.Last)
	switch {
	case from == 0:
		r, err = past.Begin(ctx, p, to)
	case from > to:
		return nil, 0, 0, command.Usage("--from %s is after --to: record %d comes after %d", o.from, from, to)
	case from < bounds.First:
		return nil, 0, 0, command.NotFound("--from %s: the log begins at %d", o.from, bounds.First)
	default:
		r, err = past.Begin(ctx, p, max(from-1, bounds.First))
		if errors.Is(err, past.ErrTooOld) {
			r, err = past.BeginAtFloor(ctx, p)
		}
	}
	return r, from, to, err
}

// replayer prints the steps of a replay.
type replayer struct {
	out   *command.Output
	o     replayOptions
	from  uint64
	enter io.Reader // nil: do not wait for Enter
	view  replayView
	shown bool
}

func (s *replayer) run(ctx context.Context, r *past.Replay, to uint64, read *command.Progress) error {
	s.view.From, s.view.Steps = r.From(), []stepView{}
	err := r.To(ctx, to, read.Show, func(step past.Step) error {
		s.view.Records++
		if step.Record.Seq < s.from || !s.o.all && len(step.Changes) == 0 && len(step.Problems) == 0 && !step.Reset {
			return nil
		}
		read.Done()
		return s.step(viewStep(step))
	})
	read.Done()
	return err
}

func viewStep(step past.Step) stepView {
	object, detail := summary(step.Record)
	v := stepView{
		Position: step.Position, Time: step.Record.Time.UTC(), What: past.What(step.Record), Object: object,
		Detail: detail, Actor: step.Record.Event.Actor, Reset: step.Reset, Changes: past.Objects(step.Changes),
	}
	for _, d := range step.Problems {
		v.Problems = append(v.Problems, problemLine(d))
	}
	return v
}

func problemLine(d problem.Diagnostic) string {
	line := d.Severity.String()
	for _, s := range []string{d.Origin, d.Field, d.Reason} {
		if s != "" {
			line += ": " + s
		}
	}
	return line
}

func (s *replayer) step(v stepView) error {
	if !s.out.IsTable() {
		s.view.Steps = append(s.view.Steps, v)
		return nil
	}
	s.shown = true
	what := whatCell(v.What)
	line := fmt.Sprintf("%s  %s  %s %s", v.Position, command.Clock(v.Time), s.out.Paint(what.Text, what.Color), v.Object)
	for _, more := range []string{v.Detail, v.Actor} {
		if more != "" {
			line += s.out.Paint("  "+more, command.Faint)
		}
	}
	s.out.Line("%s", line)
	for _, c := range v.Changes {
		s.out.Line("  %s", command.ChangeTitle(c, s.out))
		if !s.o.step {
			continue
		}
		lines := command.ChangeLines(c)
		switch {
		case c.After != nil:
			lines = append(lines, command.Brief(c.After))
		case c.Before != nil:
			lines = append(lines, "was "+command.Brief(c.Before))
		}
		for _, l := range lines {
			s.out.Line("      %s", l)
		}
	}
	if s.o.step || len(v.Changes) == 0 {
		for _, l := range v.Problems {
			s.out.Line("  %s", s.out.Paint("! "+l, command.Yellow))
		}
	}
	if err := s.out.Err(); err != nil {
		return err
	}
	return s.wait()
}

// wait waits for Enter.
func (s *replayer) wait() error {
	if s.enter == nil {
		return nil
	}
	fmt.Fprint(s.out, s.out.Paint("Enter: next ", command.Faint))
	b := make([]byte, 1)
	for b[0] != '\n' {
		if _, err := s.enter.Read(b); errors.Is(err, io.EOF) {
			s.enter = nil
			return nil
		} else if err != nil {
			return err
		}
	}
	return nil
}

// end prints the result of the replay.
func (s *replayer) end(ctx context.Context, p *past.Past, r *past.Replay) error {
	v := &s.view
	v.To, v.Time, v.Root = r.Position(), r.Fold().RecordTime().UTC(), r.Content().Root().String()
	over, _, _ := past.Layers(r.Content()) // an overlay that this build cannot read counts no objects
	v.Objects = len(over)
	at, err := command.FindVersion(ctx, p.Versions, func(m command.Moment) bool { return !v.To.Less(m.Version) })
	if err != nil {
		return err
	}
	if at.Manifest != nil && at.Version == v.To {
		v.Recorded, v.Build = store.RootOf(at.Manifest).String(), at.Manifest.GetBuild()
	}
	s.out.Print(v, s.summary)
	if v.Recorded != "" && v.Recorded != v.Root {
		return fmt.Errorf("version %s, made by %s, has root %s; folded again it is %s: `meshlog verify` shows more", v.To, v.Build, command.Short(v.Recorded), command.Short(v.Root))
	}
	return nil
}

func (s *replayer) summary() {
	v := &s.view
	if !s.shown {
		s.out.Line("Nothing changed; --all shows the records.")
	}
	same := "no version was published there"
	if v.Recorded == v.Root {
		same = "as published"
	} else if v.Recorded != "" {
		same = "published was " + command.Short(v.Recorded)
	}
	s.out.Line("%s", s.out.Paint(fmt.Sprintf("%s from %s to %s: %s, root %s (%s)",
		command.Plural(v.Records, "record", "records"), v.From, v.To, command.Plural(v.Objects, "object", "objects"), command.Short(v.Root), same), command.Faint))
}
