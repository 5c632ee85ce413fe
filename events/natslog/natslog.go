// Package natslog keeps the log on NATS JetStream: each message of a stream is
// an event, and its sequence is the event's position.
//
// The caller makes the connection and decides how it reconnects. Give it
// nats.ReconnectBufSize(-1): an append while it is down then fails at once,
// instead of being sent much later.
//
// The server fences appends, by the headers for the expected last sequence. It
// may call a retry a conflict, because the first attempt moved the sequence
// past the fence; so Append reads the record after the fence before it reports
// a conflict. A batch is a JetStream atomic batch.
//
// A follower reads with an ephemeral consumer and replaces it, under a new
// name, when it falls silent: the server may have placed the consumer on a
// peer that is gone, where it would hang until that peer is back.
package natslog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/proto/jsapi"
)

// Stream holds the log.
const Stream = "MESHLOG_EVENTS"

// Options name the log.
type Options struct {
	// Domain is the name of the mesh, a token of every subject; default "mesh".
	Domain string
	// Shard, if not nil, is the only shard that the log reads and writes. The
	// client then needs ShardPermissions only, and cannot Follow. Any server
	// may answer Last, so its answer may be old; Get returns the shard's newest
	// record, and of another shard's newest record only the time.
	Shard *ident.Shard
}

func (o Options) domain() string { return cmp.Or(o.Domain, "mesh") }

// Log is a log on JetStream. It is safe for concurrent use.
type Log struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	domain  string
	prefix  string       // of the log's subjects
	shard   *ident.Shard // nil: all shards
	maxSize int          // of a message with its headers, in bytes

	closing sync.Once
	closed  chan struct{}
}

// Open opens the log in an existing stream; see EnsureStream. It fails if the
// stream's settings break a promise of the log. The caller closes the
// connection.
func Open(ctx context.Context, nc *nats.Conn, o Options) (*Log, error) {
	js, err := jetstream.New(nc,
		jetstream.WithDefaultTimeout(jsapi.Timeout),
		jetstream.WithPublishAsyncMaxPending(maxPending),
		jetstream.WithPublishAsyncTimeout(jsapi.Timeout),
	)
	if err != nil {
		return nil, fmt.Errorf("open log %s: %w", Stream, err)
	}
	l := &Log{nc: nc, js: js, domain: o.domain(), shard: o.Shard, closed: make(chan struct{})}
	l.prefix = events.Subject("").In(l.domain)
	info, err := l.info(ctx)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("open log %s: there is no such stream: a builder makes it when it starts", Stream)
	}
	if err != nil {
		return nil, fmt.Errorf("open log %s: %w", Stream, err)
	}
	if err := faults(info.Config, l.domain).Err(); err != nil {
		return nil, fmt.Errorf("open log %s: %w", Stream, err)
	}
	l.maxSize = int(nc.MaxPayload())
	if limit := int(info.Config.MaxMsgSize); limit > 0 {
		l.maxSize = min(l.maxSize, limit)
	}
	return l, nil
}

// Generation implements events.Reader. It counts connections.
func (l *Log) Generation() uint64 { return l.nc.Stats().Reconnects + 1 }

// Bounds implements events.Reader.
func (l *Log) Bounds(ctx context.Context) (events.Bounds, error) {
	info, err := l.info(ctx)
	if err != nil {
		return events.Bounds{}, fmt.Errorf("bounds of %s: %w", Stream, err)
	}
	b := events.Bounds{First: info.State.FirstSeq, Last: info.State.LastSeq}
	if info.State.Msgs == 0 {
		b.First = b.Last + 1
	}
	return b, nil
}

// Close ends the log and its followers. It leaves the connection open.
func (l *Log) Close() error {
	l.closing.Do(func() {
		close(l.closed)
		l.js.CleanupPublisher()
	})
	return nil
}

// info asks the stream's leader.
func (l *Log) info(ctx context.Context) (*jetstream.StreamInfo, error) {
	if err := l.ready(ctx); err != nil {
		return nil, err
	}
	rctx, cancel := l.bound(ctx, jsapi.StreamInfo+Stream)
	defer cancel()
	s, err := l.js.Stream(rctx, Stream)
	if err != nil {
		return nil, l.explain(ctx, jsapi.Cause(rctx, err))
	}
	return s.CachedInfo(), nil // just fetched
}

// ready returns the reason why a request cannot succeed now, nil if it may.
func (l *Log) ready(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if l.isClosed() {
		return events.ErrClosed
	}
	if !l.nc.IsConnected() {
		return nats.ErrDisconnected
	}
	return nil
}

func (l *Log) isClosed() bool {
	select {
	case <-l.closed:
		return true
	default:
		return l.nc.IsClosed()
	}
}

// bound bounds a request to a subject that begins so.
func (l *Log) bound(ctx context.Context, subject string) (context.Context, context.CancelFunc) {
	return jsapi.Bound(ctx, l.nc, jsapi.Timeout, subject)
}

// explain returns why a request failed: the caller's context ended, the log was
// closed, or err. It reports a deadline only if that was the caller's.
func (l *Log) explain(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case l.isClosed():
		return events.ErrClosed
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: the server did not answer", nats.ErrTimeout)
	}
	return err
}
