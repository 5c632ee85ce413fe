package builder

import (
	"context"
	"net/http"
	"time"

	"meshlog.dev/services/builder"
	"meshlog.dev/services/internal/process"
)

// foldWithin is how long the page waits for a builder that is busy.
const foldWithin = 5 * time.Second

type foldState struct {
	Position  string       `json:"position"`
	Epoch     uint64       `json:"epoch"`
	Build     string       `json:"build"`   // of the segment
	Backlog   int          `json:"backlog"` // records that wait for the leader's next version
	Keys      int          `json:"keys"`
	Overlays  int          `json:"overlays"`
	Strangers uint64       `json:"strangers"` // records of sessions that had ended
	Undecoded uint64       `json:"undecoded"`
	Shards    []shardState `json:"shards"`
}

type shardState struct {
	Shard     string `json:"shard"`
	State     string `json:"state"`
	Session   string `json:"session,omitempty"`
	Holder    string `json:"holder,omitempty"`
	MustList  string `json:"mustList,omitempty"` // the reason
	Keys      int    `json:"keys"`
	LastSeq   uint64 `json:"lastSeq"`
	Staged    int    `json:"staged"` // records that wait for the rest of their batch
	Strangers uint64 `json:"strangers"`
}

// foldPage returns a debug page.
func foldPage(b *builder.Builder) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if process.Params(w, r) == nil {
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), foldWithin)
		defer cancel()
		f, err := b.FoldState(ctx)
		if err != nil {
			http.Error(w, "the builder is busy, or waits for the bus; try again", http.StatusServiceUnavailable)
			return
		}
		process.WriteJSON(w, viewFold(f))
	}
}

func viewFold(f builder.FoldState) foldState {
	view := foldState{
		Position: f.Position.String(), Epoch: f.Segment.Epoch, Build: f.Segment.Build, Backlog: f.Backlog,
		Keys: f.Counts.Keys, Overlays: f.Counts.Overlays, Strangers: f.Counts.Strangers, Undecoded: f.Counts.Undecoded,
		Shards: []shardState{},
	}
	for _, s := range f.Shards {
		state := "not listed in this epoch"
		switch {
		case s.Listing:
			state = "listing"
		case s.Synced:
			state = "synced"
		case s.Partial:
			state = "partial"
		}
		view.Shards = append(view.Shards, shardState{
			Shard: s.Shard.String(), State: state, Session: s.Session, Holder: s.Holder, MustList: s.Need,
			Keys: s.Keys, LastSeq: s.Seq, Staged: s.Staged, Strangers: s.Strangers,
		})
	}
	return view
}
