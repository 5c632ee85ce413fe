package builder

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/builder/ledger"
	"meshlog.dev/services/internal/failpoint"
	"meshlog.dev/services/internal/tracing"
	"meshlog.dev/services/mesh/published"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/store"
)

// How many changes and diagnostics a manifest names; it counts the changes that
// it does not name.
const (
	maxChanges     = 1000
	maxDiagnostics = 1000
)

// chain reads the head of the version chain, and publishes the position of the
// ledger after it.
type chain struct {
	cfg    *Config
	stats  *stats
	ledger *ledger.Ledger
	file   file
	gen    uint64 // the connection in which the head was read

	head     store.Head
	content  store.Stored // of the head, once it was needed
	missing  missing
	standsTo uint64 // the head is the content of the log up to here: the leader's tick
	since    since
	timings  []*reportv1.StageTiming
	ckpt     checkpoints
	foreign  event // the last message behind a head that is no version
}

// readHead asks the chain for its head.
func (c *chain) readHead(ctx context.Context) error {
	h, err := c.cfg.Feed.Head(ctx)
	if err != nil {
		return fmt.Errorf("head of the version chain: %w", err)
	}
	c.setHead(h)
	return nil
}

func (c *chain) setHead(h store.Head) {
	if h.Version() != c.head.Version() {
		c.standsTo = 0
	}
	c.passed(c.head.Foreign, h.Foreign)
	c.head = h
}

// passed reports messages behind the head that are no versions (BUS-4). was are
// those that were reported before.
func (c *chain) passed(was, is *store.ForeignError) {
	if is == nil || was != nil && was.Seq == is.Seq {
		return
	}
	c.stats.Foreign += uint64(is.Messages)
	if was != nil && was.Messages < is.Messages {
		c.stats.Foreign -= uint64(was.Messages)
	}
	c.foreign = event{c.cfg.Now(), fmt.Sprintf("%v; it was passed over, and nothing that is served has changed. A client that is no builder can write to the version chain: correct the permissions of the bus (`meshlog bus-auth`), and replace the keys that it may have", is)}
	c.cfg.Logger.Error("the newest messages of the version chain are no versions; they are passed over, and the next version follows the last good one",
		"messages", is.Messages, "newest", is.Seq, "reason", is.Reason, "head", c.head.Version())
}

// holdsTo reports whether the head is known to be right for the log up to seq,
// or whether there is no head.
func (c *chain) holdsTo(seq uint64) bool {
	return c.head.Manifest == nil || seq <= max(c.head.Version().Seq, c.standsTo)
}

// reached notes that the ledger has come to the head with the same content.
func (c *chain) reached() {
	c.content = store.Stored{Manifest: c.head.Manifest, Snapshot: c.ledger.Content()}
	c.since = since{}
}

// waits returns the sources for which the next version waits. If no policy
// requires sources, an epoch's first version waits for all that are listing: a
// partial world must not replace a complete one.
func (c *chain) waits(policy world.Policy) []string {
	waiting := c.ledger.Fold().Waiting(policy)
	if len(policy.Required) == 0 && c.head.Version().Epoch != c.ledger.Position().Epoch {
		waiting = append(waiting, c.ledger.Fold().FirstListings()...)
	}
	return waiting
}

// worthAVersion reports whether the head differs from the ledger; or whether the
// head is so old that it must be published again before the chain expires it.
func (c *chain) worthAVersion() bool {
	head, at := c.head.Manifest, c.ledger.Position()
	if head == nil {
		return true
	}
	if !c.head.Version().Less(at) {
		return false
	}
	// A head from the future was published before a clock stepped back.
	age := c.cfg.Now().Sub(head.GetPublishTime().AsTime()).Abs()
	// Messages behind the head that are no versions: a version behind them spares
	// readers the way back.
	return c.head.Foreign != nil || c.head.Version().Epoch != at.Epoch || head.GetBuild() != c.cfg.Build || store.RootOf(head) != c.ledger.Content().Root() ||
		age >= CheckpointEvery(c.cfg.History)
}

// contentOfHead returns the content of the head, nil without a head: from
// memory, from the file, or from the chain. lost: the content has not been found
// for so long that the builder must continue without it.
func (c *chain) contentOfHead(ctx context.Context) (content *store.Snapshot, lost bool, err error) {
	man := c.head.Manifest
	if man == nil {
		return nil, false, nil
	}
	root := store.RootOf(man)
	for _, near := range []*store.Snapshot{c.content.Snapshot, c.file.stored.Snapshot, c.ledger.Content()} {
		if near.Root() == root {
			c.content = store.Stored{Manifest: man, Snapshot: near}
			return near, false, nil
		}
	}
	far, err := c.cfg.Feed.Fetch(ctx, c.head.Version())
	if err == nil {
		c.content = far
		return far.Snapshot, false, nil
	}
	err = fmt.Errorf("content of head %s: %w", c.head.Version(), err)
	if !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrCorrupt) {
		return nil, false, err
	}
	now := c.cfg.Now()
	if c.missing.head != c.head.Version() {
		c.missing = missing{c.head.Version(), now}
	}
	if now.Sub(c.missing.since) < lostAfter {
		return nil, false, err
	}
	c.cfg.Logger.Error("the content of the head is lost, this builder continues without it", "head", c.head.Version(), "error", err)
	return nil, true, nil
}

// missing is a head whose content was not found, and since when.
type missing struct {
	head  ident.Position
	since time.Time
}

