package natslog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/events"
	"meshlog.dev/proto/jsapi"
)

const (
	// maxRead is how many records one Next returns at most.
	maxRead = 256
	// silence is how long a consumer may send nothing, not even a heartbeat.
	silence = 3 * heartbeat
	// A server that does not answer may be given a new consumer; the next
	// attempt is placed again.
	createTimeout  = 2 * time.Second
	createAttempts = 3
	// All attempts together outlast an election.
	bookmarkTimeout  = time.Second
	bookmarkAttempts = 5
)

// follower reads the log with one consumer after the other. Its promises do not
// depend on them: it checks that the sequences are dense.
type follower struct {
	log        *Log
	name       string // the bookmark; empty: none
	generation uint64
	cursor     uint64 // Seq of the last record that Next returned
	err        error  // ended the follower
	closed     bool

	reader *reader // nil: next makes a new one
	timer  *time.Timer
	status chan nats.Status // wakes Next when the connection changes

	// sized gets each record without its data; nil: records come with their data.
	sized func(seq uint64, m *nats.Msg) error
}

// Follow implements events.Reader; the events.Follower is an events.RawFollower. It keeps a name as a durable consumer that
// no client reads from: its ack floor is the acknowledged position, its pending
// messages are the records that the follower has yet to read.
func (l *Log) Follow(ctx context.Context, after uint64, name string) (events.Follower, error) {
	f := newFollower(l, after)
	err := f.start(ctx, after)
	if errors.Is(err, events.ErrGap) || errors.Is(err, events.ErrRewound) {
		f.err = err // Next returns it
		return f, nil
	}
	if err == nil && name != "" {
		f.name = events.Token(name)
		err = f.makeBookmark(ctx)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("follow %s after %d: %w", Stream, after, err)
	}
	return f, nil
}

func newFollower(l *Log, after uint64) *follower {
	return &follower{
		log:        l,
		generation: l.Generation(), // before the first request
		cursor:     after,
		timer:      time.NewTimer(silence),
		status:     l.nc.StatusChanged(nats.CONNECTED, nats.CLOSED),
	}
}

// start makes a reader that begins after the cursor. The log must have the
// records up to last. start compares both with the log first: the server accepts
// any start, and waits silently for a sequence beyond the end.
func (f *follower) start(ctx context.Context, last uint64) error {
	bounds, err := f.log.Bounds(ctx)
	if err == nil {
		err = bounds.Within(f.cursor+1, last)
	}
	if err != nil {
		return err
	}
	for range createAttempts {
		f.reader, err = f.log.newReader(ctx, f.cursor+1, f.sized != nil)
		if !errors.Is(err, nats.ErrTimeout) {
			break
		}
	}
	return err
}

// Next implements events.Follower.
func (f *follower) Next(ctx context.Context) ([]events.Record, error) {
	messages, err := f.NextRaw(ctx)
	if err != nil {
		return nil, err
	}
	records := make([]events.Record, len(messages))
	for i, m := range messages {
		records[i] = m.Record()
	}
	return records, nil
}

// NextRaw implements events.RawFollower.
func (f *follower) NextRaw(ctx context.Context) ([]events.Raw, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if f.closed {
		return nil, fmt.Errorf("follow %s: %w", Stream, events.ErrClosed)
	}
	if f.err == nil {
		messages, err := f.next(ctx)
		if err == nil {
			return messages, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err() // the follower goes on with the next call
		}
		f.err = err
	}
	return nil, fmt.Errorf("follow %s after %d: %w", Stream, f.cursor, f.err)
}

