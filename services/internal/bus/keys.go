package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"meshlog.dev/proto/ident"
	"meshlog.dev/proto/jsapi"
	"meshlog.dev/services/internal/failpoint"
)

// keyQueue is the queue group of the watchers of a shard: the holder or a twin gets a
// request, not both.
const keyQueue = "keys"

// keyWait bounds the wait for an answer. The watcher may have to read the key at its
// source.
const keyWait = 5 * time.Second

// ErrNoKeeper reports that no watcher of the shard listens for key requests now.
var ErrNoKeeper = errors.New("no watcher of the shard listens for key requests")

// RequestKey asks the watchers of a shard for a key, and returns the answer of one of
// them (KEY-3). The bus carries request and answer as they are: the caller seals them.
// The error is ErrNoKeeper, at once, if no watcher listens.
func (f *Fleet) RequestKey(ctx context.Context, shard ident.Shard, request []byte) ([]byte, error) {
	subject := f.keys + shardTokens(shard)
	ctx, cancel := jsapi.Bound(ctx, f.nc, keyWait, subject)
	defer cancel()
	m, err := f.nc.RequestWithContext(ctx, subject, request)
	if errors.Is(err, nats.ErrNoResponders) {
		err = ErrNoKeeper
	}
	if err != nil {
		return nil, fmt.Errorf("ask %s for a key: %w", shard, jsapi.Cause(ctx, err))
	}
	return m.Data, nil
}

// KeyAnswers answer the requests for keys of a shard. Both functions are called
// concurrently; nil is no answer.
type KeyAnswers struct {
	Answer func(ctx context.Context, request []byte) []byte
	Busy   func(request []byte) []byte // at once: too many requests wait
}

// ServeKeys answers RequestKey for a shard until ctx is done. One of the shard's
// watchers gets each request. It answers many at a time, with turns for the frontends,
// so that a source that does not answer delays one request and not all after it.
func (f *Fleet) ServeKeys(ctx context.Context, shard ident.Shard, answers KeyAnswers) error {
	sub, err := f.nc.QueueSubscribeSync(f.keys+shardTokens(shard), keyQueue)
	if err != nil {
		return fmt.Errorf("listen for key requests of %s: %w", shard, err)
	}
	defer sub.Unsubscribe()
	respond := func(m *nats.Msg, b []byte) {
		if b == nil {
			return
		}
		failpoint.At(failpoint.WatcherKeyAnswer)
		if err := m.Respond(b); err != nil {
			f.log.Warn("cannot answer a request for a key", "shard", shard.String(), "error", err)
		}
		failpoint.At(failpoint.WatcherKeyAnswered)
	}
	t := turns{answer: func(m *nats.Msg, late bool) {
		if late {
			respond(m, answers.Busy(m.Data))
		} else {
			respond(m, answers.Answer(ctx, m.Data))
		}
	}}
	defer t.stop()
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if errors.Is(err, nats.ErrSlowConsumer) {
			continue // the frontends ask again; onError has logged it
		}
		if err != nil {
			return fmt.Errorf("listen for key requests of %s: %w", shard, err)
		}
		if err := checkReply(m); err != nil {
			f.unanswerable.Add(1)
			f.log.Warn("cannot answer a request for a key", "shard", shard.String(), "error", err)
			continue
		}
		if !t.put(m) {
			respond(m, answers.Busy(m.Data))
		}
	}
}
