package builder

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/internal/failpoint"
	"meshlog.dev/services/internal/tracing"
	"meshlog.dev/services/mesh/published"
	"meshlog.dev/store"
)

// How much of a version its manifest names; the rest is counted.
const (
	maxChanges     = 1000
	maxDiagnostics = 1000
)

// Commit publishes the position of the fold if the world there is worth a
// version; or does what has to come first, a segment or a hold, whose record
// then comes back by the log. A standby does nothing.
//
// The order is: fold (done) - publish, fenced - file - acknowledge (the
// caller). A version exists once the chain has it; the file never holds one
// that was not published.
func (m *Machine) Commit(ctx context.Context) (published bool, err error) {
	if !m.leader || len(m.ahead) > 0 {
		return false, nil
	}
	if say := m.mustSay(); say != nil {
		return false, say(ctx)
	}
	m.since.due = m.cfg.Now()
	if err := m.build(); err != nil {
		// Nothing was published: the version before it serves on.
		return false, nil
	}
	if m.waiting = m.waits(); len(m.waiting) > 0 || !m.worthAVersion() {
		return false, nil
	}
	before, err := m.contentOfHead(ctx)
	if err != nil {
		if err := m.unlessLost(err); err != nil {
			return false, err
		}
		// No delta leads on from there, and nothing says what would be lost.
		if err := m.bringWhole(ctx); err != nil {
			return false, err
		}
		return m.publish(ctx, store.Diff(nil, m.current()))
	}
	delta := store.Diff(before, m.current())
	if held, err := m.guard(ctx, before, delta); held || err != nil {
		return false, err
	}
	if m.head.Manifest != nil && m.head.Version().Epoch != m.fold.Position().Epoch {
		// What the chain lost may be what its head was made of.
		if err := m.bringWhole(ctx); err != nil {
			return false, err
		}
	}
	return m.publish(ctx, delta)
}

// bringWhole makes the next version bring its whole content along.
func (m *Machine) bringWhole(ctx context.Context) error {
	c, err := new(store.CheckpointWriter).Write(ctx, m.cfg.Feed, m.current(), m.fold.Position())
	m.ckpt.content = c
	return err
}

// mustSay is what has to be said on the log before anything is published: that
// this build speaks, or that an epoch begins of which the chain then knows.
func (m *Machine) mustSay() func(context.Context) error {
	epoch := func(reason string) func(context.Context) error {
		return func(ctx context.Context) error { return m.beginEpoch(ctx, reason, true) }
	}
	at, seg, head := m.fold.Position(), m.fold.Segment(), m.head
	switch {
	case at.Epoch == 0:
		return epoch("the log has none yet")
	case m.wantEpoch.Epoch >= at.Epoch:
		return epoch("a frontend has a version that is not on the chain")
	case m.blobless >= at.Epoch:
		return epoch("the bus has lost its blobs, and with them what versions are made of")
	case head.Manifest == nil && head.Seq > 0 && seg.VersionsSeq != head.Seq,
		head.Manifest == nil && head.Seq == 0 && (seg.VersionsSeq > 0 || m.stored.Version().Epoch == at.Epoch):
		return epoch("the versions expired or were lost")
	case seg.Build != m.cfg.Build,
		head.Manifest != nil && head.Manifest.GetBuild() != m.cfg.Build &&
			seg.Head != head.Version() && head.Version().Epoch >= at.Epoch:
		return m.beginSegment
	}
	return nil
}

// waits is for which sources nothing is published yet. Where no policy says
// which are required, an epoch's first version waits for all that are listing:
// a world that is known in part replaces none.
func (m *Machine) waits() []string {
	policy := m.world.Policy()
	waiting := m.fold.Waiting(policy)
	if len(policy.Required) == 0 && m.head.Version().Epoch != m.fold.Position().Epoch {
		waiting = append(waiting, m.fold.FirstListings()...)
	}
	return waiting
}

