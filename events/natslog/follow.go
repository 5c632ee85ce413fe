package natslog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/events"
)

const (
	// maxRead is how many records one Next returns at most.
	maxRead = 256
	// silence is how long a consumer may say nothing, not even a heartbeat.
	silence = 3 * heartbeat
	// createTimeout and createAttempts: a new consumer may be placed where
	// nobody answers; the next attempt is placed anew.
	createTimeout  = 2 * time.Second
	createAttempts = 3
	// bookmarkTimeout and bookmarkAttempts: an election passes meanwhile.
	bookmarkTimeout  = time.Second
	bookmarkAttempts = 5
)

// follower reads the log with one consumer after the other. What it promises
// does not depend on them: the sequences must be dense.
type follower struct {
	log        *Log
	name       string // of the bookmark; empty: there is none
	generation uint64
	cursor     uint64 // Seq of the last record returned
	err        error  // that ended it
	closed     bool

	reader *reader // nil: there is to be a new one
	timer  *time.Timer
	status chan nats.Status // wakes Next when the connection changes
}

// Follow implements events.Reader. A name is kept as a durable consumer from
// which nobody reads: what was acknowledged is its ack floor, and what is
// still to come its number of pending messages.
func (l *Log) Follow(ctx context.Context, after uint64, name string) (events.Follower, error) {
	f := newFollower(l, after)
	err := f.start(ctx)
	if errors.Is(err, events.ErrGap) || errors.Is(err, events.ErrRewound) {
		f.err = err // for Next to say
		return f, nil
	}
	if err == nil && name != "" {
		f.name = events.Token(name)
		err = f.makeBookmark(ctx)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("follow %s after %d: %w", l.stream, after, err)
	}
	return f, nil
}

func newFollower(l *Log, after uint64) *follower {
	return &follower{
		log:        l,
		generation: l.Generation(), // before anything is learned
		cursor:     after,
		timer:      time.NewTimer(silence),
		status:     l.nc.StatusChanged(nats.CONNECTED, nats.CLOSED),
	}
}

// start reads on after the cursor, with a new reader. It compares the cursor
// with the log first: a server takes any start, and waits silently for a
// sequence beyond the end.
func (f *follower) start(ctx context.Context) error {
	bounds, err := f.log.Bounds(ctx)
	switch {
	case err != nil:
		return err
	case f.cursor > bounds.Last:
		return fmt.Errorf("%w: its last record is %d", events.ErrRewound, bounds.Last)
	case f.cursor+1 < bounds.First:
		return fmt.Errorf("%w: the log begins at %d", events.ErrGap, bounds.First)
	}
	for range createAttempts {
		f.reader, err = f.log.newReader(ctx, f.cursor+1)
		if !errors.Is(err, nats.ErrTimeout) {
			break
		}
	}
	return err
}

// Next implements events.Follower.
func (f *follower) Next(ctx context.Context) ([]events.Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if f.closed {
		return nil, fmt.Errorf("follow %s: %w", f.log.stream, events.ErrClosed)
	}
	if f.err == nil {
		messages, err := f.next(ctx)
		if err == nil {
			records := make([]events.Record, len(messages))
			for i, m := range messages {
				records[i] = events.DecodeRecord(m.seq, m.time, m.data)
			}
			return records, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err() // nothing is lost by it
		}
		f.err = err
	}
	return nil, fmt.Errorf("follow %s after %d: %w", f.log.stream, f.cursor, f.err)
}

// stored is a message as the stream has it.
type stored struct {
	seq     uint64
	time    time.Time
	subject string
	data    []byte
}

func (f *follower) next(ctx context.Context) ([]stored, error) {
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
				return messages, f.check() // what came over a new connection does not count
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

// check says whether the follower has an end.
func (f *follower) check() error {
	if f.log.isClosed() {
		return events.ErrClosed
	}
	if f.log.Generation() != f.generation {
		return events.ErrReconnected
	}
	return nil
}

// restart replaces a reader that was dropped. While the connection is down it
// waits: what follows is a new connection, or the end of this one.
func (f *follower) restart(ctx context.Context) error {
	if f.log.nc.IsConnected() {
		err := f.start(ctx)
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

// take returns the records in m and in what has arrived behind it.
func (f *follower) take(m *nats.Msg) ([]stored, error) {
	var records []stored
	for {
		seq, t, ok, err := f.reader.accept(m)
		if err != nil { // this consumer is over, not the log
			f.drop()
			return records, nil
		}
		if ok {
			switch {
			case seq == f.cursor+1:
				records = append(records, stored{seq, t, m.Subject, m.Data})
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

// Ack implements events.Follower. It waits for the server, which writes to
// disk: acknowledge commits, not records.
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
	rctx, cancel := f.log.request(ctx, requestTimeout, createConsumerAPI+f.log.stream)
	defer cancel()
	_, err := f.log.js.CreateOrUpdateConsumer(rctx, f.log.stream, jetstream.ConsumerConfig{
		Durable:       f.name,
		Description:   "shows how far " + f.name + " is; nothing reads from it",
		AckPolicy:     jetstream.AckAllPolicy,
		DeliverPolicy: jetstream.DeliverAllPolicy,
	})
	if err != nil {
		return fmt.Errorf("consumer %s: %w", f.name, f.log.explain(ctx, cause(rctx, err)))
	}
	return f.moveBookmark(ctx, f.cursor)
}

// moveBookmark tries a few times: a consumer that has no leader at the moment
// gives no answer.
func (f *follower) moveBookmark(ctx context.Context, seq uint64) error {
	if err := f.log.ready(ctx); err != nil {
		return err
	}
	var err error
	for range bookmarkAttempts {
		rctx, cancel := f.log.request(ctx, bookmarkTimeout, resetConsumerAPI+f.log.stream)
		_, err = f.log.js.ResetConsumerToSequence(rctx, f.log.stream, f.name, seq+1)
		err = cause(rctx, err)
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
