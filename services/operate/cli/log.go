package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
)

// logOptions say which records are shown.
type logOptions struct {
	tail         int
	follow       bool
	from, to     string // positions
	since, until string // times
	heartbeats   bool

	only    keyPattern
	key     string
	keyIs   *keyPattern // of key
	batches []string
	ops     []string
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
each kind of filter. With --from or --since, everything from there on is shown,
and --tail does not count.

Times are written as "14:02", "yesterday 14:02", "10m ago", "2026-11-21 14:02" or
as RFC 3339; they are the server's.`,
		Example: `  meshlog log --data data/
  meshlog log --data data/ --follow --kind VirtualService
  meshlog log --data data/ --since 14:00 --until 14:05
  meshlog log --data data/ --key VirtualService/demo/shop -n 5 -o yaml
  meshlog log --archive mesh.archive --from 120 --to 140 --op put,delete`,
	}
	t := pastFlags(cmd)
	format := outputFlag(cmd)
	f := cmd.Flags()
	f.IntVarP(&o.tail, "tail", "n", 20, "how many of the newest matching records; -1 for all")
	f.BoolVarP(&o.follow, "follow", "f", false, "go on with what comes")
	f.StringVar(&o.from, "from", "", "first `position`: SEQ or EPOCH.SEQ")
	f.StringVar(&o.to, "to", "", "last `position`")
	f.StringVar(&o.since, "since", "", "only what came at this `time` or later")
	f.StringVar(&o.until, "until", "", "only what came before this `time`")
	f.BoolVar(&o.heartbeats, "heartbeats", false, "show heartbeats too")
	f.StringVar(&o.key, "key", "", "only this `object`: KIND/NAMESPACE/NAME")
	f.StringSliceVar(&o.batches, "batch", nil, "only records of this `batch`; -o json shows its id")
	f.StringSliceVar(&o.ops, "op", nil, "only records of this `sort`: put, delete, begin, alive, overlay, remove, segment, unreadable")
	o.only.flags(cmd)
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
		if o.follow && !p.Live {
			return usage("--follow: nothing is added to %s any more", p.Name)
		}
		return showLog(cmd.Context(), p.Log, o, out)
	}
	return cmd
}

// check says what is wrong with the options, and reads them.
func (o *logOptions) check() (err error) {
	switch {
	case o.follow && (o.to != "" || o.until != ""):
		return usage("--follow and --to or --until: what comes has no end; give one of them")
	case o.from != "" && o.since != "":
		return usage("--from and --since: give one of them")
	case o.to != "" && o.until != "":
		return usage("--to and --until: give one of them")
	}
	for _, op := range o.ops {
		if !slices.Contains(ops, strings.ToLower(op)) {
			return usage("--op %q: want one of %s", op, strings.Join(ops, ", "))
		}
	}
	if o.key != "" {
		o.keyIs, err = parseKey(o.key)
	}
	return err
}

// ops are the sorts of records, as summary and viewRecord call them.
var ops = []string{"put", "delete", "begin", "alive", "overlay", "remove", "segment", "unreadable"}

// stretch is from where to where the log is shown; first is 0 where only its
// newest records are asked for.
func (o *logOptions) stretch(ctx context.Context, log events.Reader, bounds events.Bounds, now time.Time) (first, last uint64, err error) {
	if first, err = position("--from", o.from, 0); err != nil {
		return 0, 0, err
	}
	if last, err = position("--to", o.to, bounds.Last); err != nil {
		return 0, 0, err
	}
	if o.from != "" && first < bounds.First {
		return 0, 0, notFound("--from %s: the log begins at %d", o.from, bounds.First)
	}
	if o.since != "" {
		if first, err = timeAt(ctx, log, "--since", o.since, now); err != nil {
			return 0, 0, err
		}
	}
	if o.until != "" {
		if last, err = timeAt(ctx, log, "--until", o.until, now); err != nil {
			return 0, 0, err
		}
		last--
	}
	return first, min(last, bounds.Last), nil
}

// timeAt is the first record at a time or later.
func timeAt(ctx context.Context, log events.Reader, flag, s string, now time.Time) (uint64, error) {
	t, err := parseWhen(s, now)
	if err != nil {
		return 0, usage("%s %w", flag, err)
	}
	return seqAt(ctx, log, t)
}

// showLog prints what there is, and then, if it is to follow, what comes.
func showLog(ctx context.Context, log events.Reader, o logOptions, out *output) error {
	if err := o.check(); err != nil {
		return err
	}
	bounds, err := log.Bounds(ctx)
	if err != nil {
		return err
	}
	from, last, err := o.stretch(ctx, log, bounds, time.Now())
	if err != nil {
		return err
	}
	p := &logPrinter{out: out, stream: o.follow}
	var recs []events.Record
	if from != 0 {
		recs, err = read(ctx, log, from, last, o.matches)
	} else {
		recs, err = readTail(ctx, log, bounds.First, last, o)
	}
	if err != nil {
		return err
	}
	if len(recs) == 0 && !o.follow && out.format == "table" {
		return nothingOnLog(bounds, out)
	}
	if err := p.print(recs); err != nil || !o.follow {
		return err
	}
	return follow(ctx, log, max(bounds.Last, from-min(1, from)), func(recs []events.Record) error {
		return p.print(slices.DeleteFunc(recs, func(r events.Record) bool { return !o.matches(r) }))
	})
}

// nothingOnLog says that no record matches, and how far the log goes.
func nothingOnLog(b events.Bounds, out *output) error {
	if b.Last < b.First {
		return out.line("The log is empty: no source has said anything yet.")
	}
	return out.line("No record matches. The log goes from %d to %d; with fewer filters, or with -n -1, there is more.", b.First, b.Last)
}

// position reads SEQ or EPOCH.SEQ.
func position(flag, s string, otherwise uint64) (uint64, error) {
	if s == "" {
		return otherwise, nil
	}
	if p, err := ident.ParsePosition(s); err == nil {
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
	var key ident.Key
	var shard ident.Shard
	batch := ""
	switch b := r.Event.Body.(type) {
	case *events.Object:
		key, batch = b.Key, b.Batch.ID
		shard = key.Shard()
	case *events.Begin:
		shard = b.Shard
	case *events.Alive:
		shard = b.Shard
		if !o.heartbeats && !slices.Contains(o.ops, "alive") && b.Listed.Len() == 0 && !b.Partial {
			return false
		}
	}
	if len(o.ops) > 0 {
		what, _, _, _ := summary(r)
		if !among(o.ops, what) {
			return false
		}
	}
	k := &o.only
	return among(k.kinds, key.Kind) && among(k.namespaces, key.Namespace) && among(k.names, key.Name) &&
		k.matchesShard(shard) && among(o.batches, batch) && (o.keyIs == nil || key != ident.Key{} && o.keyIs.matches(key))
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
