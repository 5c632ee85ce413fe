package store

import (
	"context"
	"errors"
	"iter"

	"meshlog.dev/proto/ident"
)

// Errors of stores and feeds, to be tested with errors.Is.
var (
	// ErrEmpty: no version has been stored, or published.
	ErrEmpty = errors.New("no version yet")
	// ErrConflict: somebody else committed or published first; nothing was
	// written.
	ErrConflict = errors.New("another version came first")
	// ErrNotFound: no such version or blob, or none any more.
	ErrNotFound = errors.New("not found")
	// ErrCorrupt: what is kept does not have the hash it should have.
	ErrCorrupt = errors.New("content does not match its hash")
	// ErrLocked: another process has the file.
	ErrLocked = errors.New("the file is in use by another process")
	// ErrReconnected: the connection is not the one of the generation given;
	// nothing was published.
	ErrReconnected = errors.New("the connection to the version chain was renewed")
)

// Stored is a version with its content.
type Stored struct {
	Manifest *Manifest
	Snapshot *Snapshot
}

// Version returns the version's name.
func (s Stored) Version() ident.Position { return VersionOf(s.Manifest.GetVersion()) }

// Commit is what a Writer writes in one transaction.
type Commit struct {
	Manifest *Manifest
	// Snapshot is the content; its root is the manifest's.
	Snapshot *Snapshot
	// Delta leads from the content of the latest stored version (from nothing
	// if there is none) to Snapshot.
	Delta Delta
	// Side changes the side table.
	Side Delta
}

// Writer keeps versions, newer after older.
type Writer interface {
	// Commit makes c the latest version if prev is the latest so far, else
	// ErrConflict. After an error other than that the commit may be there or
	// not, but never half of it.
	Commit(ctx context.Context, prev ident.Position, c Commit) error
	// SaveSide changes the side table alone. The side table is its owner's:
	// rows of any meaning, kept beside the versions.
	SaveSide(ctx context.Context, d Delta) error
	// ClearSide empties the side table.
	ClearSide(ctx context.Context) error
}

// Reader finds versions.
type Reader interface {
	// Latest returns the newest version, or ErrEmpty.
	Latest(ctx context.Context) (Stored, error)
	// At returns a kept version, or ErrNotFound.
	At(ctx context.Context, v ident.Position) (Stored, error)
	// Manifests yields the kept manifests, newest first.
	Manifests(ctx context.Context) iter.Seq2[*Manifest, error]
	// Watch sends the latest version, then whenever there is a newer one; a
	// slow receiver gets only the newest. The channel closes with ctx.
	Watch(ctx context.Context) <-chan ident.Position
	// Side yields the side table, sorted by key.
	Side(ctx context.Context) iter.Seq2[Row, error]
}

// Store is a whole store. It is safe for concurrent use.
type Store interface {
	Writer
	Reader
	Close() error
}

// Blobs keeps bytes by their hash, durably.
type Blobs interface {
	// PutBlob keeps b and returns its name. It returns once b is durable.
	PutBlob(ctx context.Context, b []byte) (ident.Hash, error)
	// GetBlob returns the blob of that name: ErrNotFound if there is none,
	// ErrCorrupt if its bytes have another hash.
	GetBlob(ctx context.Context, h ident.Hash) ([]byte, error)
}

// Head is the end of the version chain.
type Head struct {
	// Manifest is nil where there is no head: none was published, or all
	// have expired.
	Manifest *Manifest
	// Seq is the chain's last sequence, 0 if it was never written: the fence
	// of the next Publish.
	Seq uint64
}

// Version returns the head's version; zero without a head.
func (h Head) Version() ident.Position { return VersionOf(h.Manifest.GetVersion()) }

// Publisher writes the version chain.
type Publisher interface {
	Blobs
	// Generation changes whenever the connection was renewed; never 0.
	Generation() uint64
	// Head is answered by the chain's leader, never by a replica that lags.
	Head(ctx context.Context) (Head, error)
	// Publish appends u if the chain's last sequence is still expect and the
	// connection still that of generation, and returns the new last sequence.
	// A delta too large for a message goes to the blobs first. Errors:
	// ErrConflict, ErrReconnected; after any other the outcome is open: ask
	// Head.
	Publish(ctx context.Context, u Update, expect, generation uint64) (uint64, error)
}

// Chain reads the version chain. It is safe for concurrent use.
type Chain interface {
	// Follow reads the chain from what the caller has. It costs the server
	// nothing that lasts.
	Follow(ctx context.Context) (Follower, error)
	// Fetch returns the whole content of a version of the chain: the nearest
	// checkpoint at or before it, and the deltas from there. ErrNotFound if
	// it is not, or no longer, there.
	Fetch(ctx context.Context, v ident.Position) (Stored, error)
	// History yields the manifests of the chain, newest first.
	History(ctx context.Context) iter.Seq2[*Manifest, error]
}

// Copier reads the version chain to make a copy of it.
type Copier interface {
	// Updates yields the chain from version from on, oldest first. The delta of
	// the first one leads from a version that is not yielded. It ends with the
	// first error.
	Updates(ctx context.Context, from ident.Position) iter.Seq2[Update, error]
}

// Follower follows the version chain. One goroutine uses it.
type Follower interface {
	// Next blocks until the chain has a version greater than have, and
	// returns the links that lead there from have and its root, oldest first.
	// Where no such links are at hand (have is zero, too far back, or of
	// another epoch) the returned links are only the newest one: its Delta
	// does not lead from have, and the caller asks Fetch.
	// If the head is below have, or is have with another root, Next returns
	// a *MismatchError, once per head.
	Next(ctx context.Context, have ident.Position, root ident.Hash) ([]Update, error)
	Close() error
}

// MismatchError says that the chain's head and what a follower has cannot
// both be right: the chain was rewound.
type MismatchError struct {
	Have, Head     ident.Position
	Root, HeadRoot ident.Hash
}

// Error implements error.
func (e *MismatchError) Error() string {
	return "the version chain was rewound: its head is " + e.Head.String() + " (root " + e.HeadRoot.String()[:12] +
		"), here is " + e.Have.String() + " (root " + e.Root.String()[:12] + ")"
}