// lostAfter is how long the builder looks for the content of a head, or for a
// base: a checkpoint may be on its way.
const lostAfter = 30 * time.Second

// worldAt returns the world of a version, from the file or from the chain.
func (c *chain) worldAt(ctx context.Context, v ident.Position) (*world.World, error) {
	stored, err := c.file.store.At(ctx, v)
	if err != nil {
		stored, err = c.cfg.Feed.Fetch(ctx, v)
	}
	if err != nil {
		return nil, fmt.Errorf("content of version %s: %w", v, err)
	}
	w, err := ledger.World(stored.Snapshot)
	if err != nil {
		return nil, fmt.Errorf("world of version %s: %w", v, err)
	}
	return w, nil
}

// bringWhole makes the next version carry a checkpoint of its whole content.
func (c *chain) bringWhole(ctx context.Context) (err error) {
	c.ckpt.content, err = new(store.CheckpointWriter).Write(ctx, c.cfg.Feed, c.ledger.Content(), c.ledger.Position())
	return err
}

// publish puts the next version on the chain: the position of the ledger, fenced
// on the head. If another version was published first, it reads the new head.
func (c *chain) publish(ctx context.Context, delta store.Delta, diagnostics []*snapshotv1.Diagnostic) (bool, error) {
	man := c.manifest(delta, diagnostics)
	version := store.VersionOf(man.GetVersion())
	c.since.built = c.cfg.Now()
	span := c.since.trace(c.cfg.Tracer, man)
	failpoint.At(failpoint.BuilderPublish)
	seq, err := c.cfg.Feed.Publish(ctx, store.Update{Manifest: man, Delta: delta}, c.head.Seq, c.gen)
	tracing.End(span, c.cfg.Now(), err)
	// A crash here, or a lost answer, leaves a version that the chain has and the
	// file does not. The next builder that folds to its position compares and
	// files it.
	switch {
	case errors.Is(err, store.ErrConflict):
		c.stats.Conflicts++
		return false, c.readHead(ctx)
	case errors.Is(err, store.ErrReconnected):
		return false, err
	case err != nil:
		if rerr := c.readHead(ctx); rerr != nil {
			return false, errors.Join(err, rerr)
		}
		if c.head.Version() != version {
			return false, fmt.Errorf("publish %s: %w", version, err)
		}
	default:
		c.setHead(store.Head{Manifest: man, Seq: seq})
	}
	failpoint.At(failpoint.BuilderPublished)
	c.stats.Versions++
	now := c.cfg.Now()
	c.timing(man, now)
	c.ckpt.sent(man)
	var latency time.Duration // from the first change, by its watcher's clock
	if first := man.GetFirstObservedTime(); first != nil {
		latency = now.Sub(first.AsTime()).Round(100 * time.Microsecond)
	}
	c.cfg.Logger.Info("published", append(published.Attrs(man), "latency", latency)...)
	if c.cfg.StartCheckpoint != nil {
		c.startCheckpoint(now)
	}
	return true, nil
}

// manifest describes the version at the position of the ledger.
func (c *chain) manifest(delta store.Delta, diagnostics []*snapshotv1.Diagnostic) *store.Manifest {
	f := c.ledger.Fold()
	hash, root := f.RecordHash(), c.ledger.Content().Root()
	man := &store.Manifest{
		Version:     store.VersionProto(f.Position()),
		RecordHash:  hash[:],
		RecordTime:  timestamppb.New(f.RecordTime()),
		Root:        root[:],
		Build:       c.cfg.Build,
		Watermark:   f.Watermark(),
		ChangeCount: uint32(len(delta.Put) + len(delta.Remove)),
		PublishTime: timestamppb.New(c.cfg.Now()),
		Publisher:   c.cfg.ID,
		Diagnostics: diagnostics[:min(len(diagnostics), maxDiagnostics)],
		Checkpoint:  c.ckpt.content, FoldCheckpoint: c.ckpt.fold,
	}
	if c.head.Manifest != nil {
		man.Previous, man.PreviousRoot = c.head.Manifest.GetVersion(), c.head.Manifest.GetRoot()
	}
	for _, r := range delta.Put[:min(len(delta.Put), maxChanges)] {
		man.Changes = append(man.Changes, &snapshotv1.KeyChange{Key: r.Key, Seq: c.since.causes[r.Key]})
	}
	for _, k := range delta.Remove[:min(len(delta.Remove), maxChanges-len(man.Changes))] {
		man.Changes = append(man.Changes, &snapshotv1.KeyChange{Key: k, Removed: true, Seq: c.since.causes[k]})
	}
	if !c.since.observed.IsZero() {
		man.FirstObservedTime = timestamppb.New(c.since.observed)
	}
	return man
}

// since holds what changed since the head: which record changed each row, and
// when the first change passed each stage.
type since struct {
	causes                             map[string]uint64 // by row
	observed, logged, read, due, built time.Time
	traces                             []string // of the records, the first ones; each once
}

// add takes a change and the record that made it.
func (s *since) add(rec events.Record, c world.Change, now func() time.Time) {
	if c.Reset {
		return // no single record caused it
	}
	if s.read.IsZero() {
		s.observed, s.logged, s.read = rec.Event.Observed, rec.Time, now()
	}
	if s.causes == nil {
		s.causes = map[string]uint64{}
	}
	for _, r := range c.Rows {
		s.causes[r.Row] = r.Seq
	}
	s.traced(rec)
}
