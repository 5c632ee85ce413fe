package faultsim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/builder"
	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

// builderProc is a builder.Machine with a driver. The driver does one ready case
// of Builder.own's select each turn, in any order.
type builderProc struct {
	proc
	writer proc // stands for the goroutine that writes checkpoints
	disk   *disk
	build  string
	lead   bool          // holds the lease
	skew   time.Duration // how far its clock is ahead

	// Inputs that the machine has not processed.
	ticks   []*reportv1.Tick
	wants   []*store.MismatchError
	reports []*reportv1.FrontendReport
	written []builder.Checkpointed

	// State of one life of the process.
	m         *builder.Machine // nil: not open
	log       *logPort
	told      bool // the machine knows about lead
	connected bool
	gen       uint64 // generation of the log at the last connection
	cursor    uint64
	read      []events.Record // read, not yet given to the machine
	chain     *memstore.ChainFollower
	have      ident.Position // the last link that chain reported
	root      ident.Hash
	news      bool // chain reported a link
	tried     ident.Position
	triedAt   time.Time
	tickedAt  time.Time
	write     builder.WriteCheckpoint // the checkpoint to write, or nil
}

// kept is how long builders keep history. It makes them write a checkpoint every
// 15 s.
const kept = time.Minute

func newBuilder(s *sim, name string) *builderProc {
	b := &builderProc{proc: proc{s: s, name: name}, writer: proc{s: s, name: name + "/checkpoints"}, disk: newDisk(), build: buildA}
	b.body, b.writer.body = b.run, b.checkpoint
	b.twin, b.writer.twin = &b.writer, &b.proc
	return b
}

func (b *builderProc) run() {
	defer func() { b.m = nil }()
	ctx := context.Background()
	b.log = &logPort{proc: &b.proc, read: map[uint64]ident.Hash{}}
	b.m, b.told, b.connected, b.ticks, b.wants = nil, false, false, nil, nil
	b.reports = nil
	b.tried, b.triedAt, b.tickedAt = ident.Position{}, time.Time{}, b.s.time()
	b.written, b.write = nil, nil
	m, err := builder.Open(ctx, builder.Config{
		ID: b.name, Build: b.build,
		Log: b.log, Feed: &feedPort{&b.proc}, Store: b.open(b.disk, b.build), Fleet: fleetPort{&b.proc},
		Judge: b.s.judge(b.build),
		Now:   func() time.Time { return b.s.time().Add(b.skew) }, NewID: b.newID, Logger: b.s.logger(b.name),
		StartCheckpoint: func(write builder.WriteCheckpoint) { b.write = write }, History: kept,
	})
	if err != nil {
		panic(fmt.Sprintf("%s does not open: %v", b.name, err))
	}
	b.m = m
	for {
		b.pause()
		err := b.turn(ctx)
		if err == nil && b.connected && m.Stale() {
			err = events.ErrReconnected
		}
		if err != nil {
			b.s.note("%s: %v", b.name, err)
			b.connected = false
		}
		b.s.sawRoot(b.build, m)
	}
}

// turn runs one of the ready cases.
func (b *builderProc) turn(ctx context.Context) error {
	var ready []func(context.Context) error
	when := func(is bool, do func(context.Context) error) {
		if is {
			ready = append(ready, do)
		}
	}
	now := b.s.time()
	when(!b.connected, b.connect)
	if b.connected {
		b.fetch()
		when(len(b.read) > 0, b.hand)
		b.poll()
		when(b.news, func(ctx context.Context) error { b.news = false; return b.m.Head(ctx) })
		when(now.Sub(b.tickedAt) >= time.Second, func(ctx context.Context) error { b.tickedAt = now; return b.m.Tick(ctx) })
		when(b.due(now), b.commit)
	}
	when(b.told != b.lead, b.lease)
	when(len(b.ticks) > 0, b.hear)
	when(len(b.wants) > 0, b.want)
	when(len(b.reports) > 0, b.opinions)
	when(len(b.written) > 0, func(context.Context) error {
		b.m.Checkpointed(b.written[0])
		b.written = b.written[1:]
		return nil
	})
	when(b.s.rnd.IntN(40) == 0, b.m.SaveFold)
	if len(ready) == 0 {
		return nil
	}
	return ready[b.s.rnd.IntN(len(ready))](ctx)
}

