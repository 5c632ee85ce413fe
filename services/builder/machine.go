package builder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/failpoint"
	"meshlog.dev/services/internal/tracing"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/gate"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/store"
)

// Config is what a Machine works with. All fields without a default are
// required.
type Config struct {
	// ID names this builder, Build its program: worlds of one build are equal
	// wherever the log is.
	ID, Build string

	Log   Log
	Feed  Feed
	Store store.Store
	Fleet Fleet
	Judge fold.Judge
	// Gate is NewGate's if nil.
	Gate Gate
	// Checkpoints may be nil: none are written.
	Checkpoints Checkpoints
	// History is how long log and chain are kept; default 8 days.
	History time.Duration
	Now     func() time.Time // default time.Now
	NewID   func() string    // ids of events; default 128 random bits
	Logger  *slog.Logger
	// Tracer makes spans of what is published; nil: of nothing.
	Tracer *tracing.Tracer
}

// Machine is a builder without goroutine, clock and select: each method is one
// step. One goroutine uses it.
type Machine struct {
	cfg Config
	log *slog.Logger

	// What the log says.
	fold    *fold.Fold
	content *store.Snapshot   // what the fold holds, but for the rows of behind
	behind  map[string][]byte // nil: removed
	ahead   []events.Record   // read, not folded yet: a standby keeps behind the head

	// What is being built: the world lags the fold by what is unbuilt.
	world    *world.World
	unbuilt  unbuilt
	causes   map[string]uint64    // row: the record that changed it since the head
	problems []problem.Diagnostic // of the last build
	buildErr error
	holdErr  error  // why a mass loss could not be held
	since    timing // of the first record since the head that changed anything

	// What the chain says.
	head        store.Head
	headContent store.Stored   // content of head, once it was needed
	compared    ident.Position // the last head whose root was compared
	standsTo    uint64         // the head is right for the log up to here: the leader's tick

	// What the file says.
	stored  store.Stored
	filed   ident.Position // of the fold in the file
	saveErr error          // why the file is behind

	// The connections in which all this was learned.
	logGen, feedGen uint64

	leader    bool
	wantEpoch ident.Position // a frontend's report: begin an epoch above it
	blobless  uint64         // the epoch under which the bus has lost its blobs
	heard     heard
	opinions  opinions
	crowded   bool // as much is in quarantine as can be
	missing   missing
	baseless  map[ident.Hash]time.Time // bases of segments that are not found, and since when
	refused   error                    // same build, same position, another root: never lead again
	waiting   []string                 // why nothing is published
	warned    int                      // problems of what was read last
	ckpt      checkpoints
	timings   []*reportv1.StageTiming
	stats     Stats
}

// Stats count what happened since the start.
type Stats struct {
	Records, Versions, Compared, Segments, Holds, Quarantines, Conflicts, Recovered, BuildErrors uint64
}

// Open makes a Machine from what its store holds; a file made by another build
// is no base.
func Open(ctx context.Context, cfg Config) (*Machine, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.NewID == nil {
		cfg.NewID = randomID
	}
	if cfg.History == 0 {
		cfg.History = 8 * 24 * time.Hour
	}
	if cfg.Gate == nil {
		cfg.Gate = gate.New()
	}
	m := &Machine{cfg: cfg, log: cfg.Logger.With("builder", cfg.ID), world: world.NewWorld(), behind: map[string][]byte{}, causes: map[string]uint64{}, baseless: map[ident.Hash]time.Time{}}
	stored, err := cfg.Store.Latest(ctx)
	if err != nil && !errors.Is(err, store.ErrEmpty) {
		return nil, fmt.Errorf("latest version in the builder's store: %w", err)
	}
	m.stored, m.opinions.since = stored, cfg.Now()
	rows := map[string][]byte{}
	for row, err := range cfg.Store.Side(ctx) {
		if err != nil {
			return nil, fmt.Errorf("fold in the builder's store: %w", err)
		}
		rows[row.Key] = row.Value
	}
	if m.fold, err = m.restore(rows); err != nil {
		m.log.Warn("the fold in the store is no base, the log is read anew", "reason", err)
		m.fold = fold.New(cfg.Build, cfg.Judge)
		m.fold.Rewrite()
	}
	m.filed = m.fold.Position()
	m.reset(m.fold.Content())
	return m, nil
}

func (m *Machine) restore(rows map[string][]byte) (*fold.Fold, error) {
	if len(rows) == 0 {
		return fold.New(m.cfg.Build, m.cfg.Judge), nil
	}
	return fold.Restore(m.cfg.Build, m.cfg.Judge, sortedRows(rows))
}

