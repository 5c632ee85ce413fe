package natslog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/events"
	"meshlog.dev/proto/jsapi"
)

const (
	// window is how many unacknowledged events one AppendEach may have.
	window = 256
	// maxPending bounds those of all calls of AppendEach; beyond it they wait
	// for each other.
	maxPending = 4096
	// batchHeaders is more than the size of the headers of an atomic batch.
	batchHeaders = 256
	// sendAttempts and sendPause are for a stream without a leader.
	sendAttempts = 10
	sendPause    = 100 * time.Millisecond
)

// Append implements events.Appender. It cannot tell a batch that is on the log
// in part from a whole duplicate: callers never use an id twice.
func (l *Log) Append(ctx context.Context, batch []events.Event, fence events.Fence) (events.Ack, error) {
	messages, err := events.BatchMessages(batch)
	if err != nil {
		return events.Ack{}, fmt.Errorf("append: %w", err)
	}
	ack, err := l.append(ctx, messages, fence)
	if err != nil {
		return events.Ack{}, fmt.Errorf("append %s: %w", messages[0].ID, err)
	}
	return ack, nil
}

func (l *Log) append(ctx context.Context, messages []events.Message, fence events.Fence) (events.Ack, error) {
	msgs, err := l.natsMessages(messages)
	if err != nil {
		return events.Ack{}, err
	}
	l.fence(msgs[0], fence)
	ack, err := l.send(ctx, msgs, fence.Generation)
	if err == nil {
		return ack, nil
	}
	switch {
	case jsapi.IsConflict(err):
		return l.settle(ctx, messages, fence)
	case jsapi.Code(err) == jsapi.BatchHasDuplicate:
		return l.duplicate(ctx, messages), nil
	}
	return events.Ack{}, l.explain(ctx, refusal(err))
}

// send publishes, and retries for a second if the stream has no leader, during
// an election or after it was made. A generation other than 0 must be that of
// the connection.
func (l *Log) send(ctx context.Context, msgs []*nats.Msg, generation uint64) (ack events.Ack, err error) {
	for range sendAttempts {
		// In this order: while the connection is down its generation is the old one.
		if generation != 0 && generation != l.Generation() {
			return events.Ack{}, events.ErrReconnected
		}
		if err := l.ready(ctx); err != nil {
			return events.Ack{}, err
		}
		ack, err = l.publish(ctx, msgs)
		if !errors.Is(err, nats.ErrNoResponders) && !errors.Is(err, jetstream.ErrNoStreamResponse) {
			return ack, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(sendPause):
		}
	}
	return events.Ack{}, err
}

// publish sends one message, or several as an atomic batch.
func (l *Log) publish(ctx context.Context, msgs []*nats.Msg) (events.Ack, error) {
	ctx, cancel := l.bound(ctx, l.prefix)
	defer cancel()
	if len(msgs) == 1 {
		// The library must not retry: the connection may be a new one by then.
		ack, err := l.js.PublishMsg(ctx, msgs[0], jetstream.WithRetryAttempts(0))
		if err != nil {
			return events.Ack{}, jsapi.Cause(ctx, err)
		}
		return events.Ack{Seq: ack.Sequence, Duplicate: ack.Duplicate}, nil
	}
	seq, err := l.publishBatch(ctx, msgs)
	if err != nil {
		return events.Ack{}, jsapi.Cause(ctx, err)
	}
	return events.Ack{Seq: seq}, nil
}

// settle finds out which writer moved the log past the fence: the server calls
// a retry a conflict too, if the first attempt was appended.
func (l *Log) settle(ctx context.Context, messages []events.Message, fence events.Fence) (events.Ack, error) {
	seq, err := l.find(ctx, messages, fence)
	switch {
	case errors.Is(err, events.ErrNotFound):
		return events.Ack{}, events.ErrConflict
	case err != nil:
		return events.Ack{}, fmt.Errorf("find out which writer appended first: %w", err)
	}
	return events.Ack{Seq: seq, Duplicate: true}, nil
}

// find returns the Seq of the batch's last event if the batch is on the log. It
// can have been appended only while the fence held. find asks the leader.
func (l *Log) find(ctx context.Context, messages []events.Message, fence events.Fence) (uint64, error) {
	last := len(messages) - 1
	for i, m := range messages {
		if fence.Kind == events.FenceLog || m.Subject == fence.Subject {
			// If the batch is on the log, this is the next record under the subject.
			next, err := l.get(ctx, jsapi.GetRequest{Seq: fence.Seq + 1, NextFor: m.Subject.In(l.domain)})
			if err == nil && id(next) != m.ID {
				err = events.ErrNotFound
			}
			return next.Seq + uint64(last-i), err
		}
	}
	// The batch is under other subjects, where other writers may have appended.
	subject := messages[last].Subject.In(l.domain)
	for seq := fence.Seq + 1; ; {
		next, err := l.get(ctx, jsapi.GetRequest{Seq: seq, NextFor: subject})
		if err != nil || id(next) == messages[last].ID {
			return next.Seq, err
		}
		seq = next.Seq + 1
	}
}

