package builder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/failpoint"
	"meshlog.dev/store"
)

const (
	tickEvery    = time.Second
	saveEvery    = 10 // ticks; the fold is then written without a version
	retryFirst   = 50 * time.Millisecond
	retryMost    = 2 * time.Second
	maxBacklog   = 100_000 // records that a standby keeps before it stops reading
	consumerName = "builder-"
)

// Options configure a Builder and its Machine.
type Options struct {
	Config
	Holdoff Holdoff // DefaultHoldoff if zero
	// Lease yields true when this builder has become the leader, false when it
	// no longer is.
	Lease <-chan bool
	// Resign gives up the lease. The Builder calls it if its file cannot be
	// written; nil: the builder keeps the lease.
	Resign func()
	// Ticks yields the leader's ticks, as received from the bus.
	Ticks <-chan *reportv1.Tick
	// Metrics defaults to NewMetrics().
	Metrics *Metrics
	// Changed is called after each version and each change of leadership,
	// from the builder's goroutine; it must not block.
	Changed func()
	// Offer tells the fetcher of keys the token issuers that the head names (POL-12);
	// nil: they are told to no process.
	Offer func(*reportv1.Issuers) error
	// Extend, if not nil, adds to each report what only the process knows. It must
	// be safe for concurrent use.
	Extend func(*reportv1.BuilderReport)
}

// Builder is a Machine with goroutines, clock and select.
type Builder struct {
	o       Options
	offered offered
	calls   chan func(context.Context) error // own runs them
	report  atomic.Pointer[reportv1.BuilderReport]
	away    atomic.Pointer[away] // nil: connected
	records chan reading

	// Only the goroutine that runs own uses the fields below.
	m        *Machine
	conn     *connection // nil: there is none
	retry    time.Duration
	pace     pace
	ticks    int
	news     bool // there is a version, or a change of leadership, to call Changed for
	resigned bool
}

// away is since when there is no connection, and why.
type away struct {
	since  time.Time
	reason string
}

// connection reads log and chain until it is hung up.
type connection struct {
	hangUp  context.CancelFunc
	readers sync.WaitGroup
	acks    events.Follower
	acked   uint64
}

type reading struct {
	recs []events.Record
	err  error
}

// New makes a Builder. It starts nothing.
func New(o Options) *Builder {
	if o.Holdoff == (Holdoff{}) {
		o.Holdoff = DefaultHoldoff()
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics()
	}
	if o.Changed == nil {
		o.Changed = func() {}
	}
	b := &Builder{o: o, calls: make(chan func(context.Context) error), records: make(chan reading)}
	b.report.Store(&reportv1.BuilderReport{Builder: o.ID, Build: o.Build})
	b.setAway("it has not connected yet")
	return b
}

// setAway notes why there is no connection; an empty reason: there is one.
func (b *Builder) setAway(reason string) {
	var now *away
	if reason != "" {
		now = &away{time.Now(), reason}
		if was := b.away.Load(); was != nil {
			now.since = was.since
		}
	}
	b.away.Store(now)
	b.o.Metrics.away.Store(now)
}

// call makes own run f, and returns once f has begun, or when ctx is done. An error of f ends the connection.
func (b *Builder) call(ctx context.Context, f func(context.Context) error) error {
	select {
	case b.calls <- f:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ask runs f in the goroutine of own and returns its result.
func ask[T any](ctx context.Context, b *Builder, f func(*Machine) T) (t T, err error) {
	answer := make(chan T, 1)
	if err := b.call(ctx, func(context.Context) error { answer <- f(b.m); return nil }); err != nil {
		return t, err
	}
	return <-answer, nil
}

// reportWithin is how long Report waits for the builder's goroutine, which may
// be waiting for the bus.
const reportWithin = 100 * time.Millisecond

// Report returns the state of the builder: as of now or, while the builder is
// busy, as of the last call that was answered; since when it is away is always as
// of now. Safe for concurrent use; the caller may set fields of the result, and
// must not change what they refer to.
func (b *Builder) Report() *reportv1.BuilderReport {
	ctx, cancel := context.WithTimeout(context.Background(), reportWithin)
	defer cancel()
	state, err := ask(ctx, b, (*Machine).Report)
	if err != nil {
		state = b.report.Load()
	}
	b.report.Store(state)
	r := new(reportv1.BuilderReport)
	state.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		r.ProtoReflect().Set(field, v)
		return true
	})
	r.Warnings = slices.Clone(r.GetWarnings())
	if away := b.away.Load(); away != nil {
		r.Away, r.AwayReason = timestamppb.New(away.since), away.reason
	}
	if b.o.Extend != nil {
		b.o.Extend(r)
	}
	return r
}

