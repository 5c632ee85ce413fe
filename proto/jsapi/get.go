package jsapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Message is a message of a stream.
type Message struct {
	Seq     uint64
	Time    time.Time
	Subject string
	Header  nats.Header // nil if it cannot be read
	Data    []byte
	Size    int // of headers and data, in bytes; only Get sets it
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
			Seq     uint64    `json:"seq"`
			Subject string    `json:"subject"`
			Header  []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	if err := Call(ctx, nc, MessageGet+stream, r, &answer); err != nil {
		return Message{}, err
	}
	if answer.Message == nil {
		return Message{}, errors.New("the server's answer holds no message")
	}
	m := Message{Seq: answer.Message.Seq, Time: answer.Message.Time, Subject: answer.Message.Subject, Data: answer.Message.Data}
	m.Size = len(answer.Message.Header) + len(m.Data)
	if len(answer.Message.Header) > 0 {
		// Without headers that can be read, no reader takes it for one of ours.
		if h, err := nats.DecodeHeadersMsg(answer.Message.Header); err == nil && whole(h, len(answer.Message.Header)) {
			m.Header = h
		}
	}
	return m, nil
}

// ParseDirect reads one answer to a Direct Get. The error is
// jetstream.ErrMsgNotFound if there is no such message, or no further one, and
// ErrHeaders if the message's headers cannot be read.
func ParseDirect(m *nats.Msg) (Message, error) {
	if !Whole(m) {
		return Message{}, ErrHeaders
	}
	// A message may hold anything, such as the status of an answer. Only the
	// server adds a time, behind all headers of the message.
	if len(m.Header.Values(jetstream.TimeStampHeaer)) > 0 {
		return ParseRepeated(m)
	}
	switch status := m.Header.Get("Status"); status {
	case "":
		return Message{}, ErrHeaders
	case "204", "404":
		return Message{}, jetstream.ErrMsgNotFound
	case "503":
		return Message{}, nats.ErrNoResponders
	default:
		return Message{}, fmt.Errorf("status %s %s", status, m.Header.Get("Description"))
	}
}

// ErrHeaders reports that the headers of a message cannot be read. Some client
// wrote them by hand.
var ErrHeaders = errors.New("its headers cannot be read")

// ParseRepeated reads a message of a stream that the server has sent with
// headers of its own: one that it republished, or found for a Direct Get. Header
// of the result is that of the stream's message, without those of the server. The
// error is ErrHeaders if they cannot be read.
func ParseRepeated(m *nats.Msg) (Message, error) {
	if !Whole(m) {
		return Message{}, ErrHeaders
	}
	own := maps.Clone(m.Header)
	// The message may have such headers too; the server's come after them.
	last := func(name string) string {
		all := m.Header.Values(name)
		if len(all) == 0 {
			return ""
		}
		if own[name] = all[:len(all)-1]; len(all) == 1 {
			delete(own, name)
		}
		return all[len(all)-1]
	}
	last(jetstream.StreamHeader)
	subject := last(jetstream.SubjectHeader)
	seq, err := strconv.ParseUint(last(jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return Message{}, fmt.Errorf("%w: the sequence: %w", ErrHeaders, err)
	}
	at, err := time.Parse(time.RFC3339Nano, last(jetstream.TimeStampHeaer))
	if err != nil {
		return Message{}, fmt.Errorf("%w: the time: %w", ErrHeaders, err)
	}
	return Message{Seq: seq, Time: at, Subject: subject, Header: own, Data: m.Data}, nil
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
