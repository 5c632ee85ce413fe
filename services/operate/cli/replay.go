package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/events"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// stepView is one record and what it did.
type stepView struct {
	Position string         `json:"position"`
	Time     time.Time      `json:"time"` // the server's
	What     string         `json:"what"`
	Object   string         `json:"object,omitempty"`
	Detail   string         `json:"detail,omitempty"`
	Actor    string         `json:"actor,omitempty"`
	Reset    bool           `json:"reset,omitempty"` // a segment made the content anew
	Changes  []objectChange `json:"changes,omitempty"`
	Problems []string       `json:"problems,omitempty"`
}

// replayView is where a replay ended.
type replayView struct {
	From     string     `json:"from"` // the position behind which it began
	To       string     `json:"to"`
	Time     time.Time  `json:"time"` // of the last record
	Records  int        `json:"records"`
	Objects  int        `json:"objects"`
	Root     string     `json:"root"`
	Recorded string     `json:"recorded,omitempty"` // the root of the version that was published there
	Build    string     `json:"build,omitempty"`    // that published it
	Steps    []stepView `json:"steps"`
}

type replayOptions struct {
	from, to string
	step     bool
	all      bool
}

func replayCommand() *cobra.Command {
	var o replayOptions
	cmd := &cobra.Command{
		Use: "replay", Short: "Folds the log again, and shows what each record changed", Args: args(0, 0, ""),
		Long: `Folds the log again, and shows what each record changed: the objects that were
added (+), changed (~) or removed (-). A batch, or the listing of a source,
counts as one: its last record shows the changes of all. Records that change
nothing are left out, unless --all asks for them.

It ends with the root of what it came to, and compares it with that of the
version that was published there, if one was. ` + "`meshlog verify`" + ` compares all.

--from and --to are positions (SEQ, EPOCH.SEQ) or times ("14:02", "10m ago").
The log is folded from the nearest checkpoint before --from.`,
		Example: `  meshlog replay --data data/ --from "14:00" --to "14:05"
  meshlog replay --data data/ --from 120 --step   # with the fields before and after
  meshlog replay --archive mesh.archive --to 1795275208.13 -o json`,
	}
	t := pastFlags(cmd)
	format := outputFlag(cmd)
	f := cmd.Flags()
	f.StringVar(&o.from, "from", "", "first `position` or time that is shown; default: where the newest epoch began")
	f.StringVar(&o.to, "to", "", "last `position` or time; default: the end of the log")
	f.BoolVar(&o.step, "step", false, "show step by step: fields before and after, and problems; on a terminal, wait for Enter after each")
	f.BoolVar(&o.all, "all", false, "show records that change nothing, too")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		defer func() { err = errors.Join(err, t.close()) }()
		out, err := newOutput(cmd, *format)
		if err != nil {
			return err
		}
		p, err := t.past(cmd)
		if err != nil {
			return err
		}
		r, from, to, err := o.begin(cmd.Context(), p, time.Now())
		if err != nil {
			return err
		}
		s := &replayer{out: out, o: o, from: from}
		if o.step && isTerminal(cmd.OutOrStdout()) && isTerminal(cmd.InOrStdin()) {
			s.enter = cmd.InOrStdin()
		}
		read := progress{w: cmd.ErrOrStderr(), what: "folded"}
		if err := s.run(cmd.Context(), r, to, &read); err != nil {
			return err
		}
		return s.end(cmd.Context(), p, r)
	}
	return cmd
}

// begin finds where to begin: the replay stands before the record from.
func (o *replayOptions) begin(ctx context.Context, p *past.Past, now time.Time) (r *past.Replay, from, to uint64, err error) {
	if err := p.HasLog(); err != nil {
		return nil, 0, 0, err
	}
	bounds, err := p.Log.Bounds(ctx)
	if err != nil {
		return nil, 0, 0, err
	}
	if bounds.Last < bounds.First {
		return nil, 0, 0, notFound("%s: the log is empty; there is nothing to fold", p.Name)
	}
	if to, err = positionOrTime(ctx, p.Log, "--to", o.to, bounds.Last, now); err != nil {
		return nil, 0, 0, err
	}
	if o.to != "" && !isPosition(o.to) {
		to = max(to-1, bounds.First) // what came before that time
	}
	if from, err = positionOrTime(ctx, p.Log, "--from", o.from, 0, now); err != nil {
		return nil, 0, 0, err
	}
	to = min(to, bounds.Last)
	switch {
	case from == 0:
		r, err = past.Begin(ctx, p, to)
	case from > to:
		return nil, 0, 0, usage("--from %s is behind --to: record %d comes after %d", o.from, from, to)
	case from < bounds.First:
		return nil, 0, 0, notFound("--from %s: the log begins at %d", o.from, bounds.First)
	default:
		r, err = past.Begin(ctx, p, max(from-1, bounds.First))
		if errors.Is(err, past.ErrTooOld) {
			r, err = past.BeginAtFloor(ctx, p)
		}
	}
	return r, from, to, err
}

