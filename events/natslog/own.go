package natslog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/events"
)

// lagPause and lagAttempts are for a server that does not have yet what another
// one has acknowledged.
const (
	lagPause    = 100 * time.Millisecond
	lagAttempts = 10
)

// getOwn is get for a client that may read one shard only: what a server lets
// a client read can be told by subject for the newest message of one, not by
// sequence, and not from the leader. A request for the next record under a
// subject is answered with the newest; whoever asks compares ids, and where
// more than the next has come another one speaks for the shard.
func (l *Log) getOwn(ctx context.Context, r getRequest) (message, error) {
	if r.LastFor != "" {
		return l.lastOwn(ctx, r.LastFor)
	}
	if r.NextFor == "" {
		return message{}, errors.New("a log opened for one shard is not read by sequence")
	}
	// It was a conflict that made us ask: there is one.
	for range lagAttempts {
		m, err := l.lastOwn(ctx, r.NextFor)
		if err == nil && m.Seq >= r.Seq || err != nil && !errors.Is(err, events.ErrNotFound) {
			return m, err
		}
		select {
		case <-ctx.Done():
			return message{}, ctx.Err()
		case <-time.After(lagPause):
		}
	}
	return message{}, fmt.Errorf("read %s from %d on: the server that answers lags", r.NextFor, r.Seq)
}

// getNewest is get by sequence for a client that may read one shard only. Of
// another shard's record it knows the time if it is the newest.
func (l *Log) getNewest(ctx context.Context, r getRequest) (message, error) {
	m, err := l.lastOwn(ctx, events.ShardSubjects(*l.shard).In(l.domain))
	if err == nil && m.Seq == r.Seq {
		return m, nil
	}
	if err != nil && !errors.Is(err, events.ErrNotFound) {
		return message{}, err
	}
	info, err := l.info(ctx)
	switch {
	case err != nil:
		return message{}, err
	case info.State.LastSeq != r.Seq:
		return message{}, events.ErrNotFound
	}
	return message{Seq: r.Seq, Time: info.State.LastTime}, nil
}

// lastOwn is the newest message under a subject, from any server.
func (l *Log) lastOwn(ctx context.Context, subject string) (message, error) {
	if err := l.ready(ctx); err != nil {
		return message{}, err
	}
	api := directGetAPI + l.stream + "." + subject
	rctx, cancel := l.request(ctx, requestTimeout, api)
	defer cancel()
	reply, err := l.nc.RequestWithContext(rctx, api, nil)
	if err != nil {
		return message{}, l.explain(ctx, cause(rctx, err))
	}
	switch status := reply.Header.Get("Status"); status {
	case "":
	case "404":
		return message{}, events.ErrNotFound
	default:
		return message{}, fmt.Errorf("read %s: status %s %s", subject, status, reply.Header.Get("Description"))
	}
	seq, err := strconv.ParseUint(reply.Header.Get(jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return message{}, fmt.Errorf("read %s: answer without a sequence: %w", subject, err)
	}
	t, err := time.Parse(time.RFC3339Nano, reply.Header.Get(jetstream.TimeStampHeaer))
	if err != nil {
		return message{}, fmt.Errorf("read %s: answer without a time: %w", subject, err)
	}
	return message{Seq: seq, Data: reply.Data, Time: t, id: reply.Header.Get(jetstream.MsgIDHeader)}, nil
}
