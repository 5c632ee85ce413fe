package jsapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Message is a message of a stream.
type Message struct {
	Seq    uint64
	Time   time.Time
	Header nats.Header
	Data   []byte
}

// GetRequest asks for one message: the one at Seq, the first one under NextFor
// from Seq on, or the last one under LastFor.
type GetRequest struct {
	Seq     uint64 `json:"seq,omitempty"`
	NextFor string `json:"next_by_subj,omitempty"`
	LastFor string `json:"last_by_subj,omitempty"`
}

// Get reads a message from the leader of a stream; the client library would ask
// any replica, and replicas lag. The error is jetstream.ErrMsgNotFound if there
// is no such message.
func Get(ctx context.Context, nc *nats.Conn, stream string, r GetRequest) (Message, error) {
	var answer struct {
		Response
		Message *struct {
			Seq    uint64    `json:"seq"`
			Header []byte    `json:"hdrs"`
			Data   []byte    `json:"data"`
			Time   time.Time `json:"time"`
		} `json:"message"`
	}
	if err := Call(ctx, nc, MessageGet+stream, r, &answer); err != nil {
		return Message{}, err
	}
	if answer.Message == nil {
		return Message{}, errors.New("the server's answer holds no message")
	}
	m := Message{Seq: answer.Message.Seq, Time: answer.Message.Time, Data: answer.Message.Data}
	if len(answer.Message.Header) > 0 {
		var err error
		if m.Header, err = nats.DecodeHeadersMsg(answer.Message.Header); err != nil {
			return Message{}, fmt.Errorf("headers of message %d: %w", m.Seq, err)
		}
	}
	return m, nil
}

// ParseDirect reads one answer to a Direct Get. The error is
// jetstream.ErrMsgNotFound if there is no such message, or no further one.
func ParseDirect(m *nats.Msg) (Message, error) {
	switch status := m.Header.Get("Status"); status {
	case "":
	case "204", "404":
		return Message{}, jetstream.ErrMsgNotFound
	case "503":
		return Message{}, nats.ErrNoResponders
	default:
		return Message{}, fmt.Errorf("status %s %s", status, m.Header.Get("Description"))
	}
	seq, err := strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return Message{}, fmt.Errorf("answer without a sequence: %w", err)
	}
	at, err := time.Parse(time.RFC3339Nano, m.Header.Get(jetstream.TimeStampHeaer))
	if err != nil {
		return Message{}, fmt.Errorf("answer without a time: %w", err)
	}
	return Message{Seq: seq, Time: at, Header: m.Header, Data: m.Data}, nil
}

// Response is the part that the answers of the API have in common. An answer
// for Call embeds it.
type Response struct {
	Error *jetstream.APIError `json:"error"`
}

func (r *Response) failure() *jetstream.APIError { return r.Error }

// Call sends a request to the API and decodes the answer, within Timeout. It
// returns the error that the answer reports.
func Call(ctx context.Context, nc *nats.Conn, subject string, request any, answer interface{ failure() *jetstream.APIError }) error {
	b, err := json.Marshal(request)
	if err != nil {
		return err
	}
	ctx, cancel := Bound(ctx, nc, Timeout, subject)
	defer cancel()
	reply, err := nc.RequestWithContext(ctx, subject, b)
	if err != nil {
		return Cause(ctx, err)
	}
	if err := json.Unmarshal(reply.Data, answer); err != nil {
		return fmt.Errorf("read the server's answer: %w", err)
	}
	if err := answer.failure(); err != nil {
		return err
	}
	return nil
}
