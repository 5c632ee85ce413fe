package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/draft"
	"meshlog.dev/services/operate/past"
)

// instanceFlag binds the flag that names the source.
func instanceFlag(f *pflag.FlagSet) *string {
	return f.String("instance", "default", "`name` of the source: objects belong to api/NAME")
}

// options are the flags of commands that change objects.
type options struct {
	dryRun  bool
	wait    string // share of the connected proxies; empty: do not wait for them
	timeout time.Duration
}

func (o *options) flags(f *pflag.FlagSet) {
	f.BoolVar(&o.dryRun, "dry-run", false, "show what would change, and write nothing")
	f.StringVar(&o.wait, "wait", "", "wait until this `percent` of the connected proxies have applied it")
	f.DurationVar(&o.timeout, "timeout", 30*time.Second, "how long to wait for a version with the change, and for the proxies")
}

// quota returns the share of proxies to wait for, if any.
func (o *options) quota() (command.Quota, error) {
	if o.wait == "" {
		return command.Quota{}, nil
	}
	q, err := command.ParseQuota(strings.TrimSuffix(o.wait, "%") + "%")
	if err != nil {
		err = command.Usage("--wait %q: want a share of the proxies such as 95%%", o.wait)
	}
	return q, err
}

// attempts is how often a change is tried that another writer overtakes (API-2).
const attempts = 5

// job changes objects of a source.
type job struct {
	options
	env   *command.Env
	quota command.Quota
	shard ident.Shard
	items []*draft.Item
	// deletes: the items are to be deleted.
	deletes bool
	// silence is after how long another apply counts as interrupted.
	silence time.Duration

	log   command.EventLog
	past  *past.Past
	fleet *bus.Fleet
	view  view
	held  map[string]bool // the holds before the change
	lost  string          // what was printed about a lost log
}

func (j *job) open(ctx context.Context) (err error) {
	if j.quota, err = j.options.quota(); err != nil {
		return err
	}
	log, err := j.env.Log(ctx)
	if err != nil {
		return err
	}
	chain, err := j.env.Chain(ctx)
	if err != nil {
		return err
	}
	j.past = &past.Past{Name: "the mesh", Log: log, Versions: chain, Blobs: chain, Live: true}
	if j.log, err = j.env.OperatorLog(ctx); err != nil {
		return err
	}
	j.fleet, err = j.env.Fleet()
	return err
}

// run makes the change, and prints what it did. Its error says what it did not.
func (j *job) run(ctx context.Context, problems []problem.Diagnostic) error {
	j.view = view{Source: j.shard.Source, Instance: j.shard.Instance, Objects: []objectView{}, DryRun: j.dryRun}
	j.view.add(problems)
	var err error
	if draft.Failed(problems) {
		err = draft.ErrNothing(problems, j.done())
	} else if err = j.open(ctx); err == nil {
		err = j.change(ctx, problems)
	}
	if j.view.failed = err != nil && j.view.Position.IsZero(); j.view.failed {
		j.view.Objects = []objectView{} // nothing happened to them
	}
	if !j.view.failed || len(j.view.Problems) > 0 {
		j.env.Print(j.view, func() { j.view.show(j.env.Output) })
	}
	return err
}

func (j *job) done() string {
	if j.deletes {
		return "deleted"
	}
	return "applied"
}

func (j *job) change(ctx context.Context, problems []problem.Diagnostic) error {
	for range attempts {
		seq, err := j.attempt(ctx, problems)
		switch {
		case errors.Is(err, events.ErrConflict):
			continue
		case err != nil || seq == 0:
			return err
		}
		return j.follow(ctx, seq)
	}
	return fmt.Errorf("%s: other applies were faster %d times; nothing was %s, try again", j.shard, attempts, j.done())
}

