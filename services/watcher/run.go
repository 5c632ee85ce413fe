package watcher

import (
	"context"
	"log/slog"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/tracing"
	"meshlog.dev/services/mesh/problem"
)

// Config says for which shard, to which log and with whose help a publisher
// speaks.
type Config struct {
	Shard ident.Shard
	// Holder is the name of this process, the same after a restart. A twin of
	// it has another one.
	Holder string
	Log    Log
	Leader Leader
	// NewID makes a name that nobody else uses; nil: a random one.
	NewID  func() string
	Logger *slog.Logger // nil: slog.Default
	// OnState is called with every new State, from the goroutine of Run; nil:
	// nobody wants to know. It must not block.
	OnState func(State)

	// Metrics are counted here; nil counts nowhere.
	Metrics *Metrics
	// Tracer makes spans of what is published; nil: of nothing.
	Tracer *tracing.Tracer

	// Watcher is what Run runs.
	Watcher Watcher
	// ListingRequests carries the leader's wish for a new listing, with its
	// reason. Requests that come when a listing is under way are dropped.
	ListingRequests <-chan string
}

// Log is what a publisher needs of a log.
type Log interface {
	events.Appender
	Bounds(ctx context.Context) (events.Bounds, error)
	Get(ctx context.Context, seq uint64) (events.Record, error)
	Last(ctx context.Context, subject events.Subject) (events.Record, error)
}

// Leader is the builder that leads.
type Leader interface {
	// Digests are the bucket digests of what the leader has offered of the
	// shard, over the keys of these kinds, after the begin of this session. It
	// takes 3 s at most; with an error everything is sent.
	Digests(ctx context.Context, shard ident.Shard, session string, kinds events.Kinds) (*events.ShardDigests, error)
}

// Phase is what a publisher is at.
type Phase string

// The phases of a publisher.
const (
	PhaseStandby   Phase = "standby"   // somebody else speaks for the shard
	PhaseListing   Phase = "listing"   // a session was begun, its listing is not closed
	PhaseFollowing Phase = "following" // changes are published as they come
	PhaseDown      Phase = "down"      // the source cannot be read; its shard is frozen
)

// State is what there is to say about a publisher.
type State struct {
	Phase   Phase
	Session string // empty in standby
	Keys    int    // objects of the shard
	Pending int    // changes seen and not yet acknowledged
	Partial bool   // something of the source cannot be read
	// Listed and Changed are when this publisher's last listing, and the last
	// change, were whole on the log; zero: none was.
	Listed, Changed time.Time
	Down            time.Time // since when the source is; zero: it is not
	// Diagnostics are the problems that are not on the log, sorted.
	Diagnostics []problem.Diagnostic
}

// Run publishes what cfg.Watcher sees until ctx is done or the log is closed,
// and returns why. It stands by as long as another holder speaks for the
// shard. No goroutine outlives it.
func Run(ctx context.Context, cfg Config) error {
	in := newInbox(cfg.Watcher, cfg.ListingRequests)
	defer in.Rest()
	return NewPublisher(cfg, in).Run(ctx)
}