// Digests answers a watcher; see Machine.Digests. Safe for concurrent use.
func (b *Builder) Digests(ctx context.Context, s ident.Shard, session string, kinds events.Kinds) (*events.ShardDigests, bool) {
	d, err := ask(ctx, b, func(m *Machine) *events.ShardDigests {
		d, _ := m.Digests(s, session, kinds)
		return d
	})
	return d, err == nil && d != nil
}

// KnowsPod reports whether the newest content has a workload of that name and service
// account (CA-5). can is false unless this builder leads. Safe for concurrent use.
func (b *Builder) KnowsPod(ctx context.Context, namespace, name, account string) (known, can bool) {
	answer, err := ask(ctx, b, func(m *Machine) [2]bool {
		known, can := m.KnowsPod(namespace, name, account)
		return [2]bool{known, can}
	})
	return answer[0], err == nil && answer[1]
}

// Heard takes the report of a frontend: proxies may reject resources, or the
// frontend may have a version that the chain does not have. It waits for the
// builder's goroutine, until ctx is done. Safe for concurrent use.
func (b *Builder) Heard(ctx context.Context, r *reportv1.FrontendReport) error {
	return b.call(ctx, func(ctx context.Context) error {
		if mismatch := r.GetChainMismatch(); mismatch != nil {
			if root, err := store.HashFrom(mismatch.GetOwnRoot()); err == nil {
				b.m.Claim(r.GetFrontend(), store.VersionOf(mismatch.GetOwn()), root)
			}
			b.pace.again()
		}
		if b.m.Heard(r); b.conn == nil {
			return nil
		}
		return b.m.Quarantine(ctx)
	})
}

// BlobsLost reports that the bus has lost the blobs of an epoch; see
// Machine.BlobsLost. It waits for the builder's goroutine, until ctx is done.
// Safe for concurrent use.
func (b *Builder) BlobsLost(ctx context.Context, epoch uint64) error {
	return b.call(ctx, func(context.Context) error {
		b.m.BlobsLost(epoch)
		b.pace.again()
		return nil
	})
}

// Run builds until ctx is done. It returns another error only if it cannot start.
func (b *Builder) Run(ctx context.Context) error {
	work, workCtx := errgroup.WithContext(ctx)
	b.o.StartCheckpoint = func(write WriteCheckpoint) {
		work.Go(func() error {
			done := write(workCtx, chunks{b.o.Feed})
			failpoint.At(failpoint.BuilderCheckpointed)
			return b.call(workCtx, func(context.Context) error { b.m.Checkpointed(done); return nil })
		})
	}
	m, err := Open(ctx, b.o.Config)
	if err != nil {
		return err
	}
	b.m = m
	work.Go(func() error { return b.own(workCtx) })
	if err := work.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return ctx.Err()
}

// own is the goroutine that owns the Machine: one select, one step at a time.
func (b *Builder) own(ctx context.Context) error {
	defer b.disconnect()
	connect := time.NewTimer(0)
	due := time.NewTimer(time.Hour)
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	defer due.Stop()
	defer connect.Stop()
	for {
		records := b.records
		if b.m.Backlog() > maxBacklog {
			records = nil // leave the records on the log until the leader publishes
		}
		var err error
		select {
		case <-ctx.Done():
			return b.close(ctx)
		case <-connect.C: // no connection: compare with log and chain, then read
			err = b.connect(ctx)
		case r := <-records: // the log has more, or reading ended
			if err = r.err; err == nil {
				if err = b.m.Read(ctx, r.recs); err == nil {
					b.retry = 0
				}
			}
		case held := <-b.o.Lease: // a new leader first folds the records that it kept
			b.m.Lead(held)
			b.pace.again()
			b.news = true
			if b.conn == nil {
				connect.Reset(0)
			} else {
				err = b.m.Advance(ctx)
			}
		case t := <-b.o.Ticks: // the leader says up to which record the head is right
			b.m.StandsTo(store.VersionOf(t.GetHead()), t.GetPosition().GetSeq())
			if b.conn != nil { // else Connect comes first, however often it fails
				err = b.m.Advance(ctx)
			}
		case f := <-b.calls: // a newer version, or a request or report of another process
			err = f(ctx)
		case <-tick.C:
			err = b.tick(ctx)
		case <-due.C: // quiet: publish
			err = b.commit(ctx)
		}
		if err == nil && b.conn != nil && b.m.Stale() {
			err = events.ErrReconnected
		}
		if err != nil && ctx.Err() == nil {
			b.lost(err)
			connect.Reset(b.retry)
		}
		due.Reset(b.dueIn())
		b.o.Metrics.observe(b.m)
		if b.news {
			b.news = false
			b.o.Changed()
		}
	}
}