// duplicate acknowledges a batch whose ids the server knows. The server does
// not tell the batch's sequences; most often its last event is the newest one
// under its subject.
func (l *Log) duplicate(ctx context.Context, messages []events.Message) events.Ack {
	last := messages[len(messages)-1]
	m, err := l.get(ctx, jsapi.GetRequest{LastFor: last.Subject.In(l.domain)})
	if err != nil || id(m) != last.ID {
		return events.Ack{Duplicate: true}
	}
	return events.Ack{Seq: m.Seq, Duplicate: true}
}

// AppendEach implements events.Appender.
func (l *Log) AppendEach(ctx context.Context, batch []events.Event) error {
	messages, err := events.Messages(batch)
	if err != nil {
		return fmt.Errorf("append: %w", err)
	}
	msgs, err := l.natsMessages(messages)
	if err != nil {
		return fmt.Errorf("append: %w", err)
	}
	if err := l.ready(ctx); err != nil {
		return fmt.Errorf("append: %w", err)
	}
	// The library bounds the wait for each acknowledgement.
	watched, cancel := jsapi.Watch(ctx, l.nc, l.prefix)
	defer cancel()
	futures := make([]jetstream.PubAckFuture, len(msgs))
	wait := func(i int) error {
		select {
		case <-futures[i].Ok():
			return nil
		case err := <-futures[i].Err():
			return fmt.Errorf("append %s: %w", messages[i].ID, l.explain(ctx, refusal(err)))
		case <-watched.Done():
			return fmt.Errorf("append %s: %w", messages[i].ID, l.explain(ctx, jsapi.Cause(watched, watched.Err())))
		}
	}
	for i, m := range msgs {
		if i >= window {
			if err := wait(i - window); err != nil {
				return err
			}
		}
		futures[i], err = l.js.PublishMsgAsync(m, jetstream.WithStallWait(jsapi.Timeout))
		if err != nil {
			return fmt.Errorf("append %s: %w", messages[i].ID, l.explain(ctx, refusal(err)))
		}
	}
	for i := max(0, len(msgs)-window); i < len(msgs); i++ {
		if err := wait(i); err != nil {
			return err
		}
	}
	return nil
}

// natsMessages makes the messages that carry events. It fails if one of them is
// larger than the server accepts: within a batch the server would name another
// reason.
func (l *Log) natsMessages(messages []events.Message) ([]*nats.Msg, error) {
	msgs := make([]*nats.Msg, len(messages))
	for i, m := range messages {
		msg := nats.NewMsg(m.Subject.In(l.domain))
		msg.Data = m.Data
		msg.Header.Set(jetstream.MsgIDHeader, m.ID)
		msg.Header.Set(jetstream.ExpectedStreamHeader, Stream)
		size := len(msg.Data) + len(msg.Subject) + batchHeaders
		for name, values := range msg.Header {
			size += len(name) + len(values[0])
		}
		if size > l.maxSize {
			return nil, fmt.Errorf("event %q: %w: its message has %d bytes, the limit is %d", m.ID, events.ErrTooLarge, size, l.maxSize)
		}
		msgs[i] = msg
	}
	return msgs, nil
}

// fence adds the fence to the first message of a batch.
func (l *Log) fence(msg *nats.Msg, fence events.Fence) {
	seq := strconv.FormatUint(fence.Seq, 10)
	switch fence.Kind {
	case events.FenceSubject:
		msg.Header.Set(jetstream.ExpectedLastSubjSeqHeader, seq)
		msg.Header.Set(jetstream.ExpectedLastSubjSeqSubjHeader, fence.Subject.In(l.domain))
	case events.FenceLog:
		msg.Header.Set(jetstream.ExpectedLastSeqHeader, seq)
	}
}

// refusal adds the meaning of a server's error for a writer. It returns an error
// that leaves the outcome open unchanged.
func refusal(err error) error {
	if errors.Is(err, nats.ErrMaxPayload) {
		return fmt.Errorf("%w: %w", events.ErrTooLarge, err)
	}
	switch jsapi.Code(err) {
	case jetstream.JSErrCodeStreamMessageExceedsMaximum, jsapi.BatchTooLarge:
		return fmt.Errorf("%w: %w", events.ErrTooLarge, err)
	case jsapi.AccountResourcesExceeded, jsapi.InsufficientResources, jsapi.StorageResourcesExceeded:
		return fmt.Errorf("%w: %w", events.ErrFull, err)
	case jsapi.StreamStoreFailed: // only the text tells the reason
		if strings.Contains(err.Error(), "maximum bytes exceeded") {
			return fmt.Errorf("%w: %w", events.ErrFull, err)
		}
	}
	return err
}
