// Package past reads the past of a mesh: what changed, when and why, and whether
// the same log still makes the same versions.
//
// It reads a log and a chain of versions from a bus, from the data directory of
// a process that has ended, or from an archive.
package past

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/store"
)

// Past gives access to the log, versions and blobs of a mesh in one place. A field
// is nil if the place does not have it: a builder's file has versions and no log.
type Past struct {
	// Name names the place in messages.
	Name     string
	Log      Log
	Versions Versions
	Blobs    store.Blobs // only to be read
	// Nodes returns the proxies that were connected when an archive was written, sorted by
	// id; the error is ErrNoNodes if the archive does not hold them. nil: this is no archive.
	Nodes func(ctx context.Context) ([]*reportv1.ProxyReply, error)
	// Live says that records and versions are still being added.
	Live bool
}

// Log is an event log.
type Log interface {
	events.Reader
	events.RawReader
}

// Versions reads published versions.
type Versions interface {
	// Fetch returns a version with its content; store.ErrNotFound if there is no
	// such version, or no longer.
	Fetch(ctx context.Context, v ident.Position) (store.Stored, error)
	// History yields the manifests, newest first.
	History(ctx context.Context) iter.Seq2[*store.Manifest, error]
	store.Copier
}

// ErrNoLog says that the place has versions and no log.
var ErrNoLog = errors.New("holds versions and no log; the log is on the bus (--bus), in the data directory of `meshlog up`, and in an archive (--archive)")

// HasLog returns ErrNoLog if there is no log.
func (p *Past) HasLog() error {
	if p.Log == nil {
		return fmt.Errorf("%s: %w", p.Name, ErrNoLog)
	}
	return nil
}

// FromStore returns the versions in a store.
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

// Updates implements Versions. It is not called, because there is no log.
func (kept) Updates(context.Context, ident.Position) iter.Seq2[store.Update, error] {
	return func(yield func(store.Update, error) bool) { yield(store.Update{}, errors.ErrUnsupported) }
}

// link is a version's place on the chain, without the manifest, because there may
// be many large ones.
type link struct {
	version, previous  ident.Position
	root, previousRoot ident.Hash
	record             ident.Hash
	build              string
}

// links collects a History, oldest first.
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

// chained is a version with its content and the delta that led to it.
type chained struct {
	store.Stored
	delta store.Delta
}

// assemble yields the versions from one on, whose content can be read; oldest
// first. It ends with the first error. Beside an error of Fetch it yields the
// manifest of the version that Fetch does not return, beside others no manifest.
func assemble(ctx context.Context, versions Versions, from ident.Position) iter.Seq2[chained, error] {
	return func(yield func(chained, error) bool) {
		var c chained
		for u, err := range versions.Updates(ctx, from) {
			if err != nil {
				yield(chained{}, err)
				return
			}
			next := chained{store.Stored{Manifest: u.Manifest}, u.Delta}
			if prev, _ := store.PreviousOf(u.Manifest); c.Manifest != nil && prev == c.Version() {
				next.Snapshot = c.Snapshot.With(u.Delta)
			} else {
				at, err := versions.Fetch(ctx, next.Version())
				if err != nil {
					yield(next, err)
					return
				}
				next.Snapshot = at.Snapshot
			}
			c = next
			if !yield(c, nil) {
				return
			}
		}
	}
}
