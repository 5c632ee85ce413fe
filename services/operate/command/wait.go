package command

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/store"
)

// Wait waits until a position of the log is published, and until streams have
// applied it. It compares positions by epoch and sequence: after a rewind a new
// epoch begins with a smaller sequence, so a larger sequence proves nothing. It
// believes only Newest and the leader's ticks about what is published: an answer of
// a process proves nothing.
type Wait struct {
	Fleet     *bus.Fleet
	Position  ident.Position
	Quota     Quota          // zero: publishing is enough
	Newest    ident.Position // the newest version when Run begins; zero: not known
	Each      func()         // if not nil, is called at the beginning and after each report, one call at a time
	frontends map[string]heard

	// Published is the first version with the content of Position: Position
	// itself, or an earlier version if no record between them changed anything.
	// Zero until it is published.
	Published ident.Position
	// Head is the version that was the newest when Published was set.
	Head ident.Position
}

type heard struct {
	*reportv1.FrontendReport
	at time.Time
}

// ErrNoBuilder says that no builder reports.
var ErrNoBuilder = errors.New("no builder answers, so nothing is published; is one running, and connected to this bus?")

// Run returns nil when the position is published and enough streams have applied
// it.
func (w *Wait) Run(ctx context.Context) error {
	w.frontends = map[string]heard{}
	listening, reached := context.WithCancel(ctx)
	defer reached()
	var mu sync.Mutex // protects w
	step := func(hear func()) {
		mu.Lock()
		defer mu.Unlock()
		if !w.Reached() { // a later report does not undo it
			hear()
		}
		if w.Reached() {
			reached()
		} else if w.Each != nil {
			w.Each()
		}
	}
	step(func() { w.setHead(w.Newest, w.Newest) })
	g, listening := errgroup.WithContext(listening)
	g.Go(func() error {
		return w.Fleet.Ticks(listening, func(t *reportv1.Tick) {
			step(func() { w.setHead(store.VersionOf(t.GetHead()), store.VersionOf(t.GetPosition())) })
		})
	})
	g.Go(func() error {
		return w.Fleet.FrontendReports(listening, func(r *reportv1.FrontendReport) { step(func() { w.addReport(r) }) })
	})
	g.Go(func() error {
		r, err := w.Fleet.Reports(listening, bus.Summary)
		if err != nil {
			return err
		}
		step(func() {
			for _, f := range r.Frontends {
				w.addReport(f)
			}
		})
		return nil
	})
	err := g.Wait()
	if w.Reached() {
		return nil
	}
	return cmp.Or(ctx.Err(), err)
}

// addReport adds a frontend's report, and drops frontends that leave or are silent.
func (w *Wait) addReport(r *reportv1.FrontendReport) {
	now := time.Now()
	w.frontends[r.GetFrontend()] = heard{r, now}
	maps.DeleteFunc(w.frontends, func(_ string, h heard) bool { return h.GetLeaving() || now.Sub(h.at) > bus.PeerSilence })
}

// setHead sets the newest version, and the position up to which the builder has
// read without finding a change.
func (w *Wait) setHead(head, read ident.Position) {
	switch {
	case !head.Less(w.Position):
		w.Published, w.Head = w.Position, head // streams that applied a later version count
	case !read.Less(w.Position):
		w.Published, w.Head = head, head
	}
}

// Count returns how many streams there are, and how many have applied the
// position.
func (w *Wait) Count() (applied, streams uint32) {
	for _, f := range w.frontends {
		streams += f.GetStreams()
		if !w.Published.IsZero() {
			applied += Applied(f.FrontendReport, w.Published)
		}
	}
	return applied, streams
}

// Reached reports whether the wait is over.
func (w *Wait) Reached() bool {
	applied, streams := w.Count()
	return !w.Published.IsZero() && applied >= w.Quota.Of(streams)
}

// Quota is a number of streams, or a share of those that are connected.
type Quota struct {
	count uint32
	share float64 // between 0 and 1; 0: count counts
}

// ParseQuota reads the value of --for: 95% or 3.
func ParseQuota(s string) (Quota, error) {
	if share, ok := strings.CutSuffix(s, "%"); ok {
		f, err := strconv.ParseFloat(share, 64)
		if err != nil || f <= 0 || f > 100 {
			return Quota{}, Usage("--for %q: want a share between 0%% and 100%%, or a number of proxies", s)
		}
		return Quota{share: f / 100}, nil
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return Quota{}, Usage("--for %q: want a share like 95%%, or a number of proxies", s)
	}
	return Quota{count: uint32(n)}, nil
}

// Of returns how many of that many streams are enough. A share of no streams is
// one stream: a caller that waits for proxies expects some to connect.
func (q Quota) Of(streams uint32) uint32 {
	if q.share == 0 {
		return q.count
	}
	return max(1, uint32(math.Ceil(q.share*float64(streams)-1e-9)))
}