// Lead says whether this builder holds the lease.
func (m *Machine) Lead(held bool) {
	if held && m.refused != nil {
		m.log.Error("this builder does not lead", "reason", m.refused)
		held = false
	}
	if held != m.leader {
		m.log.Info("lease", "held", held)
	}
	if m.leader = held; held {
		failpoint.At(failpoint.BuilderLeads)
	}
}

// WantEpoch takes a frontend's report that the chain was rewound below v.
func (m *Machine) WantEpoch(v ident.Position) {
	p := v
	if m.wantEpoch.Less(p) {
		m.wantEpoch = p
	}
}

// BlobsLost says that the bus has lost its blobs under an epoch. Whoever does
// not have the head cannot get there, nor can who does not have the fold of the
// log: the next epoch brings both along. What is before it stays lost.
func (m *Machine) BlobsLost(epoch uint64) { m.blobless = max(m.blobless, epoch) }

// StandsTo takes the leader's tick: its head is right for the log up to seq.
func (m *Machine) StandsTo(head ident.Position, seq uint64) {
	if head == m.head.Version() && seq > m.standsTo {
		m.standsTo = seq
	}
}

// Stale says that a connection was renewed: Connect must come next.
func (m *Machine) Stale() bool {
	return m.logGen != m.cfg.Log.Generation() || m.feedGen != m.cfg.Feed.Generation()
}

// Connect compares what this builder has with the log and with the chain, and
// returns the position from which to read the log. It comes first, and again
// whenever Stale says so or a step failed. ErrWait says that the log was
// rewound and another builder has to begin the next epoch.
func (m *Machine) Connect(ctx context.Context) (after uint64, err error) {
	m.logGen, m.feedGen = m.cfg.Log.Generation(), m.cfg.Feed.Generation()
	m.ahead = nil
	defer func() {
		if err != nil {
			m.logGen, m.feedGen = 0, 0
		}
	}()
	if err := m.readHead(ctx); err != nil {
		return 0, err
	}
	if err := m.skipExpired(ctx); err != nil {
		return 0, err
	}
	if err := m.skipBaseless(ctx); err != nil {
		return 0, err
	}
	for {
		reason, err := m.rewound(ctx)
		if err != nil {
			return 0, err
		}
		if reason == "" {
			return m.fold.Position().Seq, nil
		}
		m.stats.Recovered++
		m.log.Warn("the log is not the one that was read", "reason", reason, "position", m.fold.Position(), "head", m.head.Version())
		if err := m.recover(ctx, reason); err != nil {
			return 0, err
		}
	}
}

// recover goes on in the newest epoch of the log, which the leader begins if
// there is none newer than the fold's. Whether the head comes from there is for
// the caller to look at again.
func (m *Machine) recover(ctx context.Context, reason string) error {
	if resumed, err := m.resume(ctx); err != nil || resumed {
		return err
	}
	if !m.leader {
		return ErrWait
	}
	if err := m.beginEpoch(ctx, reason, false); err != nil {
		return err
	}
	resumed, err := m.resume(ctx)
	if err == nil && !resumed {
		err = ErrWait
	}
	return err
}

// ErrWait says that this builder cannot go on until another one has acted.
var ErrWait = errors.New("waiting for a new epoch")

// readHead asks the chain for its head.
func (m *Machine) readHead(ctx context.Context) error {
	h, err := m.cfg.Feed.Head(ctx)
	if err != nil {
		return fmt.Errorf("head of the version chain: %w", err)
	}
	m.setHead(h)
	return nil
}

func (m *Machine) setHead(h store.Head) {
	if h.Version() != m.head.Version() {
		m.standsTo = 0
	}
	m.head = h
}

// Head reads the head anew, because the chain told of a newer one, and folds
// what may be folded then.
func (m *Machine) Head(ctx context.Context) error {
	if err := m.readHead(ctx); err != nil {
		return err
	}
	return m.Advance(ctx)
}

// HeadVersion is the head as far as it is known, with its root.
func (m *Machine) HeadVersion() (ident.Position, ident.Hash) {
	if m.head.Manifest == nil {
		return ident.Position{}, ident.Hash{}
	}
	return m.head.Version(), store.RootOf(m.head.Manifest)
}

// Position is where the fold stands.
func (m *Machine) Position() ident.Position { return m.fold.Position() }

// Folded is the hash of the record at Position, and the root of the content
// there.
func (m *Machine) Folded() (record ident.Hash, root ident.Hash) {
	return m.fold.RecordHash(), m.current().Root()
}

