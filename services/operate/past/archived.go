package past

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"sync"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// Archive is an open archive. events/archive implements it.
type Archive interface {
	Log
	// File returns events.ErrNotFound if there is no file of that name.
	File(ctx context.Context, name string) ([]byte, error)
	// Files returns the names that begin with a prefix, sorted.
	Files(prefix string) []string
}

// The files of an archive, beside its log:
//
//	blobs/<hash>           a blob
//	versions/<epoch>.<seq> a run of versions, named by the first of them: each is
//	                       an Update, preceded by its length. The first has a
//	                       checkpoint of its own content.
const (
	blobFiles    = "blobs/"
	versionFiles = "versions/"
)

func blobFile(h ident.Hash) string { return blobFiles + h.String() }

// versionFile returns a name that sorts as versions do.
func versionFile(v ident.Position) string {
	return fmt.Sprintf("%s%020d.%020d", versionFiles, v.Epoch, v.Seq)
}

// FromArchive returns the Past in an archive.
func FromArchive(name string, a Archive) *Past {
	v := &archived{a: a, runs: a.Files(versionFiles)}
	return &Past{Name: name, Log: a, Versions: v, Blobs: v}
}

// archived reads the versions and blobs of an archive.
type archived struct {
	a    Archive
	runs []string // names of the files with versions, oldest first

	mu     sync.Mutex // protects what follows
	recent int        // index in runs of the run in last
	last   []store.Update
}

// run reads a file of versions, oldest first.
func (a *archived) run(ctx context.Context, i int) ([]store.Update, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last != nil && a.recent == i {
		return a.last, nil
	}
	b, err := a.a.File(ctx, a.runs[i])
	if err != nil {
		return nil, err
	}
	updates, err := decodeRun(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.runs[i], err)
	}
	a.recent, a.last = i, updates
	return updates, nil
}

// GetBlob implements Blobs.
func (a *archived) GetBlob(ctx context.Context, h ident.Hash) ([]byte, error) {
	b, err := a.a.File(ctx, blobFile(h))
	if errors.Is(err, events.ErrNotFound) {
		return nil, fmt.Errorf("blob %s: %w", h, store.ErrNotFound)
	}
	if err == nil && ident.HashOf(b) != h {
		err = fmt.Errorf("blob %s: %w", h, store.ErrCorrupt)
	}
	return b, err
}

// History implements Versions.
func (a *archived) History(ctx context.Context) iter.Seq2[*store.Manifest, error] {
	return func(yield func(*store.Manifest, error) bool) {
		for i := len(a.runs) - 1; i >= 0; i-- {
			updates, err := a.run(ctx, i)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, u := range slices.Backward(updates) {
				if !yield(u.Manifest, nil) {
					return
				}
			}
		}
	}
}

// Updates implements Versions.
func (a *archived) Updates(ctx context.Context, from ident.Position) iter.Seq2[store.Update, error] {
	return func(yield func(store.Update, error) bool) {
		for i := max(0, a.find(from)); i < len(a.runs); i++ {
			updates, err := a.run(ctx, i)
			if err != nil {
				yield(store.Update{}, err)
				return
			}
			for _, u := range updates {
				if store.VersionOf(u.Manifest.GetVersion()).Less(from) {
					continue
				}
				if !yield(u, nil) {
					return
				}
			}
		}
	}
}

// find returns the index of the run in which v would be; -1 if v is before all.
func (a *archived) find(v ident.Position) int {
	i, found := slices.BinarySearchFunc(a.runs, versionFile(v), strings.Compare)
	if found {
		return i
	}
	return i - 1
}

// Fetch implements Versions.
func (a *archived) Fetch(ctx context.Context, v ident.Position) (store.Stored, error) {
	i := a.find(v)
	if i < 0 {
		return store.Stored{}, fmt.Errorf("fetch version %s: %w", v, store.ErrNotFound)
	}
	updates, err := a.run(ctx, i)
	if err != nil {
		return store.Stored{}, fmt.Errorf("fetch version %s: %w", v, err)
	}
	at, err := a.content(ctx, updates, v)
	if err != nil {
		return store.Stored{}, fmt.Errorf("fetch version %s: %w", v, err)
	}
	return at, nil
}

// content applies the deltas of a run up to v to the nearest checkpoint.
func (a *archived) content(ctx context.Context, run []store.Update, v ident.Position) (store.Stored, error) {
	last := slices.IndexFunc(run, func(u store.Update) bool { return store.VersionOf(u.Manifest.GetVersion()) == v })
	if last < 0 {
		return store.Stored{}, store.ErrNotFound
	}
	whole := last
	for whole > 0 && run[whole].Manifest.GetCheckpoint() == nil {
		whole--
	}
	s, err := store.ReadCheckpoint(ctx, blobs{&Past{Blobs: a}}, run[whole].Manifest.GetCheckpoint())
	if err != nil {
		return store.Stored{}, err
	}
	for _, u := range run[whole+1 : last+1] {
		s = s.With(u.Delta)
	}
	at := store.Stored{Manifest: run[last].Manifest, Snapshot: s}
	if root := s.Root(); root != store.RootOf(at.Manifest) {
		return store.Stored{}, fmt.Errorf("it has root %s, its manifest says %s: %w", root, store.RootOf(at.Manifest), store.ErrCorrupt)
	}
	return at, nil
}

// encodeUpdate adds an update to a run.
func encodeUpdate(run []byte, u store.Update) ([]byte, error) {
	b, err := store.EncodeUpdate(u, ident.Hash{})
	if err != nil {
		return nil, err
	}
	return append(binary.AppendUvarint(run, uint64(len(b))), b...), nil
}

func decodeRun(b []byte) ([]store.Update, error) {
	r := bytes.NewReader(b)
	var updates []store.Update
	for r.Len() > 0 {
		n, err := binary.ReadUvarint(r)
		if err == nil && n > uint64(r.Len()) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, err
		}
		one := make([]byte, n)
		if _, err := io.ReadFull(r, one); err != nil {
			return nil, err
		}
		u, _, err := store.DecodeUpdate(one)
		if err != nil {
			return nil, err
		}
		updates = append(updates, u)
	}
	return updates, nil
}
