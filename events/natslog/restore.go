package natslog

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/events"
	"meshlog.dev/proto/jsapi"
)

// ErrExists reports that the stream of the log exists.
var ErrExists = errors.New("the stream exists already")

// maxRefusal bounds the reason in refusedHeader, in bytes.
const maxRefusal = 1024

// Restore makes the stream of a log and appends records under their old
// sequences; they get new times from the server. A record that the archived log
// refused is refused in this one too (refusedHeader). The error is ErrExists if the
// stream exists; Restore then changes nothing. After any other error the stream
// may hold part of the records.
func Restore(ctx context.Context, nc *nats.Conn, o StreamOptions, first uint64, records iter.Seq2[events.Raw, error]) error {
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(maxPending), jetstream.WithPublishAsyncTimeout(jsapi.Timeout))
	if err != nil {
		return fmt.Errorf("restore %s: %w", Stream, err)
	}
	defer js.CleanupPublisher()
	r := restorer{js: js, domain: o.domain(), settled: first - 1}
	if err = r.create(ctx, o.Config(), first); err == nil {
		err = r.publish(ctx, records)
	}
	if err != nil {
		return fmt.Errorf("restore %s: %w", Stream, err)
	}
	return nil
}

// restorer publishes records, several at a time. Each is fenced on the one
// before, so that each gets its own sequence.
type restorer struct {
	js       jetstream.JetStream
	domain   string
	underWay []sent // oldest first
	settled  uint64 // Seq of the last durable record
	refusals int    // of the record after settled
}

// sent is a record on its way to the server.
type sent struct {
	msg *nats.Msg
	ack jetstream.PubAckFuture
}

const (
	// maxRefusals bounds how often a record is sent again.
	maxRefusals = 5
	// applyInterval is the time between two questions whether the leader has applied
	// all records.
	applyInterval = 20 * time.Millisecond
)

func (r *restorer) create(ctx context.Context, config jetstream.StreamConfig, first uint64) error {
	if first > 1 {
		config.FirstSeq = first
	}
	ctx, cancel := context.WithTimeout(ctx, jsapi.Timeout)
	defer cancel()
	_, created, err := jsapi.Ensure(ctx, r.js, config)
	if err == nil && !created {
		err = ErrExists
	}
	return err
}

func (r *restorer) publish(ctx context.Context, records iter.Seq2[events.Raw, error]) error {
	next := r.settled + 1
	for rec, err := range records {
		if err != nil {
			return err
		}
		if rec.Seq != next {
			return fmt.Errorf("record %d follows record %d", rec.Seq, next-1)
		}
		if len(r.underWay) >= window {
			if err := r.settle(ctx); err != nil {
				return err
			}
		}
		// No Nats-Msg-Id: no client retries an append of long ago, and a log may
		// hold one id twice.
		msg := nats.NewMsg(rec.Subject.In(r.domain))
		msg.Data = rec.Data
		msg.Header.Set(jetstream.ExpectedStreamHeader, Stream)
		msg.Header.Set(jetstream.ExpectedLastSeqHeader, strconv.FormatUint(rec.Seq-1, 10))
		if refusal := rec.Refusal(); refusal != "" {
			msg.Header.Set(refusedHeader, headerText(refusal))
		}
		ack, err := r.js.PublishMsgAsync(msg, jetstream.WithStallWait(jsapi.Timeout))
		if err != nil {
			return fmt.Errorf("record %d: %w", rec.Seq, refusal(err))
		}
		r.underWay = append(r.underWay, sent{msg, ack})
		next++
	}
	for len(r.underWay) > 0 {
		if err := r.settle(ctx); err != nil {
			return err
		}
	}
	return nil
}

// headerText returns a text as a header can carry it.
func headerText(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s[:min(len(s), maxRefusal)]))
}

// settle waits for the oldest record under way.
func (r *restorer) settle(ctx context.Context) error {
	seq := r.settled + 1
	ack, err := r.underWay[0].wait(ctx)
	switch {
	case err != nil && jsapi.IsConflict(err) && r.refusals < maxRefusals:
		r.refusals++
		return r.resend(ctx)
	case err != nil:
		return fmt.Errorf("record %d: %w", seq, refusal(err))
	case ack.Sequence != seq:
		return fmt.Errorf("record %d got sequence %d", seq, ack.Sequence)
	}
	r.underWay, r.settled, r.refusals = r.underWay[1:], seq, 0
	return nil
}

func (s sent) wait(ctx context.Context) (*jetstream.PubAck, error) {
	select {
	case ack := <-s.ack.Ok():
		return ack, nil
	case err := <-s.ack.Err():
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// resend sends all records under way again, of which the server refused the oldest:
// one of three servers that has just become the leader compares a fence with the
// records that it has applied, and these may be fewer than those that it has.
func (r *restorer) resend(ctx context.Context) error {
	for _, s := range r.underWay[1:] {
		if _, err := s.wait(ctx); ctx.Err() != nil {
			return err
		}
	}
	if err := r.applied(ctx); err != nil {
		return err
	}
	for i, s := range r.underWay {
		ack, err := r.js.PublishMsgAsync(s.msg, jetstream.WithStallWait(jsapi.Timeout))
		if err != nil {
			return fmt.Errorf("record %d: %w", r.settled+1+uint64(i), refusal(err))
		}
		r.underWay[i].ack = ack
	}
	return nil
}

// applied waits until the leader has applied all settled records.
func (r *restorer) applied(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, jsapi.Timeout)
	defer cancel()
	for {
		stream, err := r.js.Stream(ctx, Stream)
		if err != nil {
			return fmt.Errorf("record %d was refused: %w", r.settled+1, err)
		}
		switch last := stream.CachedInfo().State.LastSeq; {
		case last > r.settled:
			return fmt.Errorf("record %d was refused: another writer appended record %d", r.settled+1, last)
		case last == r.settled:
			return nil
		}
		select {
		case <-time.After(applyInterval):
		case <-ctx.Done():
			return fmt.Errorf("record %d was refused: the leader of %s does not reach record %d: %w", r.settled+1, Stream, r.settled, ctx.Err())
		}
	}
}
