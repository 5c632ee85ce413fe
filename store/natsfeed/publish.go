package natsfeed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// maxInline is how large an update may be to go as one message: half of what
// servers take by default, as headers and replies count too.
const maxInline = 512 << 10

// Errors of JetStream that mean "not the last sequence".
const (
	wrongLastSequence         jetstream.ErrorCode = 10071
	wrongLastSequenceConstant jetstream.ErrorCode = 10164 // in a cluster, from a publish still on its way
	noMessageFound            jetstream.ErrorCode = 10037
)

// Generation implements store.Publisher.
func (f *Feed) Generation() uint64 { return 1 + f.nc.Stats().Reconnects }

// Head implements store.Publisher.
func (f *Feed) Head(ctx context.Context) (store.Head, error) {
	// First the sequence, then the message: a message that comes between
	// makes the sequence too small, not too large, and the fence holds.
	info, err := f.info(ctx)
	if err != nil {
		return store.Head{}, fmt.Errorf("read the head of the version chain: %w", err)
	}
	m, err := f.lastMessage(ctx)
	if err != nil {
		return store.Head{}, fmt.Errorf("read the head of the version chain: %w", err)
	}
	return store.Head{Manifest: m.update.Manifest, Seq: max(info.State.LastSeq, m.seq)}, nil
}

// info asks the stream's leader.
func (f *Feed) info(ctx context.Context) (*jetstream.StreamInfo, error) {
	ctx, cancel := f.request(ctx, infoAPI+Stream)
	defer cancel()
	info, err := f.stream.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", Stream, cause(ctx, err))
	}
	return info, nil
}

// Publish implements store.Publisher.
//
// That the connection is still that of generation is seen before the message
// is sent. Where it is renewed just then, the fence alone decides, and the
// outcome is open.
func (f *Feed) Publish(ctx context.Context, u store.Update, expect, generation uint64) (uint64, error) {
	v := store.VersionOf(u.Manifest.GetVersion())
	b, err := f.encode(ctx, u)
	if err != nil {
		return 0, fmt.Errorf("publish version %s: %w", v, err)
	}
	if f.Generation() != generation {
		return 0, fmt.Errorf("publish version %s: %w", v, store.ErrReconnected)
	}
	ctx, cancel := f.request(ctx, f.subject)
	defer cancel()
	ack, err := f.js.PublishMsg(ctx, &nats.Msg{Subject: f.subject, Data: b},
		jetstream.WithExpectStream(Stream), jetstream.WithExpectLastSequence(expect), jetstream.WithRetryAttempts(0))
	err = cause(ctx, err)
	var api *jetstream.APIError
	switch {
	case errors.As(err, &api) && (api.ErrorCode == wrongLastSequence || api.ErrorCode == wrongLastSequenceConstant):
		return 0, fmt.Errorf("publish version %s after sequence %d: %s: %w", v, expect, api.Description, store.ErrConflict)
	case err != nil:
		return 0, fmt.Errorf("publish version %s after sequence %d: %w", v, expect, err)
	case f.Generation() != generation:
		return 0, fmt.Errorf("publish version %s: the connection was renewed meanwhile", v)
	}
	return ack.Sequence, nil
}

// encode writes the message of u; a delta that is too large for it goes to the
// blobs.
func (f *Feed) encode(ctx context.Context, u store.Update) ([]byte, error) {
	b, err := store.EncodeUpdate(u, ident.Hash{})
	if err != nil || len(b) <= maxInline {
		return b, err
	}
	d, err := store.EncodeDelta(u.Delta)
	if err != nil {
		return nil, err
	}
	h, err := f.PutBlob(ctx, d)
	if err != nil {
		return nil, fmt.Errorf("delta: %w", err)
	}
	return store.EncodeUpdate(u, h)
}

// lastMessage is the chain's last message, from the stream's leader; zero if
// there is none. Direct Get may be answered by a replica that lags, and is not
// asked here.
func (f *Feed) lastMessage(ctx context.Context) (message, error) {
	request, err := json.Marshal(map[string]string{"last_by_subj": f.subject})
	if err != nil {
		return message{}, err
	}
	ctx, cancel := f.request(ctx, getAPI+Stream)
	defer cancel()
	reply, err := f.nc.RequestWithContext(ctx, getAPI+Stream, request)
	if err != nil {
		return message{}, fmt.Errorf("get the last message on %s: %w", f.subject, cause(ctx, err))
	}
	var answer struct {
		Message struct {
			Seq  uint64 `json:"seq"`
			Data []byte `json:"data"`
		} `json:"message"`
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return message{}, fmt.Errorf("get the last message on %s: %w", f.subject, err)
	}
	switch {
	case answer.Error == nil:
		return decode(answer.Message.Seq, answer.Message.Data)
	case answer.Error.ErrorCode == noMessageFound:
		return message{}, nil
	}
	return message{}, fmt.Errorf("get the last message on %s: %w", f.subject, answer.Error)
}