// Speaks says whether this builder has something to say on the log before
// anything is published.
func (m *Machine) Speaks() bool { return m.leader && len(m.ahead) == 0 && m.mustSay() != nil }

// GetsOn says whether a Commit would publish although no record changed
// anything: a source became SYNCED, the lease was won.
func (m *Machine) GetsOn() bool {
	return m.leader && len(m.ahead) == 0 && m.worthAVersion() && len(m.waits()) == 0
}

// build brings the world up to date with the content, and builds from it what
// frontends will build. It never leaves a world half changed.
func (m *Machine) build() (err error) {
	if m.unbuilt.records == 0 {
		return m.buildErr
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
		if m.buildErr = err; err != nil {
			m.stats.BuildErrors++
			m.log.Error("the world could not be built, the version before serves on", "position", m.fold.Position(), "error", err)
		}
	}()
	world, keys, err := m.world.Apply(m.unbuilt.change())
	if err != nil {
		return fmt.Errorf("world: %w", err)
	}
	problems, err := m.cfg.Gate.Build(world, keys)
	if err != nil {
		return fmt.Errorf("gate: %w", err)
	}
	m.world, m.problems, m.unbuilt = world, problems, unbuilt{}
	return nil
}

// worthAVersion says whether the head does not say it all; or has stood for so
// long that the chain, which forgets what is old, needs to hear it again.
func (m *Machine) worthAVersion() bool {
	head, at := m.head.Manifest, m.fold.Position()
	if head == nil {
		return true
	}
	if !m.head.Version().Less(at) {
		return false
	}
	// A head of the future was published before a clock stepped back.
	age := m.cfg.Now().Sub(head.GetPublishTime().AsTime()).Abs()
	return m.head.Version().Epoch != at.Epoch || head.GetBuild() != m.cfg.Build || store.RootOf(head) != m.current().Root() ||
		age >= CheckpointEvery(m.cfg.History)
}

// publish puts the version on the chain and then into the file.
func (m *Machine) publish(ctx context.Context, delta store.Delta) (bool, error) {
	man := m.manifest(delta)
	m.since.built = m.cfg.Now()
	span := m.trace(man)
	failpoint.At(failpoint.BuilderPublish)
	seq, err := m.cfg.Feed.Publish(ctx, store.Update{Manifest: man, Delta: delta}, m.head.Seq, m.feedGen)
	tracing.End(span, m.cfg.Now(), err)
	// A crash here, or a lost answer, leaves a version on the chain and not in
	// the file: whoever folds to its position compares and files it.
	switch {
	case errors.Is(err, store.ErrConflict):
		m.stats.Conflicts++
		return false, m.readHead(ctx)
	case errors.Is(err, store.ErrReconnected):
		return false, err
	case err != nil:
		if rerr := m.readHead(ctx); rerr != nil {
			return false, errors.Join(err, rerr)
		}
		if m.head.Version() != store.VersionOf(man.GetVersion()) {
			return false, fmt.Errorf("publish %s: %w", store.VersionOf(man.GetVersion()), err)
		}
	default:
		m.setHead(store.Head{Manifest: man, Seq: seq})
	}
	failpoint.At(failpoint.BuilderPublished)
	m.published(man)
	// From here on as after a restart: the fold stands where the head is.
	return true, m.compare(ctx)
}

// latency is how long the first of the changes in a version took from being
// seen, by its watcher's clock, until all had it; 0 where nothing changed.
func (m *Machine) latency(man *store.Manifest) time.Duration {
	if man.GetFirstObservedTime() == nil {
		return 0
	}
	return m.cfg.Now().Sub(man.GetFirstObservedTime().AsTime()).Round(100 * time.Microsecond)
}

func (m *Machine) published(man *store.Manifest) {
	m.stats.Versions++
	m.timing(man)
	m.ckpt.sent(man)
	m.log.Info("published", append(published.Attrs(man), "latency", m.latency(man))...)
	if m.cfg.Checkpoints != nil {
		m.ckpt.start(m.cfg.Checkpoints, m.head.Version(), m.current(), m.cfg.Now(), m.cfg.History)
	}
}

