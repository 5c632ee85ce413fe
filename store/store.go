package store

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"meshlog.dev/proto/ident"
)

// Errors of stores and feeds, to be tested with errors.Is.
var (
	// ErrEmpty: there is no version yet.
	ErrEmpty = errors.New("no version yet")
	// ErrConflict: another process committed or published first; nothing was
	// written.
	ErrConflict = errors.New("another version came first")
	// ErrNotFound: the version or blob does not exist, or does not exist any more.
	ErrNotFound = errors.New("not found")
	// ErrCorrupt: stored content does not have its hash.
	ErrCorrupt = errors.New("content does not match its hash")
	// ErrLocked: another process uses the file.
	ErrLocked = errors.New("the file is in use by another process")
	// ErrReconnected: the connection has another generation than the caller
	// expects; nothing was published.
	ErrReconnected = errors.New("the connection to the version chain was renewed")
)

// Stored is a version with its content.
type Stored struct {
	Manifest *Manifest
	Snapshot *Snapshot
}

// Version returns the position of the version.
func (s Stored) Version() ident.Position { return VersionOf(s.Manifest.GetVersion()) }

// Commit is the content of one transaction of a Writer.
type Commit struct {
	Manifest *Manifest
	// Snapshot is the content; its root is the manifest's.
	Snapshot *Snapshot
	// Delta leads from the content of the latest stored version (from the empty
	// content if there is none) to Snapshot.
	Delta Delta
	// Side changes the side table.
	Side Delta
}

// Writer writes versions in ascending order.
type Writer interface {
	// Commit makes c the latest version if prev is the latest so far, else the
	// error is ErrConflict. After another error the store may have the whole
	// commit or nothing of it, but never a part.
	Commit(ctx context.Context, prev ident.Position, c Commit) error
	// SaveSide changes the side table only. The side table holds rows of the
	// owner, with any meaning, beside the versions.
	SaveSide(ctx context.Context, d Delta) error
	// ClearSide empties the side table.
	ClearSide(ctx context.Context) error
}

// Reader reads versions.
type Reader interface {
	// Latest returns the newest version, or ErrEmpty.
	Latest(ctx context.Context) (Stored, error)
	// At returns a kept version, or ErrNotFound.
	At(ctx context.Context, v ident.Position) (Stored, error)
	// Manifests yields the kept manifests, newest first.
	Manifests(ctx context.Context) iter.Seq2[*Manifest, error]
	// Side yields the side table, sorted by key.
	Side(ctx context.Context) iter.Seq2[Row, error]
}

// Store reads and writes versions. It is safe for concurrent use.
type Store interface {
	Writer
	Reader
	Close() error
}

// Blobs keeps bytes durably, by their hash.
type Blobs interface {
	// PutBlob stores b and returns its hash when b is durable.
	PutBlob(ctx context.Context, b []byte) (ident.Hash, error)
	// GetBlob returns the blob with that hash. The error is ErrNotFound if there
	// is none, and ErrCorrupt if its bytes have another hash.
	GetBlob(ctx context.Context, h ident.Hash) ([]byte, error)
}

// Head is the end of the version chain.
type Head struct {
	// Manifest is nil if there is no head: no version was published, or all
	// have expired.
	Manifest *Manifest
	// Seq is the chain's last sequence, the fence of the next Publish; 0 if no
	// version was ever published.
	Seq uint64
	// Foreign says why the chain's newest messages, behind the head, are no
	// versions of it; nil: there are none. A process that is no builder wrote
	// them. The version that is published next follows the head, and ends this.
	Foreign *ForeignError
}

// ForeignError reports messages on the stream of the version chain that are no
// versions of it. Readers pass them over.
type ForeignError struct {
	Seq      uint64 // of the newest one
	Reason   error  // why that one is no version
	Messages int
}

// Error implements error.
func (e *ForeignError) Error() string {
	return fmt.Sprintf("message %d of the version chain is no version: %v", e.Seq, e.Reason)
}

// Unwrap returns Reason.
func (e *ForeignError) Unwrap() error { return e.Reason }

// Version returns the head's version; zero without a head.
func (h Head) Version() ident.Position { return VersionOf(h.Manifest.GetVersion()) }

// Publisher writes the version chain.
type Publisher interface {
	Blobs
	// Generation changes whenever the connection is renewed. It is never 0.
	Generation() uint64
	// Head asks the chain's leader, never a replica that lags.
	Head(ctx context.Context) (Head, error)
	// Publish appends u if the chain's last sequence is still expect and the
	// connection still has this generation, and returns the new last sequence.
	// It puts a delta that is too large for a message into a blob first.
	// Errors: ErrConflict, ErrReconnected. After another error the outcome is
	// open: call Head.
	Publish(ctx context.Context, u Update, expect, generation uint64) (uint64, error)
}

// Chain reads the version chain. It is safe for concurrent use. All its methods
// pass over messages that are no versions: what cannot be read, what no builder
// published, and what does not follow the version before it.
type Chain interface {
	// Follow reads the chain from the caller's version on. The server keeps no
	// state for it.
	Follow(ctx context.Context) (Follower, error)
	// Fetch returns the whole content of a version of the chain, from the
	// nearest checkpoint at or before it and the deltas behind that. The error
	// is ErrNotFound if the chain does not have the version, or has lost it.
	Fetch(ctx context.Context, v ident.Position) (Stored, error)
	// History yields the manifests of the chain, newest first.
	History(ctx context.Context) iter.Seq2[*Manifest, error]
}

// Copier reads the version chain to make a copy of it.
type Copier interface {
	// Updates yields the chain from version from on, oldest first. The first
	// delta leads from a version before from. Updates ends with the first
	// error.
	Updates(ctx context.Context, from ident.Position) iter.Seq2[Update, error]
}

// Auditor tells what else is on the stream of a version chain.
type Auditor interface {
	// Foreign returns the messages that are no versions, each with the reason, the
	// newest 1000. All methods of Chain pass them over.
	Foreign(ctx context.Context) ([]ForeignError, error)
}

// Follower follows the version chain. One goroutine uses it.
type Follower interface {
	// Next blocks until the chain has a version greater than have, and returns
	// the links that lead to it from have and its root, oldest first. If there
	// are no such links (have is zero, too far back, or of another epoch), Next
	// returns only the newest link: its Delta does not lead from have, and the
	// caller calls Fetch. If the head is below have, or is have with another
	// root, Next returns a *MismatchError, once per head.
	Next(ctx context.Context, have ident.Position, root ident.Hash) ([]Update, error)
	Close() error
}

// MismatchError reports that the chain was rewound: its head is older than the
// follower's version, or is the same version with another content.
type MismatchError struct {
	Have, Head     ident.Position
	Root, HeadRoot ident.Hash
}

// Error implements error.
func (e *MismatchError) Error() string {
	return "the version chain was rewound: its head is " + e.Head.String() + " (root " + e.HeadRoot.String()[:12] +
		"), the local version is " + e.Have.String() + " (root " + e.Root.String()[:12] + ")"
}
