package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"meshlog.dev/events"
)

// logOptions say which records are shown.
type logOptions struct {
	tail       int
	follow     bool
	from, to   string
	heartbeats bool

	kinds, namespaces, names, sources []string
}

func logCommand() *cobra.Command {
	var o logOptions
	cmd := &cobra.Command{
		Use: "log", Short: "Shows what came in: the records of the log", Args: args(0, 0, ""),
		Long: `Shows the records of the log, the newest last: what sources said about objects
(PUT, DELETE), their sessions (BEGIN, ALIVE), holds and approvals (OVERLAY,
REMOVE), and where builders began anew (SEGMENT).

Heartbeats, an ALIVE every ten seconds, are left out unless --heartbeats asks
for them. Each filter may be given several times; a record must match one of
each kind of filter.`,
		Example: `  meshlog log --data data/
  meshlog log --data data/ --follow --kind Resource
  meshlog log --data data/ --name shop -n 5 -o yaml
  meshlog log --data data/ --from 120 --to 140`,
	}
	t := pastFlags(cmd)
	format := outputFlag(cmd)
	f := cmd.Flags()
	f.IntVarP(&o.tail, "tail", "n", 20, "how many of the newest matching records; -1 for all")
	f.BoolVarP(&o.follow, "follow", "f", false, "go on with what comes")
	f.StringVar(&o.from, "from", "", "first `position`: SEQ or EPOCH.SEQ; then --tail does not count")
	f.StringVar(&o.to, "to", "", "last `position`")
	f.BoolVar(&o.heartbeats, "heartbeats", false, "show heartbeats too")
	f.StringSliceVar(&o.kinds, "kind", nil, "only objects of this `kind`")
	f.StringSliceVarP(&o.namespaces, "namespace", "N", nil, "only objects in this `namespace`")
	f.StringSliceVar(&o.names, "name", nil, "only objects of this `name`")
	f.StringSliceVar(&o.sources, "source", nil, "only what this `source` said: SOURCE or SOURCE/INSTANCE")
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
		if err := p.HasLog(); err != nil {
			return err
		}
		return showLog(cmd.Context(), p.Log, o, out)
	}
	return cmd
}

// showLog prints what there is, and then, if it is to follow, what comes.
func showLog(ctx context.Context, log events.Reader, o logOptions, out *output) error {
	bounds, err := log.Bounds(ctx)
	if err != nil {
		return err
	}
	from, err := position("--from", o.from, 0)
	if err != nil {
		return err
	}
	last, err := position("--to", o.to, bounds.Last)
	if err != nil {
		return err
	}
	if o.follow && o.to != "" {
		return usage("--follow and --to: what comes has no end; give one of them")
	}
	last = min(last, bounds.Last)

	p := &logPrinter{out: out, stream: o.follow}
	var recs []events.Record
	switch {
	case o.from != "" && from < bounds.First:
		return notFound("--from %s: the log begins at %d", o.from, bounds.First)
	case o.from != "":
		recs, err = read(ctx, log, from, last, o.matches)
	default:
		recs, err = readTail(ctx, log, bounds.First, last, o)
	}
	if err != nil {
		return err
	}
	if err := p.print(recs); err != nil || !o.follow {
		return err
	}
	return follow(ctx, log, max(bounds.Last, from-min(1, from)), func(recs []events.Record) error {
		return p.print(slices.DeleteFunc(recs, func(r events.Record) bool { return !o.matches(r) }))
	})
}

// position reads SEQ or EPOCH.SEQ.
func position(flag, s string, otherwise uint64) (uint64, error) {
	if s == "" {
		return otherwise, nil
	}
	if p, err := events.ParsePosition(s); err == nil {
		return p.Seq, nil
	}
	seq, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, usage("%s %q: want SEQ or EPOCH.SEQ, as `meshlog log` and `meshlog versions` print them", flag, s)
	}
	return seq, nil
}

