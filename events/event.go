package events

import (
	"time"

	"meshlog.dev/proto/ident"
)

// Event is one fact: state, never a patch.
type Event struct {
	// ID makes retries harmless: source/instance/session/pseq for what a
	// watcher sends, a random id for everybody else. A retry uses the same,
	// nothing else ever does.
	ID string
	// Observed is when the writer saw it, by the writer's clock. For people.
	Observed time.Time
	// Actor is who caused it, where known.
	Actor string
	// Trace is the W3C traceparent of the change.
	Trace string
	// Body is one of *Object, *Begin, *Alive, *Overlay, *Segment.
	Body Body
}

// Body is what an event says; the types of this package are all there are.
type Body interface{ isBody() }

func (*Object) isBody()  {}
func (*Begin) isBody()   {}
func (*Alive) isBody()   {}
func (*Overlay) isBody() {}
func (*Segment) isBody() {}

// Op is what an Object event does to its key.
type Op uint8

// The two things that can happen to a key.
const (
	Put    Op = 1 // the payload is the full value
	Delete Op = 2 // the key is gone
)

// Object is the new value of a key, or its end.
type Object struct {
	Key   ident.Key
	Op    Op
	Value ident.Value // zero in a Delete
	// SourceVersion is the source's own version of the object.
	SourceVersion string
	// Origin is where a person finds it: "file:line", a field manager.
	Origin string
	// Session, Pseq (from 1) and Low are the place in the watcher's session:
	// every record of it with a Pseq below Low is acknowledged.
	Session string
	Pseq    uint64
	Low     uint64
	// Batch is set where several objects are applied at once.
	Batch Batch
}

// Batch ties the objects of one change set. Total 0 means none.
type Batch struct {
	ID    string
	Index uint32 // from 0
	Total uint32
}

// Begin opens a session for a shard (sync.begin).
type Begin struct {
	Shard   ident.Shard
	Session string
	// Holder is the stable name of the process that speaks.
	Holder string
}

// Alive is the heartbeat of a session (sync.alive).
type Alive struct {
	Shard   ident.Shard
	Session string
	Low     uint64 // as in Object
	// Digest is over the keys of the shard as the watcher sees them.
	Digest Digest
	// Listed are the digest buckets whose keys were sent while listing; it
	// counts in the first Alive of a session only.
	Listed BucketSet
	// Partial says that something could not be read.
	Partial bool
	// Kinds are those that the session speaks for, the same in each of its
	// Alives: Digest is over their keys only, and nothing of others is removed.
	Kinds Kinds
	// Ends says that nothing more comes of the session: whoever watches the
	// shard may begin at once. With Kinds it is the word of an operator who
	// takes away what they hold, and says nothing of what can be read.
	Ends bool
}

// Overlay lays values over the world until its base is replaced, key by key;
// a Quarantine lies over resources, until it is removed.
type Overlay struct {
	ID     string // used once: a removed id never comes back
	Kind   ident.OverlayKind
	Reason string
	Values []ident.OverlayValue
	// Remove takes the overlay of this ID away. Kind is then Quarantine where
	// a builder lifts one, and zero where an operator has the word.
	Remove bool
}

// Segment says what counts from here on (segment.begin).
type Segment struct {
	Epoch uint64
	Build string
	// Base is the fold checkpoint that counts, in the blob store and durable
	// before this record.
	Base ident.Hash
	// Head is the head of VERSIONS that the writer saw; zero for none.
	Head ident.Position
	// VersionsSeq is the last sequence of VERSIONS that the writer saw.
	VersionsSeq uint64
	// EpochRecord is the Seq of the record that began the epoch; 0 where this
	// one does.
	EpochRecord uint64
}

// Record is an event with its place on the log.
type Record struct {
	Seq  uint64
	Time time.Time // the server's clock; not for ordering
	// Hash is over the record's bytes and Time: two logs that agree in it at
	// one Seq hold the same record there.
	Hash  ident.Hash
	Event Event
	// Err says why Event could not be decoded; Event is zero then. Such a
	// record takes its place and changes nothing.
	Err error
}
