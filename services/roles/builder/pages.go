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
		process.WriteJSON(w, f)
	}
}
