package past

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"

	"meshlog.dev/events"
	"meshlog.dev/events/archive"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/store"
)

// The files of an archive, beside its log:
//
//	blobs/<hash>           a blob
//	versions/<epoch>.<seq> a run of versions, named by the first of them: each is
//	                       an Update, preceded by its length. The first has a
//	                       checkpoint of its own content.
//	nodes                  the proxies that were connected, sorted by id: each is a
//	                       ProxyReply without resources, preceded by its length.
//	                       Archives of a mesh that has ended do not have the file.
const (
	blobFiles    = "blobs/"
	versionFiles = "versions/"
	nodesFile    = "nodes"
)

func blobFile(h ident.Hash) string { return blobFiles + h.String() }

// versionFile returns a name that sorts as versions do.
func versionFile(v ident.Position) string {
	return fmt.Sprintf("%s%020d.%020d", versionFiles, v.Epoch, v.Seq)
}

// FromArchive returns the Past in an archive.
func FromArchive(name string, a *archive.Archive) *Past {
	v := &archived{file: a, runs: a.Files(versionFiles)}
	nodes := func(ctx context.Context) ([]*reportv1.ProxyReply, error) { return readNodes(ctx, name, a) }
	return &Past{Name: name, Log: a, Versions: v, Blobs: v, Nodes: nodes}
}

// archived reads the versions and blobs of an archive. One goroutine uses it,
// several may call GetBlob.
type archived struct {
	file   *archive.Archive
	runs   []string // names of the files with versions, oldest first
	recent int      // index in runs of the run in last
	last   []store.Update
}

// run reads a file of versions, oldest first.
func (a *archived) run(ctx context.Context, i int) ([]store.Update, error) {
	if a.last != nil && a.recent == i {
		return a.last, nil
	}
	updates, err := a.read(ctx, i)
	if err == nil {
		a.recent, a.last = i, updates
	}
	return updates, err
}

// read is run without what was read last.
func (a *archived) read(ctx context.Context, i int) (updates []store.Update, err error) {
	err = a.each(ctx, i, func(one []byte) error {
		u, _, err := store.DecodeUpdate(one)
		updates = append(updates, u)
		return err
	})
	return updates, err
}

// manifests reads those of a run, oldest first. It is safe for concurrent use.
func (a *archived) manifests(ctx context.Context, i int) (all []*store.Manifest, err error) {
	err = a.each(ctx, i, func(one []byte) error {
		m, err := store.DecodeUpdateManifest(one)
		all = append(all, m)
		return err
	})
	return all, err
}

// each calls decode with each encoded update of a run.
func (a *archived) each(ctx context.Context, i int, decode func([]byte) error) error {
	b, err := a.file.File(ctx, a.runs[i])
	for err == nil && len(b) > 0 {
		one, n := protowire.ConsumeBytes(b)
		if err = protowire.ParseError(n); err == nil {
			err, b = decode(one), b[n:]
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", a.runs[i], err)
	}
	return nil
}

// runsAtOnce is how many runs History reads at once for each core, if it has read some: most
// callers want the newest version only.
const runsAtOnce = 4

// readBack reads the manifests of n runs from i on down, with all cores.
func (a *archived) readBack(ctx context.Context, i, n int) ([][]*store.Manifest, error) {
	runs, errs := make([][]*store.Manifest, n), make([]error, n)
	var all sync.WaitGroup
	for j := range n {
		all.Go(func() { runs[j], errs[j] = a.manifests(ctx, i-j) })
	}
	all.Wait()
	return runs, errors.Join(errs...)
}

// GetBlob implements store.Blobs.
func (a *archived) GetBlob(ctx context.Context, h ident.Hash) ([]byte, error) {
	b, err := a.file.File(ctx, blobFile(h))
	if errors.Is(err, events.ErrNotFound) {
		return nil, fmt.Errorf("blob %s: %w", h, store.ErrNotFound)
	}
	if err == nil && ident.HashOf(b) != h {
		err = fmt.Errorf("blob %s: %w", h, store.ErrCorrupt)
	}
	return b, err
}

// PutBlob implements store.Blobs. An open archive cannot be changed.
func (a *archived) PutBlob(context.Context, []byte) (ident.Hash, error) {
	return ident.Hash{}, errors.ErrUnsupported
}

// History implements Versions.
func (a *archived) History(ctx context.Context) iter.Seq2[*store.Manifest, error] {
	return func(yield func(*store.Manifest, error) bool) {
		for i, n := len(a.runs)-1, 1; i >= 0; {
			runs, err := a.readBack(ctx, i, min(n, i+1))
			if err != nil {
				yield(nil, err)
				return
			}
			for _, manifests := range runs {
				for _, m := range slices.Backward(manifests) {
					if !yield(m, nil) {
						return
					}
				}
			}
			i, n = i-len(runs), min(2*n, runsAtOnce*runtime.GOMAXPROCS(0))
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
	i, found := slices.BinarySearch(a.runs, versionFile(v))
	if found {
		return i
	}
	return i - 1
}

// Fetch implements Versions.
func (a *archived) Fetch(ctx context.Context, v ident.Position) (store.Stored, error) {
	at, err := a.content(ctx, v)
	if err != nil {
		return store.Stored{}, fmt.Errorf("fetch version %s: %w", v, err)
	}
	return at, nil
}

// content applies the deltas of a run, up to that of v, to the checkpoint of the
// run's first version.
func (a *archived) content(ctx context.Context, v ident.Position) (at store.Stored, err error) {
	i := a.find(v)
	if i < 0 {
		return at, store.ErrNotFound
	}
	run, err := a.run(ctx, i)
	if err != nil {
		return at, err
	}
	last := slices.IndexFunc(run, func(u store.Update) bool { return store.VersionOf(u.Manifest.GetVersion()) == v })
	if last < 0 {
		return at, store.ErrNotFound
	}
	s, err := store.ReadCheckpoint(ctx, a, run[0].Manifest.GetCheckpoint())
	if err != nil {
		return at, err
	}
	for _, u := range run[1 : last+1] {
		s = s.With(u.Delta)
	}
	at = store.Stored{Manifest: run[last].Manifest, Snapshot: s}
	return at, checkRoot(at)
}

// checkRoot returns store.ErrCorrupt unless a content has the root in its manifest.
func checkRoot(at store.Stored) error {
	if root := at.Snapshot.Root(); root != store.RootOf(at.Manifest) {
		return fmt.Errorf("it has root %s, its manifest says %s: %w", root, store.RootOf(at.Manifest), store.ErrCorrupt)
	}
	return nil
}

// encodeUpdate adds an update to a run.
func encodeUpdate(run []byte, u store.Update) ([]byte, error) {
	b, err := store.EncodeUpdate(u, ident.Hash{})
	return protowire.AppendBytes(run, b), err
}