// commit publishes if there is a connection, and times the build.
func (b *Builder) commit(ctx context.Context) error {
	b.pace.pending = 0
	if b.conn == nil {
		return nil
	}
	start := time.Now()
	b.pace.tried, b.pace.triedAt = b.m.Position(), start
	published, err := b.m.Commit(ctx)
	if published {
		b.pace.building = time.Since(start)
		b.o.Metrics.committed(b.pace.building)
		b.news = true
	}
	b.resign()
	return err
}

// resign gives up the lease, once, when the file can no longer be written. If there
// is no other builder, this one is leader again soon, and publishes from memory.
func (b *Builder) resign() {
	failed := b.m.chain.file.err != nil
	if failed && !b.resigned && b.o.Resign != nil {
		b.o.Resign()
	}
	b.resigned = failed
}

// dueIn returns how long until the next commit: by the holdoff while a change is
// pending, at once if a commit is urgent, else a second.
func (b *Builder) dueIn() time.Duration {
	if b.conn == nil || b.m.Backlog() > 0 {
		return tickEvery
	}
	return b.pace.dueIn(b.m, b.o.Holdoff)
}

func (b *Builder) tick(ctx context.Context) error {
	// With a newer fold in the file, a restart reads less of the log.
	if b.ticks++; b.ticks%saveEvery == 0 {
		if err := b.m.SaveFold(ctx); err != nil {
			return err
		}
	}
	if b.conn == nil {
		return nil
	}
	b.acknowledge(ctx)
	if err := b.m.Tick(ctx); err != nil {
		return err
	}
	return b.offer()
}

// connect compares with the log and the chain and starts reading both.
func (b *Builder) connect(ctx context.Context) error {
	b.disconnect()
	after, err := b.m.Connect(ctx)
	if err != nil {
		return err
	}
	recs, err := b.o.Log.Follow(ctx, after, consumerName+b.o.ID)
	if err != nil {
		return fmt.Errorf("follow the log: %w", err)
	}
	heads, err := b.o.Feed.Follow(ctx)
	if err != nil {
		return errors.Join(fmt.Errorf("follow the version chain: %w", err), recs.Close())
	}
	readCtx, hangUp := context.WithCancel(ctx)
	b.conn = &connection{hangUp: hangUp, acks: recs}
	b.setAway("")
	b.conn.readers.Go(func() { b.readLog(readCtx, recs) })
	have, root := b.m.HeadVersion()
	b.conn.readers.Go(func() { b.readChain(readCtx, heads, have, root) })
	return nil
}

// readLog sends records of the log to own, until the connection ends.
func (b *Builder) readLog(ctx context.Context, f events.Follower) {
	for {
		recs, err := f.Next(ctx)
		select {
		case b.records <- reading{recs, err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// readChain makes own read the head when there are newer versions, until the
// connection ends.
func (b *Builder) readChain(ctx context.Context, f store.Follower, have ident.Position, root ident.Hash) {
	for {
		links, err := f.Next(ctx, have, root)
		read := b.m.Head
		if err != nil {
			// The chain has changed: Connect finds out how.
			read = func(context.Context) error { return fmt.Errorf("follow the version chain: %w", err) }
		}
		if b.call(ctx, read) != nil || err != nil {
			return
		}
		newest := links[len(links)-1].Manifest
		have, root = store.VersionOf(newest.GetVersion()), store.RootOf(newest)
	}
}

// lost ends a connection that failed. Each further attempt waits longer.
func (b *Builder) lost(err error) {
	if !errors.Is(err, ErrWait) || b.retry == 0 {
		b.o.Logger.Warn("builder: connecting again", "error", err)
	}
	b.disconnect()
	b.setAway(err.Error())
	b.retry = min(max(2*b.retry, retryFirst), retryMost)
}

func (b *Builder) disconnect() {
	if b.conn == nil {
		return
	}
	b.conn.hangUp()
	b.conn.readers.Wait()
	b.conn.acks.Close()
	b.conn = nil
}

// acknowledge acknowledges to the log the records that the file includes. This is
// only for operators: a restart continues from the cursor in the file. It costs
// the server a synced write.
func (b *Builder) acknowledge(ctx context.Context) {
	at := b.m.Filed()
	if at.Seq <= b.conn.acked || at.Epoch != b.m.Position().Epoch {
		return
	}
	failpoint.At(failpoint.BuilderAcknowledge)
	if err := b.conn.acks.Ack(ctx, at.Seq); err == nil {
		failpoint.At(failpoint.BuilderAcknowledged)
		b.conn.acked = at.Seq
	}
}

// close writes the fold to the file, so that the next start reads no record twice.
func (b *Builder) close(ctx context.Context) error {
	b.disconnect()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return errors.Join(b.m.SaveFold(grace), ctx.Err())
}
