package builder

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"meshlog.dev/store/memstore"
)

func TestFoldState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		b := r.run(Options{Config: r.config("b0", "one", &memstore.File{}), Lease: leads()})
		r.segments(1)
		r.list()
		r.put("a", "good 1")
		next(t, r.chain, nil)
		f, err := b.FoldState(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if f.Position != fmt.Sprintf("%d.%d", f.Epoch, r.bounds().Last) || f.Build != "one" || f.Keys != 1 || f.Backlog != 0 {
			t.Errorf("fold state: %+v", f)
		}
		if len(f.Shards) != 1 || f.Shards[0].State != "synced" || f.Shards[0].Keys != 1 || f.Shards[0].LastSeq == 0 {
			t.Errorf("shards: %+v", f.Shards)
		}
		// A builder that does not run does not answer.
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if _, err := New(Options{Config: r.config("b1", "one", &memstore.File{})}).FoldState(ctx); err == nil {
			t.Error("a builder that does not run reported its fold")
		}
	})
}
