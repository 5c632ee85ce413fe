// Package mcpxds watches a source of Istio's objects over MCP-over-xDS: istiod, Higress,
// slime, or the module istio of Nacos. README.md says what such sources do and what the
// watcher makes of it.
//
// A run has one stream (stream.go) to the source's address. It asks for each type of the
// table (types.go), decodes what comes (decode.go), finds out what has changed (set.go)
// and reports it (run.go). Nothing of a run is kept for the next one, except for the
// numbers of objects, which make the watcher distrust a listing that lacks many.
package mcpxds

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/registry"
)

// Source is the source of the shards of MCP-over-xDS sources.
const Source = "mcpxds"

// Config describes a source and what to ask it for.
type Config struct {
	// Address of the source, as host:port.
	Address string
	TLS     TLS
	// ID and Namespace name this process to the source, which may decide by the
	// namespace what it sends.
	ID, Namespace string
	// Revision: objects with another one in their label istio.io/rev are hidden. The
	// source is told, too. Empty: all objects are seen.
	Revision string
	// Incremental: an answer has only what has changed, and an object without a body is
	// deleted. Without it an answer is the whole set of its type.
	Incremental bool
	// MeshConfig: the source is asked for its MeshConfig, which it may publish only if a
	// rule in the mesh's policy says so.
	MeshConfig bool

	Metrics *Metrics // nil: new ones
	// Status is told what is read; nil: a new one.
	Status *registry.Status
}

// Watcher watches a source. Only one goroutine at a time may call Run.
type Watcher struct {
	cfg    Config
	limits limits
	// patience is how long a run waits for the first answers. It grows when a type was
	// answered later than that, so that a slow source is not asked again and again.
	patience time.Duration
	// doubts say by kind which listings may remove objects.
	doubts map[string]*registry.Doubt
	// confirming: the next run is the second read of what is in doubt.
	confirming bool
	failed     int // runs in a row that ended with an error
}

// New returns a watcher of a source. It does not contact the source.
func New(cfg Config) *Watcher {
	cfg.ID, cfg.Namespace = cmp.Or(cfg.ID, "meshlog"), cmp.Or(cfg.Namespace, "istio-system")
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics("")
	}
	if cfg.Status == nil {
		cfg.Status = registry.NewStatus(ident.Shard{Source: Source})
	}
	return &Watcher{cfg: cfg, limits: defaultLimits(), doubts: map[string]*registry.Doubt{}}
}

// limits are durations, which tests shorten.
type limits struct {
	// answer is how long a run waits at first for a type; longest bounds how that grows.
	answer, longest time.Duration
	// versions is how long a run waits for the other versions of a kind after the last
	// answer of the source.
	versions time.Duration
	// doubt is the time before the second read of a listing in doubt.
	doubt time.Duration
	// jitter bounds the random wait before the first retry; it doubles up to a quarter of
	// the publisher's longest pause.
	jitter time.Duration
}

func defaultLimits() limits {
	return limits{answer: 10 * time.Second, longest: 5 * time.Minute, versions: 2 * time.Second, doubt: 30 * time.Second, jitter: 60 * time.Millisecond}
}

// doublings bounds the growth of the jitter.
const doublings = 7

// Run implements watcher.Watcher. The source is down while no stream to it stands.
func (w *Watcher) Run(ctx context.Context, sink watcher.Sink) error {
	if w.failed > 0 { // watchers of one source must not come back together
		wait := rand.N(w.limits.jitter << min(w.failed-1, doublings))
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if w.patience == 0 {
		w.patience = w.limits.answer
	}
	for _, d := range w.doubts {
		if !w.confirming || d.Reason() == "" {
			d.Suspect("the connection is new")
		}
	}
	w.confirming = false
	err := w.watch(ctx, sink)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		w.cfg.Status.Count(err)
	}
	if w.failed++; err == nil {
		w.failed = 0
	}
	return err
}

// doubt returns the doubt about a kind.
func (w *Watcher) doubt(kind string) *registry.Doubt {
	d := w.doubts[kind]
	if d == nil {
		d = &registry.Doubt{Wait: w.limits.doubt}
		w.doubts[kind] = d
	}
	return d
}
