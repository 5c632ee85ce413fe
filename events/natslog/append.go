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
	"github.com/synadia-io/orbit.go/jetstreamext"

	"meshlog.dev/events"
)

const (
	// window is how many events AppendEach has under way.
	window = 256
	// maxPending is how many all calls of AppendEach have together; beyond
	// that they wait for each other.
	maxPending = 4096
	// batchHeaders is more than the headers of an atomic batch take.
	batchHeaders = 256
	// sendAttempts and sendPause are for a stream that nobody serves.
	sendAttempts = 10
	sendPause    = 100 * time.Millisecond
)

// Codes of the server's errors, as they are named there.
const (
	codeAccountResourcesExceeded = 10002
	codeNoSuitablePeers          = 10005
	codeClusterNotAvailable      = 10008
	codeInsufficientResources    = 10023
	codeStorageResourcesExceeded = 10047
	codeMessageExceedsMaximum    = 10054
	codeWrongLastSequence        = 10071
	codeStreamStoreFailed        = 10077
	codeWrongLastSequenceConst   = 10164
	codeBatchTooLarge            = 10199
	codeBatchHasDuplicate        = 10201
)

// Append implements events.Appender. A batch of which only a part was appended
// before is not told from a whole duplicate: ids are never used twice.
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
	switch errorCode(err) {
	case codeWrongLastSequence, codeWrongLastSequenceConst:
		return l.settle(ctx, messages, fence)
	case codeBatchHasDuplicate:
		return l.duplicate(ctx, messages), nil
	}
	return events.Ack{}, l.explain(ctx, refusal(err))
}

