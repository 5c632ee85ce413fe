package builder

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/builder/jury"
	"meshlog.dev/services/builder/ledger"
	"meshlog.dev/services/internal/failpoint"
	"meshlog.dev/services/internal/loglimit"
	"meshlog.dev/services/internal/tracing"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/gate"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/store"
)

// Config configures a Machine. All fields without a default are required.
type Config struct {
	// ID names this builder, Build its program. Builders with the same Build make
	// the same content from the same log.
	ID, Build string

	Log   Log
	Feed  Feed
	Store store.Store
	Fleet Fleet
	Judge fold.Judge
	// StartCheckpoint starts to write a checkpoint, one at a time; the owner of the
	// Machine passes the outcome to Checkpointed. nil: none are written.
	StartCheckpoint func(WriteCheckpoint)
	// History is how long log and chain are kept; default 8 days.
	History time.Duration
	Now     func() time.Time // default time.Now
	NewID   func() string    // ids of events; default 128 random bits
	Logger  *slog.Logger
	// Tracer makes spans of published versions; nil: none are made.
	Tracer *tracing.Tracer
}

// event makes an event of a body.
func (c *Config) event(body events.Body) events.Event {
	return events.Event{ID: c.NewID(), Observed: c.Now(), Actor: c.ID, Body: body}
}

// overlays makes events of overlays.
func (c *Config) overlays(all []*events.Overlay) (batch []events.Event) {
	for _, o := range all {
		batch = append(batch, c.event(o))
	}
	return batch
}

// Machine is a builder without goroutine, clock and select: each method is one
// step. It connects the values that do the work, and calls them in turn.
// One goroutine uses it.
type Machine struct {
	cfg    Config
	log    *loglimit.Logger // of problems in user data
	stats  stats
	ledger *ledger.Ledger // the fold of the log and its content
	draft  draft          // the world at the position of the ledger
	chain  chain          // the published versions; publishes
	epochs epochs         // detects a rewound log; begins segments and epochs
	jury   *jury.Jury     // proposes overlays for what proxies must not receive

	leader   bool
	ahead    []events.Record // read and not folded: a standby stays behind the head
	compared ident.Position  // the last head whose root was compared
	refused  error           // same build, same position, another root: never lead again
	holdErr  error           // why a mass loss cannot be held
	waiting  []string        // why nothing is published
	staging  staging
	named    named
	told     told
}

// stats count what happened since the start.
type stats struct {
	Records, Refused, Versions, Compared, Segments, Holds, Quarantines, Conflicts, Recovered, BuildErrors uint64
	RolloutSteps, RolloutsStopped                                                                         uint64
	Claimed, Doubted                                                                                      uint64 // reports of frontends
	Foreign                                                                                               uint64 // messages on the chain
	Unreadable                                                                                            uint64 // records
}

// Open makes a Machine from the version and the fold in its store. It does not use
// a fold of another build.
func Open(ctx context.Context, cfg Config) (*Machine, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.NewID == nil {
		cfg.NewID = randomID
	}
	cfg.History = cmp.Or(cfg.History, 8*24*time.Hour)
	cfg.Logger = cfg.Logger.With("builder", cfg.ID)
	stored, err := cfg.Store.Latest(ctx)
	if err != nil && !errors.Is(err, store.ErrEmpty) {
		return nil, fmt.Errorf("latest version in the builder's store: %w", err)
	}
	rows, err := sideRows(ctx, cfg.Store)
	if err != nil {
		return nil, fmt.Errorf("fold in the builder's store: %w", err)
	}
	f, err := fold.Restore(cfg.Build, cfg.Judge, ledger.Pairs(slices.Values(rows)))
	if err != nil {
		cfg.Logger.Warn("the fold in the store cannot be used, the log is read from its start", "reason", err)
		f = fold.New(cfg.Build, cfg.Judge)
		f.Rewrite()
	}
	g := gate.New()
	m := &Machine{cfg: cfg, log: loglimit.New(cfg.Logger, problemsLogged), draft: draft{gate: g, world: world.NewWorld()}, jury: jury.New(g, cfg.Now(), cfg.Logger)}
	m.ledger = ledger.New(f, cfg.Feed, func(rec events.Record, c world.Change) {
		m.chain.since.add(rec, c, m.cfg.Now)
		m.draft.add(c)
	})
	m.chain.cfg, m.chain.stats, m.chain.ledger = &m.cfg, &m.stats, m.ledger
	m.chain.file = file{store: cfg.Store, log: cfg.Logger, stored: stored, at: f.Position()}
	m.epochs = epochs{cfg: &m.cfg, stats: &m.stats, ledger: m.ledger, chain: &m.chain, baseless: map[ident.Hash]time.Time{}}
	return m, nil
}

