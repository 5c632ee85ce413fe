package natslog

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/events"
)

// ErrExists says that there is a log already.
var ErrExists = errors.New("the stream exists already")

// Restore makes the stream of a log and puts records on it, under the numbers
// that they had; their times are those of the server now. It takes no part in
// anything that is there: the error is ErrExists then. After any other error a
// part of the records may be there.
func Restore(ctx context.Context, nc *nats.Conn, o StreamOptions, first uint64, records iter.Seq2[events.Raw, error]) error {
	o.Options = o.withDefaults()
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(maxPending), jetstream.WithPublishAsyncTimeout(requestTimeout))
	if err != nil {
		return fmt.Errorf("restore %s: %w", o.Stream, err)
	}
	defer js.CleanupPublisher()
	config := o.Config()
	if first > 1 {
		config.FirstSeq = first
	}
	rctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	switch _, err := js.Stream(rctx, o.Stream); {
	case err == nil:
		return fmt.Errorf("restore %s: %w", o.Stream, ErrExists)
	case !errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("restore %s: %w", o.Stream, err)
	}
	if _, err := js.CreateStream(rctx, config); err != nil {
		return fmt.Errorf("restore %s: make the stream: %w", o.Stream, err)
	}
	r := restorer{js: js, o: o}
	if err := r.all(ctx, first, records); err != nil {
		return fmt.Errorf("restore %s: %w", o.Stream, err)
	}
	return nil
}

// restorer publishes records, several under way. Each is fenced on the one
// before, so that none comes into a place that is not its own.
type restorer struct {
	js       jetstream.JetStream
	o        StreamOptions
	underWay []jetstream.PubAckFuture // oldest first
	settled  uint64                   // Seq of the last one that is durable
}

func (r *restorer) all(ctx context.Context, first uint64, records iter.Seq2[events.Raw, error]) error {
	r.settled = first - 1
	next := first
	for rec, err := range records {
		if err != nil {
			return err
		}
		if rec.Seq != next {
			return fmt.Errorf("record %d comes where %d belongs", rec.Seq, next)
		}
		if len(r.underWay) >= window {
			if err := r.settle(ctx); err != nil {
				return err
			}
		}
		// No Nats-Msg-Id: nobody retries what was appended long ago, and one id
		// may be on a log twice.
		msg := nats.NewMsg(rec.Subject.In(r.o.Domain))
		msg.Data = rec.Data
		msg.Header.Set(jetstream.ExpectedStreamHeader, r.o.Stream)
		msg.Header.Set(jetstream.ExpectedLastSeqHeader, strconv.FormatUint(rec.Seq-1, 10))
		future, err := r.js.PublishMsgAsync(msg, jetstream.WithStallWait(requestTimeout))
		if err != nil {
			return fmt.Errorf("record %d: %w", rec.Seq, refusal(err))
		}
		r.underWay = append(r.underWay, future)
		next++
	}
	for len(r.underWay) > 0 {
		if err := r.settle(ctx); err != nil {
			return err
		}
	}
	return nil
}

// settle waits for the oldest record under way.
func (r *restorer) settle(ctx context.Context) error {
	seq := r.settled + 1
	select {
	case ack := <-r.underWay[0].Ok():
		if ack.Sequence != seq {
			return fmt.Errorf("record %d came to %d", seq, ack.Sequence)
		}
	case err := <-r.underWay[0].Err():
		return fmt.Errorf("record %d: %w", seq, refusal(err))
	case <-ctx.Done():
		return ctx.Err()
	}
	r.underWay, r.settled = r.underWay[1:], seq
	return nil
}