// send publishes, and waits a little for a stream that nobody serves at the
// moment, between two leaders or when it was just made. A generation other
// than 0 must be the connection's.
func (l *Log) send(ctx context.Context, msgs []*nats.Msg, generation uint64) (ack events.Ack, err error) {
	for range sendAttempts {
		// In this order: while it is not connected the generation is the old one.
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
	ctx, cancel := l.request(ctx, requestTimeout, l.prefix())
	defer cancel()
	if len(msgs) == 1 {
		// No attempts of the library's own: the connection may be another by then.
		ack, err := l.js.PublishMsg(ctx, msgs[0], jetstream.WithRetryAttempts(0))
		if err != nil {
			return events.Ack{}, cause(ctx, err)
		}
		return events.Ack{Seq: ack.Sequence, Duplicate: ack.Duplicate}, nil
	}
	ack, err := jetstreamext.PublishMsgBatch(ctx, l.js, msgs)
	if err != nil {
		return events.Ack{}, cause(ctx, err)
	}
	return events.Ack{Seq: ack.Sequence}, nil
}

// prefix is how the subjects of the log begin.
func (l *Log) prefix() string { return events.Subject("").In(l.domain) }

// settle looks who made the fence fall: a conflict is what the server answers
// to a retry too, if the first attempt was appended.
func (l *Log) settle(ctx context.Context, messages []events.Message, fence events.Fence) (events.Ack, error) {
	seq, err := l.find(ctx, messages, fence)
	switch {
	case errors.Is(err, events.ErrNotFound):
		return events.Ack{}, events.ErrConflict
	case err != nil: // then it is not known
		return events.Ack{}, fmt.Errorf("find out who wrote first: %w", err)
	}
	return events.Ack{Seq: seq, Duplicate: true}, nil
}

// find returns the Seq of the batch's last event if the batch is on the log,
// which could happen only while the fence held. It asks the leader.
func (l *Log) find(ctx context.Context, messages []events.Message, fence events.Fence) (uint64, error) {
	last := len(messages) - 1
	if fence.Kind == events.FenceLog {
		m, err := l.get(ctx, getRequest{Seq: fence.Seq + 1})
		if err == nil && m.id != messages[0].ID {
			err = events.ErrNotFound
		}
		return fence.Seq + uint64(len(messages)), err
	}
	for i, m := range messages {
		if m.Subject == fence.Subject {
			// The next record there is this one, or the batch is not on the log.
			next, err := l.get(ctx, getRequest{Seq: fence.Seq + 1, NextFor: m.Subject.In(l.domain)})
			if err == nil && next.id != m.ID {
				err = events.ErrNotFound
			}
			return next.Seq + uint64(last-i), err
		}
	}
	// The batch lies under other subjects: there anybody may have written too.
	subject := messages[last].Subject.In(l.domain)
	for seq := fence.Seq + 1; ; {
		next, err := l.get(ctx, getRequest{Seq: seq, NextFor: subject})
		if err != nil || next.id == messages[last].ID {
			return next.Seq, err
		}
		seq = next.Seq + 1
	}
}

// duplicate answers for a batch whose ids the server knows. It does not say
// where the batch ended; mostly it is the newest under its subject.
func (l *Log) duplicate(ctx context.Context, messages []events.Message) events.Ack {
	last := messages[len(messages)-1]
	m, err := l.get(ctx, getRequest{LastFor: last.Subject.In(l.domain)})
	if err != nil || m.id != last.ID {
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
	// The library has the time out of each.
	watched, cancel := l.undenied(ctx, l.prefix())
	defer cancel()
	futures := make([]jetstream.PubAckFuture, len(msgs))
	wait := func(i int) error {
		select {
		case <-futures[i].Ok():
			return nil
		case err := <-futures[i].Err():
			return fmt.Errorf("append %s: %w", messages[i].ID, l.explain(ctx, refusal(err)))
		case <-watched.Done():
			return fmt.Errorf("append %s: %w", messages[i].ID, l.explain(ctx, cause(watched, watched.Err())))
		}
	}
	for i, m := range msgs {
		if i >= window {
			if err := wait(i - window); err != nil {
				return err
			}
		}
		futures[i], err = l.js.PublishMsgAsync(m, jetstream.WithStallWait(requestTimeout))
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

// natsMessages are the messages that carry events, none of them larger than
// the server takes: in a batch it would name another reason.
func (l *Log) natsMessages(messages []events.Message) ([]*nats.Msg, error) {
	msgs := make([]*nats.Msg, len(messages))
	for i, m := range messages {
		msg := nats.NewMsg(m.Subject.In(l.domain))
		msg.Data = m.Data
		msg.Header.Set(jetstream.MsgIDHeader, m.ID)
		msg.Header.Set(jetstream.ExpectedStreamHeader, l.stream)
		size := len(msg.Data) + len(msg.Subject) + batchHeaders
		for name, values := range msg.Header {
			size += len(name) + len(values[0])
		}
		if size > l.maxSize {
			return nil, fmt.Errorf("event %q: %w: its message has %d bytes, %d are allowed", m.ID, events.ErrTooLarge, size, l.maxSize)
		}
		msgs[i] = msg
	}
	return msgs, nil
}

// fence goes with the first message of a batch.
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

// refusal says what a server's error means to a writer; an error that leaves
// the outcome open stays as it is.
func refusal(err error) error {
	if errors.Is(err, nats.ErrMaxPayload) {
		return fmt.Errorf("%w: %w", events.ErrTooLarge, err)
	}
	switch errorCode(err) {
	case codeMessageExceedsMaximum, codeBatchTooLarge:
		return fmt.Errorf("%w: %w", events.ErrTooLarge, err)
	case codeAccountResourcesExceeded, codeInsufficientResources, codeStorageResourcesExceeded:
		return fmt.Errorf("%w: %w", events.ErrFull, err)
	case codeStreamStoreFailed: // for many reasons, told by words only
		if strings.Contains(err.Error(), "maximum bytes exceeded") {
			return fmt.Errorf("%w: %w", events.ErrFull, err)
		}
	}
	return err
}

func errorCode(err error) jetstream.ErrorCode {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return api.ErrorCode
	}
	return 0
}
