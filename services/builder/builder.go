package builder

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/failpoint"
	"meshlog.dev/store"
)

// How often what, and how much.
const (
	tickEvery    = time.Second
	saveEvery    = 10 * time.Second // the fold is filed without a version
	retryFirst   = 50 * time.Millisecond
	retryMost    = 2 * time.Second
	maxBacklog   = 100_000 // records that a standby keeps before it stops reading
	consumerName = "builder-"
)

// Options are what a Builder needs beside its Machine's Config.
type Options struct {
	Config
	Holdoff Holdoff // DefaultHoldoff if zero
	// Lease says true when this builder has become the leader, false when it
	// no longer is.
	Lease <-chan bool
	// Resign gives the lease up, because this builder's file takes nothing;
	// nil: it never does.
	Resign func()
	// Ticks are the leader's, as heard on the bus.
	Ticks <-chan *reportv1.Tick
	// Mismatches are versions that frontends have and the chain has not.
	Mismatches <-chan ident.Position
	// Reports are the frontends'; each is to be taken.
	Reports <-chan *reportv1.FrontendReport
	// BlobsLost are epochs under which the bus has lost its blobs.
	BlobsLost <-chan uint64
	// Metrics are NewMetrics' if nil.
	Metrics *Metrics
	// Changed is called after each version and each change of leadership,
	// from the builder's goroutine; it must not block.
	Changed func()
}

// Builder is a Machine with goroutines, clock and select.
type Builder struct {
	o       Options
	asks    chan digestAsk
	wants   chan chan *reportv1.BuilderReport
	looks   chan chan FoldState
	report  atomic.Pointer[reportv1.BuilderReport]
	records chan reading
	heads   chan struct{}
	written chan Checkpointed

	// The rest belongs to the goroutine of own.
	m        *Machine
	readers  sync.WaitGroup     // of the connection
	hangUp   context.CancelFunc // ends the connection; nil: there is none
	retry    time.Duration
	acks     events.Follower
	acked    uint64
	first    time.Time // when the first, and the newest, pending change came
	last     time.Time
	pending  int            // how many there were then
	building time.Duration  // what the last build took
	tried    ident.Position // of the last commit
	triedAt  time.Time      // zero: a try is worth it
	news     bool           // a version, or a change of leadership, to be told
	resigned bool
}

type reading struct {
	recs []events.Record
	err  error
}

type digestAsk struct {
	shard   ident.Shard
	session string
	kinds   events.Kinds
	answer  chan *events.ShardDigests
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
	b := &Builder{o: o, asks: make(chan digestAsk), wants: make(chan chan *reportv1.BuilderReport), looks: make(chan chan FoldState), records: make(chan reading), heads: make(chan struct{}, 1), written: make(chan Checkpointed)}
	b.report.Store(&reportv1.BuilderReport{Builder: o.ID, Build: o.Build})
	return b
}

// reportWithin is how long a question waits for the Machine's goroutine, which
// may wait for the bus.
const reportWithin = 100 * time.Millisecond

// Report is everything the builder has to say: as of now or, while the builder
// is busy, as of the last time that somebody asked. Safe for concurrent use;
// the result must not be changed.
func (b *Builder) Report() *reportv1.BuilderReport {
	late := time.NewTimer(reportWithin)
	defer late.Stop()
	answer := make(chan *reportv1.BuilderReport, 1)
	select {
	case b.wants <- answer:
		r := <-answer
		b.report.Store(r)
		return r
	case <-late.C:
		return b.report.Load()
	}
}

// Digests answers a watcher; see Machine.Digests. Safe for concurrent use.
func (b *Builder) Digests(ctx context.Context, s ident.Shard, session string, kinds events.Kinds) (*events.ShardDigests, bool) {
	ask := digestAsk{s, session, kinds, make(chan *events.ShardDigests, 1)}
	select {
	case b.asks <- ask:
	case <-ctx.Done():
		return nil, false
	}
	select {
	case d := <-ask.answer:
		return d, d != nil
	case <-ctx.Done():
		return nil, false
	}
}

