package natsfeed

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/proto/ident"
	"meshlog.dev/proto/jsapi"
	"meshlog.dev/store"
	"meshlog.dev/store/internal/link"
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
	m, foreign, err := f.newest(ctx)
	if err != nil {
		return store.Head{}, fmt.Errorf("read the head of the version chain: %w", err)
	}
	h := store.Head{Manifest: m.update.Manifest, Seq: max(info.State.LastSeq, m.seq), Foreign: foreign}
	if foreign != nil {
		h.Seq = max(h.Seq, foreign.Seq)
	}
	return h, nil
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
	f.know(message{seq: ack.Sequence, update: u}, generation)
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

// newest asks the stream's leader for the newest version, zero if there is none,
// and for messages of this domain behind it.
func (f *Feed) newest(ctx context.Context) (message, *store.ForeignError, error) {
	last, err := f.get(ctx, jsapi.GetRequest{LastFor: f.subject})
	if err != nil || last.seq == 0 {
		return message{}, nil, err
	}
	f.mu.Lock()
	known := f.known
	f.mu.Unlock()
	if known.is(last, f.Generation()) {
		return last, nil, nil
	}
	generation := f.Generation()
	m, found, foreign, err := link.Head(f.older(ctx, last))
	if err != nil {
		return message{}, nil, err
	}
	if found && foreign == nil {
		f.know(m, generation)
	}
	f.say(foreign)
	return m, foreign, nil
}

// known is the newest version, once a reader has found that it follows the one
// before it.
type known struct {
	seq        uint64
	version    ident.Position
	root       ident.Hash
	generation uint64
}

func (k known) is(m message, generation uint64) bool {
	return m.err == nil && k == knownAs(m.seq, m.update.Manifest, generation)
}

func knownAs(seq uint64, m *store.Manifest, generation uint64) known {
	return known{seq, store.VersionOf(m.GetVersion()), store.RootOf(m), generation}
}

func (f *Feed) know(m message, generation uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known = knownAs(m.seq, m.update.Manifest, generation)
}

// say passes foreign messages on, each once.
func (f *Feed) say(e *store.ForeignError) {
	f.mu.Lock()
	first := e != nil && e.Seq != f.said
	if first {
		f.said = e.Seq
	}
	f.mu.Unlock()
	if first && f.foreign != nil {
		f.foreign(e)
	}
}

// get reads a message from the stream's leader; it is zero if there is none.
func (f *Feed) get(ctx context.Context, r jsapi.GetRequest) (message, error) {
	m, err := jsapi.Get(ctx, f.nc, Stream, r)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return message{}, nil
	case err != nil:
		return message{}, fmt.Errorf("get a message on %s: %w", f.subject, err)
	}
	return decode(m), nil
}

// asked is how many messages older asks the leader for.
const asked = 8

// older yields m and the messages of this domain before it, newest first. It asks
// the stream's leader for the first ones, since a replica may lack them.
func (f *Feed) older(ctx context.Context, m message) iter.Seq2[message, error] {
	return func(yield func(message, error) bool) {
		for range asked {
			if !yield(m, nil) {
				return
			}
			before, err := f.before(ctx, m.seq)
			if err != nil {
				yield(message{}, err)
				return
			}
			if before.seq == 0 {
				return
			}
			m = before
		}
		info, err := f.info(ctx)
		if err != nil {
			yield(message{}, err)
			return
		}
		f.backward(ctx, max(info.State.FirstSeq, 1), m.seq, yield)
	}
}

// before returns the last message of this domain before a sequence, or zero. Most
// often that is the previous one of the stream; messages of other domains may
// come between.
func (f *Feed) before(ctx context.Context, seq uint64) (message, error) {
	for span := uint64(1); seq > 1; span *= 2 {
		from := seq - min(span, seq-1)
		m, err := f.get(ctx, jsapi.GetRequest{Seq: from, NextFor: f.subject})
		if err != nil {
			return message{}, err
		}
		for m.seq != 0 && m.seq < seq {
			next := message{seq: seq}
			if m.seq+1 < seq {
				if next, err = f.get(ctx, jsapi.GetRequest{Seq: m.seq + 1, NextFor: f.subject}); err != nil {
					return message{}, err
				}
			}
			if next.seq == 0 || next.seq >= seq {
				return m, nil
			}
			m = next
		}
		if from == 1 {
			break
		}
	}
	return message{}, nil
}