// attempt makes the change once. Seq is 0 if there is nothing to write.
func (j *job) attempt(ctx context.Context, problems []problem.Diagnostic) (seq uint64, err error) {
	if !j.dryRun {
		err := awaitEnd(ctx, j.log, j.shard, j.silence, func() {
			fmt.Fprintf(j.env.Stderr, "Another apply is writing to %s; waiting for its end.\n", j.shard)
		})
		if err != nil {
			return 0, err
		}
	}
	progress := j.env.Progress("read")
	s, err := readShard(ctx, j.past, j.shard, progress.Show)
	progress.Done()
	if err != nil {
		return 0, err
	}
	if err := j.sayLost(ctx, s); err != nil {
		return 0, err
	}
	c := draft.NewChange(s.Shard, j.items, j.deletes)
	if !draft.Failed(c.Problems) {
		if err := c.Judge(s.Shard); err != nil {
			return 0, err
		}
	}
	j.view.take(c, j.dryRun)
	j.view.Problems = nil
	j.view.add(slices.Concat(problems, c.Problems, c.Others))
	if draft.Failed(c.Problems) {
		return 0, draft.ErrNothing(c.Problems, j.done())
	}
	if j.deletes && len(c.Steps) == 0 {
		return 0, notThere(j.items)
	}
	writes := c.Writes()
	if j.dryRun || len(writes) == 0 {
		return 0, nil
	}
	if j.deletes {
		if err := j.noteHolds(ctx); err != nil {
			return 0, err
		}
	}
	return s.write(ctx, j.log, writes)
}

// sayLost says once what was lost with the log.
func (j *job) sayLost(ctx context.Context, s *shard) error {
	lost, err := s.sinceLoss(ctx, j.log)
	if lost != j.lost && lost != "" {
		fmt.Fprintln(j.env.Stderr, lost)
	}
	j.lost = lost
	return err
}

// follow waits until the change is published and, if asked to, applied by proxies.
func (j *job) follow(ctx context.Context, seq uint64) error {
	limited, cancel := context.WithTimeout(ctx, j.timeout)
	defer cancel()
	at, err := command.EpochOf(limited, j.log, seq)
	if err != nil {
		return fmt.Errorf("%s on the log with record %d, but %w", j.done(), seq, err)
	}
	j.view.Position = at
	w := &command.Wait{Fleet: j.fleet, Position: at, Quota: j.quota}
	err = w.Run(limited)
	if j.view.Version = w.Published; w.Published.IsZero() {
		return fmt.Errorf("%s on the log at %s, but no version shows it yet; /readyz of the builder says what it waits for: %w", j.done(), at, err)
	}
	if j.deletes {
		if err := j.approve(limited); err != nil {
			return err
		}
	}
	if j.wait == "" {
		return nil
	}
	if j.view.Applied, j.view.Streams = w.Count(); err != nil {
		return fmt.Errorf("%s in version %s, but only %d of %s have applied it after %s, and %s%% are wanted; `meshlog wait %s` says why: %w",
			j.done(), w.Published, j.view.Applied, proxies(j.view.Streams), j.timeout, strings.TrimSuffix(j.wait, "%"), w.Published, err)
	}
	return nil
}

func proxies(n uint32) string { return command.Plural(int(n), "proxy", "proxies") }

// noteHolds notes what the guard holds back of the source before the change.
func (j *job) noteHolds(ctx context.Context) error {
	holds, err := j.holds(ctx)
	j.held = map[string]bool{}
	for _, h := range holds {
		j.held[h.GetId()] = true
	}
	return err
}

func (j *job) holds(ctx context.Context) (mine []*reportv1.Hold, err error) {
	chain, err := j.env.Chain(ctx)
	if err != nil {
		return nil, err
	}
	head, err := command.FetchHead(ctx, chain)
	if err != nil {
		return nil, err
	}
	holds, _, err := command.HeldBack(head.Snapshot)
	for _, h := range holds {
		if h.GetSource() == j.shard.Source && h.GetInstance() == j.shard.Instance {
			mine = append(mine, h)
		}
	}
	return mine, err
}

// approve approves the hold that the guard placed because of this change: the operator
// has named each object. A hold with other objects stays.
func (j *job) approve(ctx context.Context) error {
	holds, err := j.holds(ctx)
	if err != nil {
		return err
	}
	for _, h := range holds {
		switch {
		case j.held[h.GetId()]:
		case int(h.GetKeys()) > len(j.view.Objects):
			j.view.Held = append(j.view.Held, h.GetId())
		default:
			_, version, err := command.Approve(ctx, j.log, j.fleet, h.GetId(), h.GetParts())
			if err != nil {
				return err
			}
			j.view.Approved, j.view.Version = append(j.view.Approved, h.GetId()), version
		}
	}
	return nil
}