// persist brings the file to the head, where the fold stands at it: version,
// fold and cursor in one transaction.
func (m *Machine) persist(ctx context.Context) error {
	if !m.stored.Version().Less(m.head.Version()) {
		return nil
	}
	side, err := m.side(ctx)
	if err == nil {
		failpoint.At(failpoint.BuilderFile)
		err = m.cfg.Store.Commit(ctx, m.stored.Version(), store.Commit{
			Manifest: m.head.Manifest,
			Snapshot: m.current(),
			Delta:    store.Diff(m.stored.Snapshot, m.current()),
			Side:     side,
		})
	}
	// A crash here leaves the file whole, and records that are read again.
	if m.saved(err) {
		failpoint.At(failpoint.BuilderFiled)
		m.stored = store.Stored{Manifest: m.head.Manifest, Snapshot: m.current()}
	} else if latest, err := m.cfg.Store.Latest(ctx); err == nil {
		m.stored = latest // what failed may be there all the same
	}
	return ctx.Err()
}

// SaveFold puts the fold into the file between versions, so that a restart
// reads less of the log.
func (m *Machine) SaveFold(ctx context.Context) error {
	side, err := m.side(ctx)
	if err == nil && !side.IsEmpty() {
		err = m.cfg.Store.SaveSide(ctx, side)
	}
	m.saved(err)
	return ctx.Err()
}

// side is what changed in the fold since it was last filed.
func (m *Machine) side(ctx context.Context) (store.Delta, error) {
	c := m.fold.Checkpoint()
	d := store.Delta{Remove: c.Remove}
	for _, r := range c.Put {
		d.Put = append(d.Put, store.Row(r))
	}
	if !c.Reset {
		return d, nil
	}
	// A crash behind this leaves a file without a fold: the log is read anew.
	return d, m.cfg.Store.ClearSide(ctx)
}

// saved notes whether the file took what it was given. A builder whose file
// does not publishes on from memory; its lease is its owner's to give up.
func (m *Machine) saved(err error) bool {
	if err != nil {
		m.fold.Rewrite()
		if m.saveErr == nil {
			m.log.Error("the builder's file takes nothing, it goes on from memory", "error", err)
		}
	}
	m.saveErr = err
	if err == nil {
		m.filed = m.fold.Position()
	}
	return err == nil
}

// manifest says everything of the version at the fold's position.
func (m *Machine) manifest(delta store.Delta) *store.Manifest {
	hash, root := m.fold.RecordHash(), m.current().Root()
	man := &store.Manifest{
		Version:     store.VersionProto(m.fold.Position()),
		RecordHash:  hash[:],
		RecordTime:  timestamppb.New(m.fold.RecordTime()),
		Root:        root[:],
		Build:       m.cfg.Build,
		Watermark:   m.fold.Watermark(),
		ChangeCount: uint32(len(delta.Put) + len(delta.Remove)),
		PublishTime: timestamppb.New(m.cfg.Now()),
		Publisher:   m.cfg.ID,
	}
	if m.head.Manifest != nil {
		man.Previous, man.PreviousRoot = m.head.Manifest.GetVersion(), m.head.Manifest.GetRoot()
	}
	for _, r := range delta.Put[:min(len(delta.Put), maxChanges)] {
		man.Changes = append(man.Changes, &snapshotv1.KeyChange{Key: r.Key, Seq: m.causes[r.Key]})
	}
	for _, k := range delta.Remove[:min(len(delta.Remove), maxChanges-len(man.Changes))] {
		man.Changes = append(man.Changes, &snapshotv1.KeyChange{Key: k, Removed: true, Seq: m.causes[k]})
	}
	if !m.since.observed.IsZero() {
		man.FirstObservedTime = timestamppb.New(m.since.observed)
	}
	man.Diagnostics = m.diagnosticProtos(maxDiagnostics)
	m.ckpt.into(man)
	return man
}
