package natslog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/events"
)

const codeNoMessageFound = 10037

// Get implements events.Reader. It asks the leader.
func (l *Log) Get(ctx context.Context, seq uint64) (events.Record, error) {
	if seq == 0 { // what the request would take for "not said"
		return events.Record{}, fmt.Errorf("get record 0: %w", events.ErrNotFound)
	}
	get := l.get
	if l.shard != nil {
		get = l.getNewest
	}
	m, err := get(ctx, getRequest{Seq: seq})
	if err != nil {
		return events.Record{}, fmt.Errorf("get record %d: %w", seq, err)
	}
	return m.record(), nil
}

// Last implements events.Reader.
func (l *Log) Last(ctx context.Context, subject events.Subject) (events.Record, error) {
	m, err := l.get(ctx, getRequest{LastFor: subject.In(l.domain)})
	if err != nil {
		return events.Record{}, fmt.Errorf("last of %s: %w", subject, err)
	}
	return m.record(), nil
}

// Under yields the records under a subject, oldest first, one request each: it
// is for subjects with few. It ends with the first error.
func (l *Log) Under(ctx context.Context, subject events.Subject) iter.Seq2[events.Record, error] {
	return func(yield func(events.Record, error) bool) {
		for next := uint64(1); ; {
			m, err := l.get(ctx, getRequest{Seq: next, NextFor: subject.In(l.domain)})
			if errors.Is(err, events.ErrNotFound) {
				return
			}
			if err != nil {
				yield(events.Record{}, fmt.Errorf("read %s from %d on: %w", subject, next, err))
				return
			}
			if !yield(m.record(), nil) {
				return
			}
			next = m.Seq + 1
		}
	}
}

// getRequest asks for one message: by sequence, the next one of a subject from
// a sequence on, or the last of a subject.
type getRequest struct {
	Seq     uint64 `json:"seq,omitempty"`
	NextFor string `json:"next_by_subj,omitempty"`
	LastFor string `json:"last_by_subj,omitempty"`
}

type getResponse struct {
	Error   *jetstream.APIError `json:"error"`
	Message *message            `json:"message"`
}

// message is as the stream has it.
type message struct {
	Seq    uint64    `json:"seq"`
	Header []byte    `json:"hdrs"`
	Data   []byte    `json:"data"`
	Time   time.Time `json:"time"`

	id string // from Header
}

func (m message) record() events.Record { return events.DecodeRecord(m.Seq, m.Time, m.Data) }

// get asks the stream's leader. The library would ask any replica, and those
// lag.
func (l *Log) get(ctx context.Context, r getRequest) (message, error) {
	if err := l.ready(ctx); err != nil {
		return message{}, err
	}
	if l.shard != nil {
		return l.getOwn(ctx, r)
	}
	data, err := json.Marshal(r)
	if err != nil {
		return message{}, err
	}
	rctx, cancel := l.request(ctx, requestTimeout, getAPI+l.stream)
	defer cancel()
	reply, err := l.nc.RequestWithContext(rctx, getAPI+l.stream, data)
	if err != nil {
		return message{}, l.explain(ctx, cause(rctx, err))
	}
	var response getResponse
	if err := json.Unmarshal(reply.Data, &response); err != nil {
		return message{}, fmt.Errorf("read the server's answer: %w", err)
	}
	switch {
	case response.Error != nil && response.Error.ErrorCode == codeNoMessageFound:
		return message{}, events.ErrNotFound
	case response.Error != nil:
		return message{}, response.Error
	case response.Message == nil:
		return message{}, fmt.Errorf("read the server's answer: it holds no message")
	}
	m := *response.Message
	if len(m.Header) > 0 {
		header, err := nats.DecodeHeadersMsg(m.Header)
		if err != nil {
			return message{}, fmt.Errorf("headers of record %d: %w", m.Seq, err)
		}
		m.id = header.Get(jetstream.MsgIDHeader)
	}
	return m, nil
}
