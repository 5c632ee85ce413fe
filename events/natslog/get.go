package natslog

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/events"
	"meshlog.dev/proto/jsapi"
)

// lagPause and lagAttempts bound the wait for a server that lags behind an
// acknowledgement of another server.
const (
	lagPause    = 100 * time.Millisecond
	lagAttempts = 10
)

// Get implements events.Reader. It asks the leader.
func (l *Log) Get(ctx context.Context, seq uint64) (events.Record, error) {
	if seq == 0 { // the server would take it for "not given"
		return events.Record{}, fmt.Errorf("get record 0: %w", events.ErrNotFound)
	}
	var m jsapi.Message
	var err error
	if l.shard != nil {
		m, err = l.getNewest(ctx, seq)
	} else {
		m, err = l.get(ctx, jsapi.GetRequest{Seq: seq})
	}
	if err != nil {
		return events.Record{}, fmt.Errorf("get record %d: %w", seq, err)
	}
	return l.record(m), nil
}

// Last implements events.Reader.
func (l *Log) Last(ctx context.Context, subject events.Subject) (events.Record, error) {
	m, err := l.get(ctx, jsapi.GetRequest{LastFor: subject.In(l.domain)})
	if err != nil {
		return events.Record{}, fmt.Errorf("last of %s: %w", subject, err)
	}
	return l.record(m), nil
}

// Under implements events.Reader. It makes one request for each record.
func (l *Log) Under(ctx context.Context, subject events.Subject) iter.Seq2[events.Record, error] {
	return func(yield func(events.Record, error) bool) {
		for next := uint64(1); ; {
			m, err := l.get(ctx, jsapi.GetRequest{Seq: next, NextFor: subject.In(l.domain)})
			if errors.Is(err, events.ErrNotFound) {
				return
			}
			if err != nil {
				yield(events.Record{}, fmt.Errorf("read %s from %d on: %w", subject, next, err))
				return
			}
			if !yield(l.record(m), nil) {
				return
			}
			next = m.Seq + 1
		}
	}
}

func (l *Log) record(m jsapi.Message) events.Record { return l.raw(m).Record() }

// raw returns m as a record of the log.
func (l *Log) raw(m jsapi.Message) events.Raw {
	subject := events.Printable(strings.TrimPrefix(m.Subject, l.prefix))
	return events.Raw{Seq: m.Seq, Time: m.Time.UTC(), Subject: events.Subject(subject), Data: m.Data, Refused: foreign(m.Header)}
}

// id returns the id of the event in m.
func id(m jsapi.Message) string { return m.Header.Get(jetstream.MsgIDHeader) }

// get asks the stream's leader, or reads the shard that the log is opened for.
func (l *Log) get(ctx context.Context, r jsapi.GetRequest) (jsapi.Message, error) {
	if l.shard != nil {
		return l.getOwn(ctx, r)
	}
	if err := l.ready(ctx); err != nil {
		return jsapi.Message{}, err
	}
	m, err := jsapi.Get(ctx, l.nc, Stream, r)
	return m, l.readError(ctx, err)
}

// readError returns what the error of a read means to the caller.
func (l *Log) readError(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return events.ErrNotFound
	}
	return l.explain(ctx, err)
}

// getOwn returns get for a client that may read one shard only. Permissions can
// limit by subject only the read of a subject's newest message, which any
// server answers, and no read by sequence. So getOwn answers a request for the
// next record under a subject with the newest one. The caller compares ids; if
// more than the next record has arrived, another watcher publishes for the
// shard.
func (l *Log) getOwn(ctx context.Context, r jsapi.GetRequest) (jsapi.Message, error) {
	if r.LastFor != "" {
		return l.lastOwn(ctx, r.LastFor)
	}
	if r.NextFor == "" {
		return jsapi.Message{}, errors.New("a log opened for one shard cannot be read by sequence")
	}
	// The caller saw a conflict, so such a record exists.
	for range lagAttempts {
		m, err := l.lastOwn(ctx, r.NextFor)
		if err == nil && m.Seq >= r.Seq || err != nil && !errors.Is(err, events.ErrNotFound) {
			return m, err
		}
		select {
		case <-ctx.Done():
			return jsapi.Message{}, ctx.Err()
		case <-time.After(lagPause):
		}
	}
	return jsapi.Message{}, fmt.Errorf("read %s from %d on: the server that answers lags", r.NextFor, r.Seq)
}

// getNewest reads by sequence for a client that may read one shard only. Of
// another shard's record it can read the time only, and only of the newest one.
func (l *Log) getNewest(ctx context.Context, seq uint64) (jsapi.Message, error) {
	m, err := l.lastOwn(ctx, events.ShardSubjects(*l.shard).In(l.domain))
	if err == nil && m.Seq == seq {
		return m, nil
	}
	if err != nil && !errors.Is(err, events.ErrNotFound) {
		return jsapi.Message{}, err
	}
	info, err := l.info(ctx)
	switch {
	case err != nil:
		return jsapi.Message{}, err
	case info.State.LastSeq != seq:
		return jsapi.Message{}, events.ErrNotFound
	}
	return jsapi.Message{Seq: seq, Time: info.State.LastTime}, nil // an error record
}

// lastOwn reads the newest message under a subject from any server.
func (l *Log) lastOwn(ctx context.Context, subject string) (jsapi.Message, error) {
	if err := l.ready(ctx); err != nil {
		return jsapi.Message{}, err
	}
	api := jsapi.DirectGet + Stream + "." + subject
	rctx, cancel := l.bound(ctx, api)
	defer cancel()
	reply, err := l.nc.RequestWithContext(rctx, api, nil)
	if err != nil {
		return jsapi.Message{}, l.explain(ctx, jsapi.Cause(rctx, err))
	}
	m, err := jsapi.ParseDirect(reply)
	if err = l.readError(ctx, err); err != nil && !errors.Is(err, events.ErrNotFound) {
		err = fmt.Errorf("read %s: %w", subject, err)
	}
	return m, err
}
