// Package history answers questions about the past of a mesh: what changed,
// when, why, and whether it can be made again from the log.
//
// It reads a log and a chain of versions, wherever they are: on a bus, in the
// data directory of a process that has ended, in an archive.
package history

import (
	"context"
	"iter"

	"meshlog.dev/events"
	"meshlog.dev/store"
)

// Past is what can be read of a mesh. What is not there is nil: a builder's
// file has versions and no log.
type Past struct {
	// Name says where it is, for people.
	Name     string
	Log      events.Reader
	Versions Versions
	Blobs    Blobs
}

// Versions are versions that were published.
type Versions interface {
	// Fetch returns a version with its content; store.ErrNotFound if it is not,
	// or no longer, there.
	Fetch(ctx context.Context, v store.Version) (store.Stored, error)
	// History yields the manifests, newest first.
	History(ctx context.Context) iter.Seq2[*store.Manifest, error]
}

// Blobs are bytes by their hash.
type Blobs interface {
	// GetBlob returns store.ErrNotFound if there is none of that name.
	GetBlob(ctx context.Context, h store.Hash) ([]byte, error)
}