// positionOrTime reads SEQ, EPOCH.SEQ or a time: of the latter, the first record
// then or later.
func positionOrTime(ctx context.Context, log events.Reader, flag, s string, otherwise uint64, now time.Time) (uint64, error) {
	if s == "" || isPosition(s) {
		return position(flag, s, otherwise)
	}
	return timeAt(ctx, log, flag, s, now)
}

func isPosition(s string) bool { return positionForm.MatchString(s) && !strings.HasPrefix(s, ".") }

// replayer prints the steps of a replay.
type replayer struct {
	out   *output
	o     replayOptions
	from  uint64
	enter io.Reader // nil: nobody is waited for

	view  replayView
	shown bool
}

func (s *replayer) run(ctx context.Context, r *past.Replay, to uint64, read *progress) error {
	s.view.From, s.view.Steps = r.From().String(), []stepView{}
	first := r.Position().Seq
	err := r.To(ctx, to, func(step past.Step) error {
		s.view.Records++
		read.show(int64(step.Record.Seq-first), int64(to-first))
		if step.Record.Seq < s.from || !s.o.all && len(step.Changes) == 0 && len(step.Problems) == 0 && !step.Reset {
			return nil
		}
		read.done()
		return s.step(viewStep(step))
	})
	read.done()
	return err
}

func viewStep(step past.Step) stepView {
	what, object, detail, by := summary(step.Record)
	v := stepView{
		Position: step.Position.String(), Time: step.Record.Time.UTC(), What: strings.ToLower(what), Object: object,
		Detail: detail, Actor: by, Reset: step.Reset, Changes: viewChanges(past.Objects(step.Changes)),
	}
	for _, d := range step.Problems {
		v.Problems = append(v.Problems, problemLine(d))
	}
	return v
}

// problemLine is a problem in one line.
func problemLine(d problem.Diagnostic) string {
	parts := []string{d.Severity.String()}
	for _, s := range []string{d.Origin, d.Field, d.Reason} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, ": ")
}

func (s *replayer) step(v stepView) error {
	if s.out.format != "table" {
		s.view.Steps = append(s.view.Steps, v)
		return nil
	}
	s.shown = true
	what := strings.ToUpper(v.What)
	line := fmt.Sprintf("%s  %s  %s %s", v.Position, clock(v.Time), s.out.paint(what, colorOf(what)), v.Object)
	for _, more := range []string{v.Detail, v.Actor} {
		if more != "" {
			line += s.out.paint("  "+more, faint)
		}
	}
	if err := s.out.line("%s", line); err != nil {
		return err
	}
	for i := range v.Changes {
		c := &v.Changes[i]
		sign := c.sign()
		if err := s.out.line("  %s", s.out.paint(sign.text+" "+c.Object, sign.color)); err != nil {
			return err
		}
		if !s.o.step {
			continue
		}
		for _, l := range append(c.lines(), c.whole()...) {
			if err := s.out.line("      %s", l); err != nil {
				return err
			}
		}
	}
	if s.o.step || len(v.Changes) == 0 {
		for _, l := range v.Problems {
			if err := s.out.line("  %s", s.out.paint("! "+l, yellow)); err != nil {
				return err
			}
		}
	}
	return s.wait()
}

// whole is the value that came or went, in a line.
func (c *objectChange) whole() []string {
	switch {
	case c.After != nil:
		return []string{brief(c.After)}
	case c.Before != nil:
		return []string{"was " + brief(c.Before)}
	}
	return nil
}

// wait waits for Enter.
func (s *replayer) wait() error {
	if s.enter == nil {
		return nil
	}
	fmt.Fprint(s.out.w, s.out.paint("Enter: next ", faint))
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

// end says what the replay came to.
func (s *replayer) end(ctx context.Context, p *past.Past, r *past.Replay) error {
	v := &s.view
	v.To, v.Time, v.Root = r.Position().String(), r.Fold().RecordTime().UTC(), r.Content().Root().String()
	v.Objects = len(keysIn(r.Content()))
	for m, err := range p.Versions.History(ctx) {
		if err != nil {
			return err
		}
		if at := store.VersionOf(m.GetVersion()); at == r.Position() {
			v.Recorded, v.Build = store.RootOf(m).String(), m.GetBuild()
		} else if r.Position().Less(at) {
			continue
		}
		break
	}
	if err := s.out.print(v, func() error { return s.summary() }); err != nil {
		return err
	}
	if v.Recorded != "" && v.Recorded != v.Root {
		return fmt.Errorf("version %s, made by %s, has root %s; folded again it is %s: `meshlog verify` says more", v.To, v.Build, short(v.Recorded), short(v.Root))
	}
	return nil
}

func (s *replayer) summary() error {
	v := &s.view
	if !s.shown {
		if err := s.out.line("Nothing changed; --all shows the records."); err != nil {
			return err
		}
	}
	same := "no version was published there"
	if v.Recorded == v.Root {
		same = "as published"
	} else if v.Recorded != "" {
		same = "published was " + short(v.Recorded)
	}
	return s.out.line("%s", s.out.paint(fmt.Sprintf("%s from %s to %s: %s, root %s (%s)",
		plural(v.Records, "record", "records"), v.From, v.To, plural(v.Objects, "object", "objects"), short(v.Root), same), faint))
}