func randomID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// Lead says whether this builder holds the lease.
func (m *Machine) Lead(held bool) {
	if held && m.refused != nil {
		m.cfg.Logger.Error("this builder does not lead", "reason", m.refused)
		held = false
	}
	if held != m.leader {
		m.cfg.Logger.Info("lease", "held", held)
	}
	if m.leader = held; held {
		failpoint.At(failpoint.BuilderLeads)
	}
}

// BlobsLost reports that the bus has lost the blobs of an epoch. A process that
// has neither the head nor a fold checkpoint cannot catch up then, so the leader
// begins an epoch, which writes both again. Older versions stay lost.
func (m *Machine) BlobsLost(epoch uint64) { m.epochs.blobless = max(m.epochs.blobless, epoch) }

// StandsTo takes the leader's tick: its head is the content of the log up to seq.
func (m *Machine) StandsTo(head ident.Position, seq uint64) {
	if head == m.chain.head.Version() && seq > m.chain.standsTo {
		m.chain.standsTo = seq
	}
}

// Stale reports whether a connection was renewed: Connect must come next.
func (m *Machine) Stale() bool {
	return m.epochs.gen != m.cfg.Log.Generation() || m.chain.gen != m.cfg.Feed.Generation()
}

// Connect compares what this builder has with the log and with the chain, and
// returns the position from which to read the log. It must be called first, and
// again whenever Stale returns true or a step has failed. ErrWait: the log was
// rewound, and another builder has to begin the next epoch.
func (m *Machine) Connect(ctx context.Context) (after uint64, err error) {
	m.epochs.gen, m.chain.gen = m.cfg.Log.Generation(), m.cfg.Feed.Generation()
	m.ahead = nil
	if err = m.chain.readHead(ctx); err == nil {
		err = m.epochs.connect(ctx, m.leader)
	}
	if err != nil {
		m.epochs.gen, m.chain.gen = 0, 0
		return 0, err
	}
	return m.ledger.Position().Seq, nil
}

// ErrWait says that this builder cannot continue until another one has begun an
// epoch.
var ErrWait = errors.New("waiting for a new epoch")

// Head reads the head again, because the chain has a newer one, and folds what
// may be folded then.
func (m *Machine) Head(ctx context.Context) error {
	if err := m.chain.readHead(ctx); err != nil {
		return err
	}
	return m.Advance(ctx)
}

// HeadVersion returns the newest known head and its root.
func (m *Machine) HeadVersion() (ident.Position, ident.Hash) {
	if m.chain.head.Manifest == nil {
		return ident.Position{}, ident.Hash{}
	}
	return m.chain.head.Version(), store.RootOf(m.chain.head.Manifest)
}

// Position returns the position of the last record that was folded.
func (m *Machine) Position() ident.Position { return m.ledger.Position() }

// Folded returns the hash of the record at Position, and the root of the content
// there.
func (m *Machine) Folded() (record, root ident.Hash) {
	return m.ledger.Fold().RecordHash(), m.ledger.Content().Root()
}

// Filed returns the position of the fold in the file. The owner may acknowledge
// the log up to there.
func (m *Machine) Filed() ident.Position { return m.chain.file.at }

// Read takes records, dense and in order, and folds them: a leader folds all of
// them, a standby stops at the head, to compare its root.
func (m *Machine) Read(ctx context.Context, recs []events.Record) error {
	m.ahead = append(m.ahead, recs...)
	return m.Advance(ctx)
}

// problemsLogged is how many problems in user data are logged in a second. `meshlog
// diagnostics` lists all of them.
const problemsLogged = 10

