package natsfeed

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/proto/ident"
	"meshlog.dev/proto/jsapi"
	"meshlog.dev/store"
)

// maxInline is the largest update that goes into one message: half of the
// server's default limit, which counts headers and replies too.
const maxInline = 512 << 10

// Generation implements store.Publisher.
func (f *Feed) Generation() uint64 { return 1 + f.nc.Stats().Reconnects }

// Head implements store.Publisher.
func (f *Feed) Head(ctx context.Context) (store.Head, error) {
	// First the sequence, then the message: a message published in between
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
	ctx, cancel := f.bound(ctx, jsapi.StreamInfo+Stream)
	defer cancel()
	info, err := f.stream.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", Stream, jsapi.Cause(ctx, err))
	}
	return info, nil
}

// Publish implements store.Publisher.
//
// Publish checks before it sends that the connection still has this generation.
// If the connection is renewed right then, the fence alone decides, and the
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
	ctx, cancel := f.bound(ctx, f.subject)
	defer cancel()
	ack, err := f.js.PublishMsg(ctx, &nats.Msg{Subject: f.subject, Data: b},
		jetstream.WithExpectStream(Stream), jetstream.WithExpectLastSequence(expect), jetstream.WithRetryAttempts(0))
	err = jsapi.Cause(ctx, err)
	switch {
	case jsapi.IsConflict(err):
		return 0, fmt.Errorf("publish version %s after sequence %d: %w: %w", v, expect, err, store.ErrConflict)
	case err != nil:
		return 0, fmt.Errorf("publish version %s after sequence %d: %w", v, expect, err)
	case f.Generation() != generation:
		return 0, fmt.Errorf("publish version %s: the connection was renewed meanwhile", v)
	}
	return ack.Sequence, nil
}

// encode encodes the message of u. It puts a delta that is too large for the
// message into a blob.
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

// lastMessage returns the chain's last message, zero if there is none. It asks
// the stream's leader: a replica that lags may answer a Direct Get.
func (f *Feed) lastMessage(ctx context.Context) (message, error) {
	m, err := jsapi.Get(ctx, f.nc, Stream, jsapi.GetRequest{LastFor: f.subject})
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return message{}, nil
	case err != nil:
		return message{}, fmt.Errorf("get the last message on %s: %w", f.subject, err)
	}
	return decode(m)
}