func (b *builderProc) connect(ctx context.Context) error {
	b.read, b.news = nil, false
	after, err := b.m.Connect(ctx)
	if err != nil {
		return err
	}
	b.connected, b.gen, b.cursor = true, b.s.log.Generation(), after
	b.chain = b.s.chain.Follower()
	b.have, b.root = b.m.HeadVersion()
	return nil
}

// fetch stands for the goroutine that reads the log. It may hold records that the
// log has since lost.
func (b *builderProc) fetch() {
	if len(b.read) > 0 || b.gen != b.s.log.Generation() {
		return
	}
	recs, err := b.s.log.ReadAfter(b.cursor, 1+b.s.rnd.IntN(6))
	if err != nil {
		b.s.note("%s reads the log: %v", b.name, err)
		b.connected = false
		return
	}
	if len(recs) > 0 {
		b.read, b.cursor = recs, recs[len(recs)-1].Seq
	}
}

func (b *builderProc) hand(ctx context.Context) error {
	recs := b.read
	b.read = nil
	for _, r := range recs {
		b.log.read[r.Seq] = r.Hash
	}
	return b.m.Read(ctx, recs)
}

// poll stands for the goroutine that follows the chain.
func (b *builderProc) poll() {
	links, ok, err := b.chain.Poll(b.have, b.root)
	if err != nil {
		b.s.note("%s: %v", b.name, err)
		b.connected = false
		return
	}
	if ok {
		newest := links[len(links)-1].Manifest
		b.have, b.root, b.news = store.VersionOf(newest.GetVersion()), store.RootOf(newest), true
	}
}

func (b *builderProc) lease(ctx context.Context) error {
	b.told = b.lead
	b.m.Lead(b.lead)
	b.tried = ident.Position{}
	return b.m.Advance(ctx)
}

func (b *builderProc) hear(ctx context.Context) error {
	t := b.ticks[0]
	b.ticks = b.ticks[1:]
	b.m.StandsTo(store.VersionOf(t.GetHead()), t.GetPosition().GetSeq())
	return b.m.Advance(ctx)
}

func (b *builderProc) want(context.Context) error {
	b.m.Claim("a frontend", b.wants[0].Have, b.wants[0].Root)
	b.wants = b.wants[1:]
	b.tried = ident.Position{}
	return nil
}

func (b *builderProc) opinions(ctx context.Context) error {
	b.m.Heard(b.reports[0])
	if b.reports = b.reports[1:]; !b.connected {
		return nil
	}
	return b.m.Quarantine(ctx)
}

// due is Builder.dueIn with a random holdoff.
func (b *builderProc) due(now time.Time) bool {
	if b.m.Backlog() > 0 || b.tried == b.m.Position() {
		return now.Sub(b.triedAt) >= time.Second
	}
	if records, _, _ := b.m.Pending(); records > 0 {
		return b.s.rnd.IntN(3) == 0
	}
	return b.m.Urgent() || now.Sub(b.triedAt) >= time.Second
}

func (b *builderProc) commit(ctx context.Context) error {
	b.tried, b.triedAt = b.m.Position(), b.s.time()
	_, err := b.m.Commit(ctx)
	if errors.Is(err, context.Canceled) {
		panic("sim: a context was cancelled, but no code of the simulation cancels one")
	}
	return err
}

// checkpoint stands for the goroutine that writes checkpoints.
func (b *builderProc) checkpoint() {
	for {
		b.writer.pause()
		if write := b.write; write != nil && b.m != nil {
			b.write = nil
			b.written = append(b.written, write(context.Background(), &feedPort{&b.writer}))
		}
	}
}