// readTail returns the newest records that match, oldest first. It looks at
// ever longer stretches of the log, until it has enough.
func readTail(ctx context.Context, log events.Reader, first, last uint64, o logOptions) ([]events.Record, error) {
	if o.tail < 0 {
		return read(ctx, log, first, last, o.matches)
	}
	var found []events.Record
	for stretch := uint64(max(o.tail, 100)); last >= first && len(found) < o.tail; stretch *= 4 {
		from := first
		if last-first >= stretch {
			from = last - stretch + 1
		}
		recs, err := read(ctx, log, from, last, o.matches)
		if err != nil {
			return nil, err
		}
		found = append(recs, found...)
		last = from - 1
	}
	return found[max(0, len(found)-o.tail):], nil
}

// read returns the records from one to another that match.
func read(ctx context.Context, log events.Reader, from, to uint64, matches func(events.Record) bool) ([]events.Record, error) {
	if from > to {
		return nil, nil
	}
	var found []events.Record
	err := follow(ctx, log, from-min(1, from), func(recs []events.Record) error {
		for _, r := range recs {
			if r.Seq <= to && matches(r) {
				found = append(found, r)
			}
			if r.Seq >= to {
				return errEnough
			}
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		return nil, err
	}
	return found, nil
}

var errEnough = errors.New("enough")

// follow hands on all records after one, over any number of connections, until
// handle returns an error or ctx is done.
func follow(ctx context.Context, log events.Reader, after uint64, handle func([]events.Record) error) error {
	for {
		err := followOnce(ctx, log, &after, handle)
		switch {
		case errors.Is(err, events.ErrReconnected):
		case ctx.Err() != nil:
			return nil
		default:
			return err
		}
	}
}

func followOnce(ctx context.Context, log events.Reader, after *uint64, handle func([]events.Record) error) (err error) {
	f, err := log.Follow(ctx, *after, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for {
		recs, err := f.Next(ctx)
		if err != nil {
			return fmt.Errorf("read the log: %w", err)
		}
		*after = recs[len(recs)-1].Seq
		if err := handle(recs); err != nil {
			return err
		}
	}
}

// matches says whether a record is to be shown.
func (o *logOptions) matches(r events.Record) bool {
	var key events.Key
	var shard events.Shard
	switch b := r.Event.Body.(type) {
	case *events.Object:
		key, shard = b.Key, b.Key.Shard()
	case *events.Begin:
		shard = b.Shard
	case *events.Alive:
		if shard = b.Shard; !o.heartbeats && b.Listed.Len() == 0 && !b.Partial {
			return false
		}
	}
	return (len(o.sources) == 0 || slices.Contains(o.sources, shard.Source) || slices.Contains(o.sources, shard.String())) &&
		among(o.kinds, key.Kind) && among(o.namespaces, key.Namespace) && among(o.names, key.Name)
}

func among(wanted []string, s string) bool {
	return len(wanted) == 0 || s != "" && slices.Contains(wanted, s)
}

// logPrinter prints records; the columns of later ones stand below those of
// the first.
type logPrinter struct {
	out    *output
	stream bool
	table  table
}

func (p *logPrinter) print(recs []events.Record) error {
	if p.out.format != "table" {
		return p.whole(recs)
	}
	head := p.table.head == nil
	p.table.head = []string{"SEQ", "TIME", "WHAT", "OBJECT", "FROM", "BY"}
	p.table.rows = nil
	for _, r := range recs {
		what, object, detail, by := summary(r)
		p.table.add(fmt.Sprint(r.Seq), clock(r.Time), cell{what, colorOf(what)}, object, detail, by)
	}
	return p.out.table(&p.table, head)
}

func (p *logPrinter) whole(recs []events.Record) error {
	views := make([]recordView, len(recs))
	for i, r := range recs {
		views[i] = viewRecord(r)
	}
	if !p.stream {
		return p.out.print(views, nil)
	}
	for _, v := range views {
		if err := p.out.next(v); err != nil {
			return err
		}
	}
	return nil
}

func colorOf(what string) string {
	switch what {
	case "PUT":
		return green
	case "DELETE", "UNREADABLE":
		return red
	case "OVERLAY", "REMOVE", "SEGMENT":
		return yellow
	}
	return faint
}