// Run builds until ctx is done. It returns an error only where nothing can be
// built at all.
func (b *Builder) Run(ctx context.Context) error {
	work, workCtx := errgroup.WithContext(ctx)
	if b.o.Checkpoints == nil {
		b.o.Checkpoints = &checkpointer{b: b, spawn: func(f func(context.Context)) {
			work.Go(func() error { f(workCtx); return nil })
		}}
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

// own is the goroutine that owns the Machine: one select, one thing at a time.
func (b *Builder) own(ctx context.Context) error {
	defer b.disconnect()
	connect := time.NewTimer(0)
	due := time.NewTimer(time.Hour)
	tick := time.NewTicker(tickEvery)
	save := time.NewTicker(saveEvery)
	defer tick.Stop()
	defer save.Stop()
	defer due.Stop()
	defer connect.Stop()
	for {
		records := b.records
		if b.m.Backlog() > maxBacklog {
			records = nil // the leader has published nothing for long: let the log keep them
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
		case <-b.heads: // the chain has a newer version: another builder's
			err = b.m.Head(ctx)
		case held := <-b.o.Lease: // the first thing a new leader does is fold what it kept
			b.m.Lead(held)
			b.triedAt, b.news = time.Time{}, true
			if b.hangUp == nil {
				connect.Reset(0)
			} else {
				err = b.m.Advance(ctx)
			}
		case t := <-b.o.Ticks: // the leader says how far the head is right
			b.m.StandsTo(store.VersionOf(t.GetHead()), t.GetPosition().GetSeq())
			if b.hangUp != nil { // else Connect comes first, however often this fails
				err = b.m.Advance(ctx)
			}
		case v := <-b.o.Mismatches: // a frontend has what the chain has not
			b.m.WantEpoch(v)
			b.triedAt = time.Time{}
		case epoch := <-b.o.BlobsLost: // the chain's versions have lost their contents
			b.m.BlobsLost(epoch)
			b.triedAt = time.Time{}
		case r := <-b.o.Reports: // what proxies reject may have to be put into quarantine
			if b.m.Heard(r); b.hangUp != nil {
				err = b.m.Quarantine(ctx)
			}
		case c := <-b.written: // a checkpoint is durable
			b.m.Checkpointed(c)
		case ask := <-b.asks: // a watcher lists
			ask.answer <- b.digests(ask)
		case <-save.C: // nothing published for a while: keep a restart short
			err = b.m.SaveFold(ctx)
		case <-tick.C:
			err = b.tick(ctx)
		case <-due.C: // quiet: publish
			err = b.commit(ctx)
		case answer := <-b.wants: // somebody asks how it is going
			answer <- b.m.Report()
		case answer := <-b.looks: // somebody looks at the debug page
			answer <- b.m.foldState()
		}
		if err == nil && b.hangUp != nil && b.m.Stale() {
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

// commit publishes, as far as there is a connection, and times the build.
func (b *Builder) commit(ctx context.Context) error {
	b.pending = 0
	if b.hangUp == nil {
		return nil
	}
	start := time.Now()
	b.tried, b.triedAt = b.m.Position(), start
	published, err := b.m.Commit(ctx)
	if published {
		b.building = time.Since(start)
		b.o.Metrics.committed(b.building)
		b.news = true
	}
	b.resign()
	return err
}

// resign gives the lease up once when the file takes nothing any more. Alone,
// this builder is leader again soon, and publishes on from memory.
func (b *Builder) resign() {
	failed := b.m.saveErr != nil
	if failed && !b.resigned && b.o.Resign != nil {
		b.o.Resign()
	}
	b.resigned = failed
}

// dueIn is how long until the next commit: by the holdoff while something is
// pending, at once where a commit would get on, else a second. A commit that
// did not get on at a position (it put a segment or a hold on the log, say) is
// not tried again there before that second is over.
func (b *Builder) dueIn() time.Duration {
	if b.hangUp == nil || b.m.Backlog() > 0 {
		return tickEvery
	}
	if !b.triedAt.IsZero() && b.tried == b.m.Position() {
		return max(0, time.Until(b.triedAt.Add(tickEvery)))
	}
	n, only, some := b.m.Pending()
	if b.m.Speaks() {
		return 0
	}
	if n == 0 {
		b.pending = 0
		if b.m.GetsOn() {
			return 0
		}
		return tickEvery
	}
	now := time.Now()
	if b.pending == 0 {
		b.first = now
	}
	if n != b.pending {
		b.last, b.pending = now, n
	}
	return max(0, b.o.Holdoff.due(b.first, b.last, only, some, b.building).Sub(now))
}

func (b *Builder) tick(ctx context.Context) error {
	if b.hangUp == nil {
		return nil
	}
	b.acknowledge(ctx)
	return b.m.Tick(ctx)
}

func (b *Builder) digests(a digestAsk) *events.ShardDigests {
	d, _ := b.m.Digests(a.shard, a.session, a.kinds)
	return d
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
	b.hangUp, b.acks, b.acked = hangUp, recs, 0
	b.readers.Go(func() { b.readLog(readCtx, recs) })
	have, root := b.m.HeadVersion()
	b.readers.Go(func() { b.readChain(readCtx, heads, have, root) })
	return nil
}

// readLog hands on what the log has, until the connection ends.
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

// readChain tells of newer versions, until the connection ends.
func (b *Builder) readChain(ctx context.Context, f store.Follower, have ident.Position, root ident.Hash) {
	for {
		links, err := f.Next(ctx, have, root)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			// The chain is not what it was: Connect finds out what that means.
			select {
			case b.records <- reading{err: fmt.Errorf("follow the version chain: %w", err)}:
			case <-ctx.Done():
			}
			return
		}
		newest := links[len(links)-1].Manifest
		have, root = store.VersionOf(newest.GetVersion()), store.RootOf(newest)
		select {
		case b.heads <- struct{}{}:
		default: // one is waiting already
		}
	}
}

// lost ends a connection that failed; the next attempt waits a little longer
// each time.
func (b *Builder) lost(err error) {
	if !errors.Is(err, ErrWait) || b.retry == 0 {
		b.o.Logger.Warn("builder: connecting again", "error", err)
	}
	b.disconnect()
	b.retry = min(max(2*b.retry, retryFirst), retryMost)
}

func (b *Builder) disconnect() {
	if b.hangUp == nil {
		return
	}
	b.hangUp()
	b.readers.Wait()
	b.acks.Close()
	b.hangUp = nil
}

// acknowledge tells the log how far the file goes. It is for operators to see,
// and costs the server a synced write: the cursor that counts is in the file.
func (b *Builder) acknowledge(ctx context.Context) {
	at := b.m.Filed().Seq
	if b.hangUp == nil || at <= b.acked || b.m.Filed().Epoch != b.m.Position().Epoch {
		return
	}
	failpoint.At(failpoint.BuilderAcknowledge)
	if err := b.acks.Ack(ctx, at); err == nil {
		failpoint.At(failpoint.BuilderAcknowledged)
		b.acked = at
	}
}

// close files the fold, so that the next start reads nothing twice.
func (b *Builder) close(ctx context.Context) error {
	b.disconnect()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return errors.Join(b.m.SaveFold(grace), ctx.Err())
}
