package fold

import (
	"errors"
	"iter"
	"time"

	"meshlog.dev/events"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/internal/model"
)

// Errors of Apply and Restore, to be tested with errors.Is. The fold is
// unchanged after any of them.
var (
	// ErrOrder: the record is not the one after the last.
	ErrOrder = errors.New("record out of order")
	// ErrNeedsBase: NeedsBase names a base and none was given.
	ErrNeedsBase = errors.New("the segment's base is missing")
	// ErrCorrupt: rows of a base or a checkpoint are not what a fold writes.
	ErrCorrupt = errors.New("not rows of a fold")
	// ErrOtherBuild: the checkpoint was made by another build; it is no
	// ground to go on from.
	ErrOtherBuild = errors.New("the checkpoint was made by another build")
)

// Judge says what values are worth. Its answers depend on its arguments only.
type Judge interface {
	// Judge says what is wrong with v, and whether it may be served all the
	// same. Key and Origin of the diagnostics are filled in by the fold.
	Judge(k model.Key, v model.Value) (problems []model.Diagnostic, good bool)
	// EndpointsOnly says whether the two differ in endpoints only. nil: the
	// key has no value there.
	EndpointsOnly(k model.Key, old, new *model.Value) bool
}

// Row is a row of a fold's checkpoint: the bytes of a snapshotv1.FoldRow.
type Row struct {
	Key   string
	Value []byte
}

// Checkpoint is what a fold's checkpoint needs to be up to date.
type Checkpoint struct {
	// Reset says that Put is all there is: earlier rows are void.
	Reset  bool
	Put    []Row    // sorted by key
	Remove []string // sorted
}

// Need is a shard of which the fold wants a new listing.
type Need struct {
	Shard model.Shard
	// Session that is to end; empty: whichever there is.
	Session string
	Reason  string
}

// Segment is the stretch of the log in which a fold stands.
type Segment struct {
	Epoch uint64
	Build string
	// Head is the head of VERSIONS that the segment's writer saw.
	Head events.Position
	// VersionsSeq is the last sequence of VERSIONS that its writer saw.
	VersionsSeq uint64
	// EpochRecord is the record that began the epoch.
	EpochRecord uint64
}

// Counts are for people and metrics.
type Counts struct {
	Keys      int    // offered
	Overlays  int    // that still lie over something
	Strangers uint64 // records of other sessions than the one begun last, in this epoch
	Undecoded uint64 // records that could not be decoded, since the log began
}

// Fold is what the records up to a position say.
type Fold struct{}

// Option changes a Fold; there are none for production.
type Option func(*Fold)

// New returns the fold of the empty log.
func New(build string, j Judge, opts ...Option) *Fold { panic("to come") }

// Restore returns the fold whose checkpoint the rows are, in any order. It
// goes on exactly as the fold that wrote them.
func Restore(build string, j Judge, rows iter.Seq2[string, []byte], opts ...Option) (*Fold, error) {
	panic("to come")
}

// NeedsBase says which base, if any, Apply must be given with rec.
func (f *Fold) NeedsBase(rec events.Record) (events.Hash, bool) { panic("to come") }

// Apply takes the next record, and says what it changed and what is wrong
// with it. base are the rows of the base that NeedsBase named, else nil.
//
// Records come densely in the order of Seq. Only a segment that begins a
// greater epoch may come from anywhere: what was before does not count.
func (f *Fold) Apply(rec events.Record, base iter.Seq2[string, []byte]) (model.Change, []model.Diagnostic, error) {
	panic("to come")
}

// Position is the last record that the fold contains.
func (f *Fold) Position() events.Position { panic("to come") }

// RecordHash is the hash of that record, with the server's time.
func (f *Fold) RecordHash() events.Hash { panic("to come") }

// RecordTime is the server's time of that record.
func (f *Fold) RecordTime() time.Time { panic("to come") }

// Segment is where the fold stands; zero before the first segment.
func (f *Fold) Segment() Segment { panic("to come") }

// Mine says whether the segment is of the fold's own build: else its owner
// must not publish.
func (f *Fold) Mine() bool { panic("to come") }

// Waiting says, for people, for which required sources nothing may be
// published yet. It is empty when the fold is ready.
func (f *Fold) Waiting(p model.Policy) []string { panic("to come") }

// Needs are the shards that must list again, sorted.
func (f *Fold) Needs() []Need { panic("to come") }

// Digests are those of the shard's offered keys, for the watcher that began
// the session; false while the fold has not read that begin.
func (f *Fold) Digests(s model.Shard, session string) (*events.ShardDigests, bool) {
	panic("to come")
}

// Watermark is how far each shard is contained, sorted.
func (f *Fold) Watermark() []*snapshotv1.Watermark { panic("to come") }

// Diagnostics are what is wrong with what is offered now, sorted.
func (f *Fold) Diagnostics() []model.Diagnostic { panic("to come") }

// Counts counts.
func (f *Fold) Counts() Counts { panic("to come") }

// Content yields all content rows, sorted by key: the last good values and
// the overlays.
func (f *Fold) Content() iter.Seq2[string, []byte] { panic("to come") }

// Offered is the content hash of what the source offers for k, good or not.
func (f *Fold) Offered(k model.Key) (events.Hash, bool) { panic("to come") }

// Held says whether an overlay of kind Hold lies over k.
func (f *Fold) Held(k model.Key) bool { panic("to come") }

// CountKeys is how many keys the shard offers.
func (f *Fold) CountKeys(s model.Shard) int { panic("to come") }

// Checkpoint returns what changed in the fold's rows since the last call.
func (f *Fold) Checkpoint() Checkpoint { panic("to come") }

// Rewrite makes the next Checkpoint a whole one: the earlier ones were not
// written, or to another place.
func (f *Fold) Rewrite() { panic("to come") }

// Rows yields the whole checkpoint, sorted by key.
func (f *Fold) Rows() iter.Seq2[string, []byte] { panic("to come") }

// EpochBase yields the base with which a greater epoch begins from here,
// sorted by key: offered and last good values and overlays, no sessions. head
// and its content rows are the published head as far as there is one; a fold
// that is behind it takes values and overlays from it.
func (f *Fold) EpochBase(head events.Position, content iter.Seq2[string, []byte]) (iter.Seq2[string, []byte], error) {
	panic("to come")
}

// BuildBase yields the base with which another build takes over within an
// epoch: the values of the published head, whose content rows are given.
func BuildBase(content iter.Seq2[string, []byte]) (iter.Seq2[string, []byte], error) {
	panic("to come")
}
