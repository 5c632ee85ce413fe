package history

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
)

// logOptions select records.
type logOptions struct {
	tail         int
	follow       bool
	from, to     string // positions
	since, until string // times
	heartbeats   bool
	only         command.Objects
	key          string
	object       *command.Objects // of key
	batches, ops []string
	// verdicts finds out who has signed records; nil: it is not asked for.
	verdicts func(context.Context, []events.Record) (map[uint64]fold.Verdict, error)
}

// Log returns the command `log`.
func Log() *cobra.Command {
	cmd := &cobra.Command{
		Use: "log", Short: "Show the records of the event log", Args: command.Args(0, 0, ""),
		Long: `Show the records of the event log, the newest last: objects that sources published
(PUT, DELETE), sessions of watchers (BEGIN, ALIVE), holds and approvals (OVERLAY,
REMOVE), and the segments that builders began (SEGMENT).

Heartbeats, an ALIVE every ten seconds, are hidden unless --heartbeats is given. A
filter may be given several times; a record has to match each kind of filter once.
With --from or --since, every record from there on is shown, and --tail has no
effect.

Times are written as "14:02", "yesterday 14:02", "10m ago", "2026-11-21 14:02" or
in RFC 3339; they are times of the server.`,
		Example: `  meshlog log --data data/
  meshlog log --data data/ --follow --kind VirtualService
  meshlog log --data data/ --since 14:00 --until 14:05
  meshlog log --data data/ --key VirtualService/demo/shop -n 5 -o yaml
  meshlog log --archive mesh.archive --from 120 --to 140 --op put,delete`,
	}
	var o logOptions
	f := cmd.Flags()
	f.IntVarP(&o.tail, "tail", "n", 20, "how many of the newest matching records; -1 for all")
	f.BoolVarP(&o.follow, "follow", "f", false, "keep showing new records")
	f.StringVar(&o.from, "from", "", "first `position`: SEQ or EPOCH.SEQ")
	f.StringVar(&o.to, "to", "", "last `position`")
	f.StringVar(&o.since, "since", "", "only records of this `time` or later")
	f.StringVar(&o.until, "until", "", "only records before this `time`")
	f.BoolVar(&o.heartbeats, "heartbeats", false, "show heartbeats too")
	f.StringVar(&o.key, "key", "", "only this `object`: KIND/NAMESPACE/NAME")
	f.StringSliceVar(&o.batches, "batch", nil, "only records of this `batch`; -o json shows its id")
	f.StringSliceVar(&o.ops, "op", nil, "only records of this `sort`: "+strings.Join(ops, ", "))
	o.only.Flags(cmd)
	return command.Past(cmd, func(ctx context.Context, e *command.Env, _ []string) error {
		p, err := e.PastLog(ctx)
		if err != nil {
			return err
		}
		if o.follow && !p.Live {
			return command.Usage("--follow: %s gets no new records", p.Name)
		}
		o.verdicts = func(ctx context.Context, recs []events.Record) (map[uint64]fold.Verdict, error) {
			progress := e.Progress("read")
			defer progress.Done()
			return past.Verdicts(ctx, p, recs, progress.Show)
		}
		return showLog(ctx, p.Log, o, e.Output)
	})
}

// ops are the sorts of records, as past.What names them.
var ops = []string{"put", "delete", "begin", "alive", "overlay", "remove", "segment", "refused", "unreadable"}

// check validates the options and parses the key.
func (o *logOptions) check() (err error) {
	switch {
	case o.follow && (o.to != "" || o.until != ""):
		return command.Usage("--follow and --to or --until: new records have no end; give one of them")
	case o.from != "" && o.since != "":
		return command.Usage("--from and --since: give one of them")
	case o.to != "" && o.until != "":
		return command.Usage("--to and --until: give one of them")
	}
	for _, op := range o.ops {
		if !slices.Contains(ops, strings.ToLower(op)) {
			return command.Usage("--op %q: want one of %s", op, strings.Join(ops, ", "))
		}
	}
	if o.key != "" {
		o.object, err = command.ParseKey(o.key, command.Objects{})
	}
	return err
}

// stretch returns the first and the last record to read; first is 0 if only the
// newest records are wanted.
func (o *logOptions) stretch(ctx context.Context, log events.Reader, bounds events.Bounds) (first, last uint64, err error) {
	if o.since != "" {
		first, err = command.SeqAt(ctx, log, "--since", o.since)
	} else {
		first, err = command.ParseSeq("--from", o.from, 0)
	}
	if err != nil {
		return 0, 0, err
	}
	if o.from != "" && first < bounds.First {
		return 0, 0, command.NotFound("--from %s: the log begins at %d", o.from, bounds.First)
	}
	if o.until != "" {
		last, err = command.SeqAt(ctx, log, "--until", o.until)
		last-- // the last record before that time
	} else {
		last, err = command.ParseSeq("--to", o.to, bounds.Last)
	}
	if err != nil {
		return 0, 0, err
	}
	return first, min(last, bounds.Last), nil
}

