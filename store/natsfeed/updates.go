package natsfeed

import (
	"context"
	"fmt"
	"iter"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// Updates implements store.Copier.
func (f *Feed) Updates(ctx context.Context, from ident.Position) iter.Seq2[store.Update, error] {
	return func(yield func(store.Update, error) bool) {
		info, err := f.stream.Info(ctx)
		if err != nil {
			yield(store.Update{}, fmt.Errorf("read the version chain: stream %s: %w", Stream, err))
			return
		}
		last := info.State.LastSeq
		for first := max(info.State.FirstSeq, 1); first <= last; first += window {
			run, err := f.between(ctx, first, min(first+window-1, last))
			if err != nil {
				yield(store.Update{}, fmt.Errorf("read the version chain: %w", err))
				return
			}
			for _, m := range run {
				if store.VersionOf(m.update.Manifest.GetVersion()).Less(from) {
					continue
				}
				u := store.Update{Manifest: m.update.Manifest}
				if u.Delta, err = f.delta(ctx, m); err != nil {
					err = fmt.Errorf("delta of version %s: %w", store.VersionOf(u.Manifest.GetVersion()), err)
				}
				if !yield(u, err) || err != nil {
					return
				}
			}
		}
	}
}