func (f *follower) next(ctx context.Context) ([]events.Raw, error) {
	f.timer.Reset(silence)
	for {
		if err := f.check(); err != nil {
			return nil, err
		}
		if f.reader == nil {
			if err := f.restart(ctx); err != nil {
				return nil, err
			}
			f.timer.Reset(silence)
			continue
		}
		select {
		case m := <-f.reader.messages:
			f.timer.Reset(silence)
			messages, err := f.take(m)
			if err != nil {
				return nil, err
			}
			if len(messages) > 0 {
				return messages, f.check() // records of a new connection do not count
			}
		case <-f.status:
		case <-f.log.closed:
		case <-f.timer.C:
			f.drop()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// check returns the error that ends the follower, nil while it goes on.
func (f *follower) check() error {
	if f.log.isClosed() {
		return events.ErrClosed
	}
	if f.log.Generation() != f.generation {
		return events.ErrReconnected
	}
	return nil
}

// restart replaces a dropped reader. While the connection is down it waits
// until the connection is renewed or closed.
func (f *follower) restart(ctx context.Context) error {
	if f.log.nc.IsConnected() {
		err := f.start(ctx, f.cursor)
		if err == nil {
			return nil
		}
		if end := f.check(); end != nil {
			return end
		}
		if f.log.nc.IsConnected() {
			return err
		}
	}
	select {
	case <-f.status:
	case <-f.log.closed:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// take returns the records in m and in the messages that have arrived behind it.
func (f *follower) take(m *nats.Msg) ([]events.Raw, error) {
	var records []events.Raw
	for {
		seq, t, ok, err := f.reader.accept(m)
		if err != nil { // the consumer ended, not the log
			f.drop()
			return records, nil
		}
		if ok {
			switch {
			case seq == f.cursor+1:
				if f.sized != nil {
					if err := f.sized(seq, m); err != nil {
						return nil, err
					}
				}
				read := jsapi.Message{Seq: seq, Time: t, Subject: m.Subject, Data: m.Data}
				if jsapi.Whole(m) { // else a header of the server may be hidden
					read.Header = m.Header
				}
				records = append(records, f.log.raw(read))
				f.cursor = seq
			case seq > f.cursor+1 && f.reader.start == f.cursor+1:
				return nil, fmt.Errorf("%w: record %d comes next", events.ErrGap, seq)
			case seq > f.cursor+1: // lost on the way
				f.drop()
				return records, nil
			}
		}
		if len(records) == maxRead {
			return records, nil
		}
		select {
		case m = <-f.reader.messages:
		default:
			return records, nil
		}
	}
}

func (f *follower) drop() {
	if f.reader != nil {
		f.reader.close()
		f.reader = nil
	}
}

// Ack implements events.Follower. It waits until the server has written to
// disk: acknowledge once per commit, not per record.
func (f *follower) Ack(ctx context.Context, seq uint64) error {
	if f.closed {
		return fmt.Errorf("acknowledge %d: %w", seq, events.ErrClosed)
	}
	if f.name == "" {
		return nil
	}
	if err := f.moveBookmark(ctx, seq); err != nil {
		return fmt.Errorf("acknowledge %d: %w", seq, err)
	}
	return nil
}

func (f *follower) makeBookmark(ctx context.Context) error {
	rctx, cancel := f.log.bound(ctx, jsapi.ConsumerCreate+Stream)
	defer cancel()
	_, err := f.log.js.CreateOrUpdateConsumer(rctx, Stream, jetstream.ConsumerConfig{
		Durable:       f.name,
		Description:   "shows the position of " + f.name + "; no client reads from it",
		AckPolicy:     jetstream.AckAllPolicy,
		DeliverPolicy: jetstream.DeliverAllPolicy,
	})
	if err != nil {
		return fmt.Errorf("consumer %s: %w", f.name, f.log.explain(ctx, jsapi.Cause(rctx, err)))
	}
	return f.moveBookmark(ctx, f.cursor)
}

// moveBookmark retries, for a consumer without a leader does not answer.
func (f *follower) moveBookmark(ctx context.Context, seq uint64) error {
	if err := f.log.ready(ctx); err != nil {
		return err
	}
	var err error
	for range bookmarkAttempts {
		rctx, cancel := jsapi.Bound(ctx, f.log.nc, bookmarkTimeout, jsapi.ConsumerReset+Stream)
		_, err = f.log.js.ResetConsumerToSequence(rctx, Stream, f.name, seq+1)
		err = jsapi.Cause(rctx, err)
		cancel()
		if err == nil {
			return nil
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	return fmt.Errorf("move consumer %s: %w", f.name, f.log.explain(ctx, err))
}

// Close implements events.Follower.
func (f *follower) Close() error {
	if !f.closed {
		f.closed = true
		f.drop()
		f.timer.Stop()
		f.log.nc.RemoveStatusListener(f.status)
	}
	return nil
}
