package events

import (
	"time"

	"meshlog.dev/proto/ident"
)

// Event is one fact: state, never a patch.
type Event struct {
	// ID makes retries harmless. A watcher uses source/instance/session/pseq,
	// other writers a random id. A retry uses the same ID, another event never
	// does.
	ID string
	// Observed is when the writer saw the fact, by the writer's clock. It is
	// for display only.
	Observed time.Time
	// Actor is the user, field manager or file that caused the event, if known.
	Actor string
	// Trace is the W3C traceparent of the change.
	Trace string
	// Body is one of *Object, *Begin, *Alive, *Overlay, *Segment.
	Body Body
	// Signature is that of an operator; nil: the record has none.
	Signature *Signature
}

// Body is the content of an event. Only types of this package implement it.
type Body interface{ isBody() }

func (*Object) isBody()  {}
func (*Begin) isBody()   {}
func (*Alive) isBody()   {}
func (*Overlay) isBody() {}
func (*Segment) isBody() {}

// Op is what an Object event does to its key.
type Op uint8

// The operations on a key.
const (
	Put    Op = 1 // the payload is the full value
	Delete Op = 2 // the key does not exist any more
)

// Object is the new value of a key, or its deletion.
type Object struct {
	Key   ident.Key
	Op    Op
	Value ident.Value // zero in a Delete
	// SourceVersion is the source's own version of the object.
	SourceVersion string
	// Origin is where users find the object: "file:line", a field manager.
	Origin string
	// Session, Pseq (from 1) and Low are the position in the watcher's session:
	// every record of the session with a Pseq below Low is acknowledged.
	Session string
	Pseq    uint64
	Low     uint64
	// Batch is set if several objects are applied at once.
	Batch Batch
}

// Batch ties the objects of one change set. Total 0 means none.
type Batch struct {
	ID    string `json:"id"`
	Index uint32 `json:"index"` // from 0
	Total uint32 `json:"total"`
}

// Begin opens a session for a shard (sync.begin).
type Begin struct {
	Shard   ident.Shard
	Session string
	// Holder is the stable name of the watcher process.
	Holder string
	// Identity names what the watcher reads, such as a datacenter (REG-12). It is empty
	// if the source has no such name.
	Identity string
}

// Alive is the heartbeat of a session (sync.alive).
type Alive struct {
	Shard   ident.Shard
	Session string
	Low     uint64 // as in Object
	// Digest covers the keys of the shard as the watcher sees them.
	Digest Digest
	// Listed are the digest buckets whose keys the watcher sent while listing.
	// Only the first Alive of a session has a meaningful value.
	Listed BucketSet
	// Partial reports that the watcher could not read all objects.
	Partial bool
	// Kinds are the kinds that the session covers, the same in each of its
	// Alives: Digest covers their keys only, and the end of the listing removes
	// no object of another kind.
	Kinds Kinds
	// Ends ends the session: another watcher of the shard may begin at once.
	// With Kinds, an operator removes all objects of these kinds; such an Alive
	// says nothing about Partial.
	Ends bool
	// Identity is that of the session's Begin.
	Identity string
}

// Overlay replaces values of the world: a Hold each key until its base value changes,
// a Rollback until it is removed, a Pin and a Rollout too, for some proxies. A Quarantine
// replaces xDS resources until it is removed. What a Scope selects stays as it is meanwhile.
type Overlay struct {
	ID     string // used once, also after a removal
	Kind   ident.OverlayKind
	Reason string
	Values []ident.OverlayValue
	// Scope is that of a Freeze, and of a Rollback of more than single objects.
	Scope *ident.Scope
	// Proxies are those that a Pin is for.
	Proxies *ident.Proxies
	// Rollout is how far a Rollout is.
	Rollout *ident.Staging
	// Batch is set if a Rollback or a Pin spans several events with one ID.
	Batch Batch
	// Remove removes the overlay with this ID. Kind is then Quarantine if a builder removes
	// one, and zero if an operator does. The removal of a Rollout has its Kind, and counts
	// only if it is in that State still.
	Remove bool
}

// OfBuilder reports whether a builder appends o, and no operator.
func (o *Overlay) OfBuilder() bool {
	switch o.Kind {
	case ident.Hold, ident.Quarantine:
		return true
	case ident.Rollout:
		return o.Rollout == nil || !o.Rollout.Ordered
	}
	return false
}

// Segment begins a segment of the log (segment.begin).
type Segment struct {
	Epoch uint64
	Build string
	// Base is the fold checkpoint that the segment starts from. It is in the
	// blob store, durable before this record.
	Base ident.Hash
	// Head is the head of VERSIONS that the writer saw; zero for none.
	Head ident.Position
	// VersionsSeq is the last sequence of VERSIONS that the writer saw.
	VersionsSeq uint64
	// EpochRecord is the Seq of the record that began the epoch; 0 if this one
	// does.
	EpochRecord uint64
}

// Record is an event at its position on the log.
type Record struct {
	Seq  uint64
	Time time.Time // by the server's clock; not for ordering
	// Hash covers the record's bytes and Time: two logs with the same Hash at
	// one Seq hold the same record there.
	Hash  ident.Hash
	Event Event
	// Err is the reason why there is no Event, which is then zero: the bytes could
	// not be decoded, or the record is refused (ErrRefused). Such a record keeps
	// its position and changes nothing.
	Err error
}
