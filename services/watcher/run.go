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

// Config configures a publisher.
type Config struct {
	Shard ident.Shard
	// Holder names this process, also after a restart. Its twin has another name.
	Holder string
	// Identity names what the watcher reads, such as a datacenter. If another watcher
	// has published something else for the shard, Run returns an ErrIdentity (REG-12).
	// Empty: there is no check.
	Identity string
	Log      Log
	Leader   Leader
	// Permissions are nil if the log takes all objects of the shard.
	Permissions Permissions
	// NewID makes a unique name; nil: a random one.
	NewID  func() string
	Logger *slog.Logger // nil: slog.Default
	// OnState is called with every new State, from the goroutine of Run, unless
	// it is nil. It must not block.
	OnState func(State)

	// Metrics are the publisher's metrics; nil: new ones.
	Metrics *Metrics
	// Tracer makes spans of published changes; nil: none.
	Tracer *tracing.Tracer

	// Watcher is what Run runs.
	Watcher Watcher
	// ListingRequests carries the reasons for which the leader asks for a new
	// listing. It has a buffer, because the publisher looks at its length; requests
	// for an unbuffered channel get lost. At the begin of a listing the publisher
	// drops the requests that wait. It is never closed.
	ListingRequests <-chan string
}

// Log is the part of a log that a publisher uses.
type Log interface {
	events.Appender
	Bounds(ctx context.Context) (events.Bounds, error)
	Get(ctx context.Context, seq uint64) (events.Record, error)
	Last(ctx context.Context, subject events.Subject) (events.Record, error)
}

// Leader is the builder that leads.
type Leader interface {
	// Digests returns the leader's bucket digests of the shard's keys of these
	// kinds, after the begin of this session. It takes 3 s at most; on an error
	// the publisher sends everything.
	Digests(ctx context.Context, shard ident.Shard, session string, kinds events.Kinds) (*events.ShardDigests, error)
}

// Phase is a phase of a publisher.
type Phase string

// The phases of a publisher.
const (
	PhaseStandby   Phase = "standby"   // another holder publishes for the shard
	PhaseListing   Phase = "listing"   // a session has begun, its listing is not closed
	PhaseFollowing Phase = "following" // changes are published as they come
	PhaseDown      Phase = "down"      // the source cannot be read; its shard is frozen
)

// State is the state of a publisher, for people.
type State struct {
	Phase   Phase
	Session string // empty in standby
	Keys    int    // objects of the shard
	Pending int    // changes seen and not yet acknowledged
	Partial bool   // something of the source cannot be read
	// Listed and Changed are when the log had all of the last listing, and of the
	// last change; zero: there was none.
	Listed, Changed time.Time
	Down            time.Time // since when the source is down; zero: it is not
	// Diagnostics are the problems that are not on the log, sorted.
	Diagnostics []problem.Diagnostic
}

// Run publishes the objects of cfg.Watcher until ctx is done or the log is
// closed, and returns that error, or an ErrIdentity. It stands by while another holder
// publishes for the shard. No goroutine outlives it.
func Run(ctx context.Context, cfg Config) error {
	in := NewInbox(cfg.Watcher, cfg.ListingRequests)
	defer in.Rest()
	return NewPublisher(cfg, in).Run(ctx)
}