// showLog prints the selected records and, with --follow, those that come later.
func showLog(ctx context.Context, log past.Log, o logOptions, out *command.Output) error {
	if err := o.check(); err != nil {
		return err
	}
	bounds, err := log.Bounds(ctx)
	if err != nil {
		return err
	}
	from, last, err := o.stretch(ctx, log, bounds)
	if err != nil {
		return err
	}
	var recs []events.Record
	if from != 0 {
		recs, err = read(ctx, log, from, last, o.match)
	} else {
		recs, err = readTail(ctx, log, bounds.First, last, o)
	}
	if err != nil {
		return err
	}
	p := &logPrinter{out: out, stream: o.follow, verdicts: o.verdicts}
	switch {
	case len(recs) > 0 || o.follow || !out.IsTable():
		p.print(ctx, recs)
	case bounds.Last < bounds.First:
		out.Line("The log is empty: no source has published yet.")
	default:
		out.Line("No record matches. The log goes from %d to %d; use fewer filters, or -n -1 to search all of it.", bounds.First, bounds.Last)
	}
	if !o.follow {
		return nil
	}
	return follow(ctx, log, max(bounds.Last, from-min(1, from)), func(recs []events.Record) error {
		p.print(ctx, slices.DeleteFunc(recs, func(r events.Record) bool { return !o.match(r) }))
		return out.Err()
	})
}

// readTail returns the newest records that match, oldest first. It reads longer
// and longer stretches of the log until it has enough.
func readTail(ctx context.Context, log past.Log, first, last uint64, o logOptions) ([]events.Record, error) {
	if o.tail < 0 {
		return read(ctx, log, first, last, o.match)
	}
	var found []events.Record
	for stretch := uint64(max(o.tail, 100)); last >= first && len(found) < o.tail; stretch *= 4 {
		from := first
		if last-first >= stretch {
			from = last - stretch + 1
		}
		recs, err := read(ctx, log, from, last, o.match)
		if err != nil {
			return nil, err
		}
		found = append(recs, found...)
		last = from - 1
	}
	return found[max(0, len(found)-o.tail):], nil
}

// read returns the records between two positions, inclusive, that match. It reads
// over any number of connections.
func read(ctx context.Context, log past.Log, from, to uint64, match func(events.Record) bool) ([]events.Record, error) {
	var found []events.Record
	for from <= to {
		for r, err := range past.Records(ctx, log, from, to) {
			if errors.Is(err, events.ErrReconnected) {
				break
			}
			if err != nil {
				return nil, err
			}
			if from = r.Seq + 1; match(r) {
				found = append(found, r)
			}
		}
	}
	return found, nil
}

// follow passes all records after one to handle, over any number of connections,
// until handle returns an error or ctx is done.
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

// match reports whether a record is selected.
func (o *logOptions) match(r events.Record) bool {
	var key ident.Key
	var shard ident.Shard
	batch := ""
	switch b := r.Event.Body.(type) {
	case *events.Object:
		key, shard, batch = b.Key, b.Key.Shard(), b.Batch.ID
	case *events.Begin:
		shard = b.Shard
	case *events.Alive:
		shard = b.Shard
		if !o.heartbeats && !slices.Contains(o.ops, "alive") && b.Listed.Len() == 0 && !b.Partial {
			return false
		}
	}
	return command.Among(o.ops, past.What(r)) && o.only.MatchName(key) && o.only.MatchShard(shard) && command.Among(o.batches, batch) &&
		(o.object == nil || key != ident.Key{} && o.object.Match(key))
}

// logPrinter prints records as they come.
type logPrinter struct {
	out    *command.Output
	stream bool
	table  command.Rows
	// verdicts checks the signatures of records, and returns the verdicts by record; nil:
	// signatures are not checked.
	verdicts func(context.Context, []events.Record) (map[uint64]fold.Verdict, error)
}

func (p *logPrinter) print(ctx context.Context, recs []events.Record) {
	var verdicts map[uint64]fold.Verdict
	if p.verdicts != nil {
		var err error
		if verdicts, err = p.verdicts(ctx, recs); err != nil && p.out.IsTable() {
			p.out.Notes([]string{fmt.Sprintf("the signatures of these records cannot be checked: %v", err)})
		}
	}
	p.table.Head = []string{"SEQ", "TIME", "WHAT", "OBJECT", "FROM", "BY"}
	views := make([]recordView, len(recs))
	for i, r := range recs {
		object, detail := summary(r)
		p.table.Add(r.Seq, r.Time, whatCell(past.What(r)), object, detail, past.Author(r.Event.Actor, verdicts[r.Seq]))
		views[i] = viewRecord(r)
		views[i].Operator, views[i].Void = verdicts[r.Seq].Operator, verdicts[r.Seq].Void
	}
	switch {
	case p.out.IsTable():
		p.out.Rows(&p.table)
	case p.stream:
		for _, v := range views {
			p.out.Next(v)
		}
	default:
		p.out.Print(views, nil)
	}
}
