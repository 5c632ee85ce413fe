// Package past answers questions about the past of a mesh: what changed,
// when, why, and whether it can be made again from the log.
//
// It reads a log and a chain of versions, wherever they are: on a bus, in the
// data directory of a process that has ended, in an archive.
package past

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// Past is what can be read of a mesh. What is not there is nil: a builder's
// file has versions and no log.
type Past struct {
	// Name says where it is, for people.
	Name     string
	Log      Log
	Versions Versions
	Blobs    Blobs
	// Live says that more is to come.
	Live bool
}

// Log is a log as it is looked back at.
type Log interface {
	events.Reader
	events.RawReader
}

// Versions are versions that were published.
type Versions interface {
	// Fetch returns a version with its content; store.ErrNotFound if it is not,
	// or no longer, there.
	Fetch(ctx context.Context, v ident.Position) (store.Stored, error)
	// History yields the manifests, newest first.
	History(ctx context.Context) iter.Seq2[*store.Manifest, error]
	store.Copier
}

// Blobs are bytes by their hash.
type Blobs interface {
	// GetBlob returns store.ErrNotFound if there is none of that name.
	GetBlob(ctx context.Context, h ident.Hash) ([]byte, error)
}

// ErrNoLog says that a place has versions and no log.
var ErrNoLog = errors.New("holds versions and no log; the log is on the bus (--bus), in the data directory of `meshlog up`, and in an archive (--archive)")

// HasLog returns ErrNoLog where there is no log to be read.
func (p *Past) HasLog() error {
	if p.Log == nil {
		return fmt.Errorf("%s: %w", p.Name, ErrNoLog)
	}
	return nil
}

// FromStore makes the versions in a store readable as those of a Past.
func FromStore(r store.Reader) Versions { return kept{r} }

type kept struct{ r store.Reader }

// Fetch implements Versions.
func (k kept) Fetch(ctx context.Context, v ident.Position) (store.Stored, error) {
	return k.r.At(ctx, v)
}

// History implements Versions.
func (k kept) History(ctx context.Context) iter.Seq2[*store.Manifest, error] {
	return k.r.Manifests(ctx)
}

// Updates implements Versions.
func (k kept) Updates(ctx context.Context, from ident.Position) iter.Seq2[store.Update, error] {
	return func(yield func(store.Update, error) bool) {
		var before *store.Snapshot
		chain, err := links(k.r.Manifests(ctx))
		for _, l := range chain {
			if l.version.Less(from) {
				continue
			}
			var at store.Stored
			if at, err = k.r.At(ctx, l.version); err != nil {
				break
			}
			u := store.Update{Manifest: at.Manifest, Delta: store.Diff(before, at.Snapshot)}
			if before = at.Snapshot; !yield(u, nil) {
				return
			}
		}
		if err != nil {
			yield(store.Update{}, err)
		}
	}
}

// link is a version's place on the chain: manifests may be large, and there may
// be many.
type link struct {
	version, previous  ident.Position
	root, previousRoot ident.Hash
	record             ident.Hash
	build              string
}

// links collects what a History yields, oldest first.
func links(history iter.Seq2[*store.Manifest, error]) ([]link, error) {
	var all []link
	for m, err := range history {
		if err != nil {
			return nil, err
		}
		l := link{version: store.VersionOf(m.GetVersion()), root: store.RootOf(m), build: m.GetBuild()}
		l.previous, l.previousRoot = store.PreviousOf(m)
		if h, err := store.HashFrom(m.GetRecordHash()); err == nil {
			l.record = h
		}
		all = append(all, l)
	}
	slices.Reverse(all)
	return all, nil
}
