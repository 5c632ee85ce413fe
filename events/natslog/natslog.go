// Package natslog is the log on NATS JetStream: a stream in which each message
// is an event, its sequence the event's place.
//
// It works on a connection that somebody else made, who decides how to
// reconnect. Give that connection nats.ReconnectBufSize(-1): what is appended
// while it is down then fails at once, instead of being sent much later.
//
// Appends are fenced by the server, with the headers for the expected last
// sequence. A server may call a retry a conflict, because the first attempt
// itself moved what is fenced; so a conflict is believed only after a look at
// the record that took the place. A batch is a JetStream atomic batch.
//
// Followers read with an ephemeral consumer that is replaced, under a fresh
// name, whenever it falls silent: a consumer may be placed on a server that is
// gone, and would hang until it is back.
package natslog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
)

// What is used where nothing else is said.
const (
	DefaultStream = "MESHLOG_EVENTS"
	DefaultDomain = "mesh"
)

// requestTimeout is how long a request to the server may take.
const requestTimeout = 5 * time.Second

// Options say which log it is.
type Options struct {
	// Domain is the name of the mesh, a token of every subject. Default
	// DefaultDomain.
	Domain string
	// Stream is the name of the stream. Default DefaultStream.
	Stream string
	// Shard, if not nil, is the only one that is read or written: the client
	// needs no more permissions than ShardPermissions, and Follow is not for
	// it. Last is then answered by any server, which may lag a little; Get
	// knows the shard's newest record, and of the log's newest the time.
	Shard *ident.Shard
}

func (o Options) withDefaults() Options {
	if o.Domain == "" {
		o.Domain = DefaultDomain
	}
	if o.Stream == "" {
		o.Stream = DefaultStream
	}
	return o
}

// Log is a log on JetStream. It is safe for concurrent use.
type Log struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	domain  string
	stream  string
	shard   *ident.Shard // nil: all is read
	maxSize int          // of a message with its headers, in bytes

	closing sync.Once
	closed  chan struct{}
}

// Open returns the log in an existing stream; see EnsureStream. It fails where
// the stream's settings break what a log promises. The connection stays the
// caller's.
func Open(ctx context.Context, nc *nats.Conn, o Options) (*Log, error) {
	o = o.withDefaults()
	js, err := jetstream.New(nc,
		jetstream.WithDefaultTimeout(requestTimeout),
		jetstream.WithPublishAsyncMaxPending(maxPending),
		jetstream.WithPublishAsyncTimeout(requestTimeout),
	)
	if err != nil {
		return nil, fmt.Errorf("open log %s: %w", o.Stream, err)
	}
	l := &Log{nc: nc, js: js, domain: o.Domain, stream: o.Stream, shard: o.Shard, closed: make(chan struct{})}
	info, err := l.info(ctx)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("open log %s: there is no such stream: a builder makes it when it starts", o.Stream)
	}
	if err != nil {
		return nil, fmt.Errorf("open log %s: %w", o.Stream, err)
	}
	if err := checkConfig(info.Config, o.Domain); err != nil {
		return nil, fmt.Errorf("open log %s: %w", o.Stream, err)
	}
	l.maxSize = int(nc.MaxPayload())
	if limit := int(info.Config.MaxMsgSize); limit > 0 {
		l.maxSize = min(l.maxSize, limit)
	}
	return l, nil
}

// Generation implements events.Reader: it counts the connections.
func (l *Log) Generation() uint64 { return l.nc.Stats().Reconnects + 1 }

// Bounds implements events.Reader.
func (l *Log) Bounds(ctx context.Context) (events.Bounds, error) {
	info, err := l.info(ctx)
	if err != nil {
		return events.Bounds{}, fmt.Errorf("bounds of %s: %w", l.stream, err)
	}
	b := events.Bounds{First: info.State.FirstSeq, Last: info.State.LastSeq}
	if info.State.Msgs == 0 {
		b.First = b.Last + 1
	}
	return b, nil
}

// Close ends the log and its followers. The connection stays open.
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
	rctx, cancel := l.request(ctx, requestTimeout, infoAPI+l.stream)
	defer cancel()
	s, err := l.js.Stream(rctx, l.stream)
	if err != nil {
		return nil, l.explain(ctx, cause(rctx, err))
	}
	return s.CachedInfo(), nil // just fetched
}

// ready says why a request need not be tried.
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

// explain finds out why a request failed: because its caller gave up, because
// of Close, or else for err. Only the caller's own deadline is reported as one.
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