// Filed is the position up to which the file holds everything: what may be
// acknowledged to the log.
func (m *Machine) Filed() ident.Position { return m.filed }

// Read takes records, dense and in order, and folds them: a leader all, a
// standby as far as the head, whose root it compares.
func (m *Machine) Read(ctx context.Context, recs []events.Record) error {
	m.ahead = append(m.ahead, recs...)
	m.warned = 0
	err := m.Advance(ctx)
	if more := m.warned - maxWarned; more > 0 {
		m.log.Warn("more problems in user data", "count", more, "advice", "see `meshlog diagnostics`")
	}
	return err
}

// maxWarned is how many problems are logged one by one of what is read at once.
const maxWarned = 10

// Backlog is how many records were read and not folded.
func (m *Machine) Backlog() int { return len(m.ahead) }

// Advance folds what may be folded by now.
func (m *Machine) Advance(ctx context.Context) error {
	if err := m.compare(ctx); err != nil {
		return err
	}
	for len(m.ahead) > 0 && m.mayFold(m.ahead[0].Seq) {
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

// mayFold says whether the record at seq may be folded: a standby stays where it
// can still compare what the leader publishes next.
func (m *Machine) mayFold(seq uint64) bool {
	return m.leader || m.head.Manifest == nil || seq <= max(m.head.Version().Seq, m.standsTo)
}

// apply folds one record.
func (m *Machine) apply(ctx context.Context, rec events.Record) error {
	base, err := m.baseOf(ctx, rec)
	if err != nil {
		return err
	}
	change, diags, err := m.fold.Apply(rec, base)
	if err != nil {
		return fmt.Errorf("fold record %d: %w", rec.Seq, err)
	}
	failpoint.At(failpoint.BuilderFolded)
	for _, d := range diags {
		if m.warned++; m.warned > maxWarned {
			continue // the rest is counted
		}
		m.log.Warn("problem in user data", "object", d.Key.String(), "origin", d.Origin, "field", d.Field, "reason", d.Reason)
	}
	m.stats.Records++
	m.change(rec, change)
	return nil
}

// change brings the content up to date with the fold.
func (m *Machine) change(rec events.Record, c world.Change) {
	if c.IsEmpty() {
		return
	}
	if m.since.read.IsZero() && !c.Reset {
		m.since = timing{observed: rec.Event.Observed, logged: rec.Time, read: m.cfg.Now()}
	}
	if c.Reset {
		m.reset(c)
		return
	}
	for _, r := range c.Rows {
		m.causes[r.Row], m.behind[r.Row] = r.Seq, r.Value
	}
	m.since.traced(rec)
	m.unbuilt.add(c)
}

// current is the content of the fold. It is brought up to date when it is
// looked at: a long stretch of the log costs one change of it.
func (m *Machine) current() *store.Snapshot {
	if len(m.behind) > 0 {
		m.content = m.content.With(deltaFrom(m.behind))
		clear(m.behind)
	}
	return m.content
}

// Pending says how many records changed anything since the world was built
// last, and whether that was endpoints only, or endpoints too.
func (m *Machine) Pending() (records int, only, some bool) {
	u := &m.unbuilt
	return u.records, u.endpoints == u.records, u.endpoints > 0
}

// compare holds the root of a standby against that of the head, where the
// fold stands at the head's position.
func (m *Machine) compare(ctx context.Context) error {
	if m.head.Manifest == nil || m.refused != nil || m.head.Version() != m.fold.Position() {
		return nil
	}
	man := m.head.Manifest
	if man.GetBuild() != m.cfg.Build || !m.fold.Mine() {
		return nil
	}
	if h, err := store.HashFrom(man.GetRecordHash()); err != nil || h != m.fold.RecordHash() {
		return nil // of a log that was rewound since: a later epoch explains the head
	}
	if root := store.RootOf(man); root != m.current().Root() {
		m.refused = fmt.Errorf("version %s of build %s, published by %s, has root %s; here it is %s: one of the two machines is not to be trusted",
			m.head.Version(), man.GetBuild(), man.GetPublisher(), root, m.current().Root())
		m.log.Error("the same log came to another content", "reason", m.refused)
		m.Lead(false)
		return nil
	}
	m.headContent = store.Stored{Manifest: man, Snapshot: m.current()}
	clear(m.causes)
	m.since = timing{}
	if man.GetPublisher() != m.cfg.ID && m.compared != m.head.Version() {
		m.compared = m.head.Version()
		m.stats.Compared++
	}
	// A standby builds what the leader built, so as to be warm.
	if err := m.build(); err != nil && ctx.Err() != nil {
		return err
	}
	return m.persist(ctx)
}