// Backlog returns how many records were read and not folded.
func (m *Machine) Backlog() int { return len(m.ahead) }

// Advance folds the records that may be folded by now. A standby stays at a
// position where it can still compare what the leader publishes next.
func (m *Machine) Advance(ctx context.Context) error {
	if err := m.compare(ctx); err != nil {
		return err
	}
	for len(m.ahead) > 0 && (m.leader || m.chain.holdsTo(m.ahead[0].Seq)) {
		if err := m.apply(ctx, m.ahead[0]); err != nil {
			return err
		}
		m.ahead = m.ahead[1:]
		if err := m.compare(ctx); err != nil {
			return err
		}
	}
	if len(m.ahead) == 0 {
		m.ahead = nil
	}
	return nil
}

// apply folds one record.
func (m *Machine) apply(ctx context.Context, rec events.Record) error {
	problems, err := m.epochs.fold(ctx, rec)
	if err != nil {
		return err
	}
	failpoint.At(failpoint.BuilderFolded)
	switch {
	case errors.Is(rec.Err, events.ErrRefused):
		m.stats.Refused++
	case rec.Err != nil:
		m.stats.Unreadable++
	}
	for _, d := range problems {
		m.log.Warn("problem in user data", "object", d.Key.String(), "origin", d.Origin, "field", d.Field, "reason", d.Reason)
	}
	m.stats.Records++
	return nil
}

// Pending returns how many records changed anything since the world was built
// last, and whether all of them, or some, changed endpoints only.
func (m *Machine) Pending() (records int, only, some bool) {
	u := &m.draft.unbuilt
	return u.records, u.endpoints == u.records, u.endpoints > 0
}

// compare compares roots if the fold stands at the position of the head, and
// then brings the file to the head.
func (m *Machine) compare(ctx context.Context) error {
	man := m.chain.head.Manifest
	if man == nil || m.refused != nil || m.chain.head.Version() != m.ledger.Position() {
		return nil
	}
	if man.GetBuild() != m.cfg.Build || !m.ledger.Fold().Mine() {
		return nil
	}
	if h, err := store.HashFrom(man.GetRecordHash()); err != nil || h != m.ledger.Fold().RecordHash() {
		return nil // the log was rewound since: a later epoch explains the head
	}
	if root, own := store.RootOf(man), m.ledger.Content().Root(); root != own {
		m.refused = fmt.Errorf("version %s of build %s has root %s at its publisher %s and root %s here: one of the two machines cannot be trusted",
			m.chain.head.Version(), man.GetBuild(), root, man.GetPublisher(), own)
		m.cfg.Logger.Error("this builder made another content of the same log", "reason", m.refused)
		m.Lead(false)
		return nil
	}
	m.chain.reached()
	if man.GetPublisher() != m.cfg.ID && m.compared != m.chain.head.Version() {
		m.compared = m.chain.head.Version()
		m.stats.Compared++
	}
	// A standby builds too, so that it takes over warm.
	if err := m.build(); err != nil && ctx.Err() != nil {
		return err
	}
	return m.chain.file.persist(ctx, man, m.ledger)
}

// build brings the world up to date with the ledger.
func (m *Machine) build() error {
	failed, err := m.draft.build()
	if failed {
		m.stats.BuildErrors++
		m.cfg.Logger.Error("cannot build the world; proxies keep the previous version", "position", m.ledger.Position(), "error", err)
	}
	return err
}

// Checkpointed takes the outcome of a checkpoint that was started.
func (m *Machine) Checkpointed(c Checkpointed) {
	if c.Err != nil {
		m.cfg.Logger.Warn("checkpoint", "error", c.Err)
	}
	// The blobs that an earlier epoch wrote may have been lost with it.
	ofThisEpoch := func(c *snapshotv1.Checkpoint) bool {
		return c != nil && c.GetVersion().GetEpoch() == m.ledger.Position().Epoch
	}
	m.chain.ckpt.done(c, ofThisEpoch)
}

// SaveFold writes the fold to the file between versions, so that a restart reads
// less of the log.
func (m *Machine) SaveFold(ctx context.Context) error {
	return m.chain.file.saveFold(ctx, m.ledger.Fold())
}
