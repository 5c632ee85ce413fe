package bus

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	"meshlog.dev/proto/jsapi"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
)

// usageWait is how long LogBytes waits for an answer.
const usageWait = time.Second

// LogBytes asks the builders how many bytes of the log the records of a shard
// take, with a question for digests that names no session. It returns ErrNoAnswer
// if none has counted them.
func (f *Fleet) LogBytes(ctx context.Context, shard ident.Shard) (uint64, error) {
	b, err := proto.Marshal(&reportv1.DigestRequest{Source: shard.Source, Instance: shard.Instance})
	if err != nil {
		return 0, err
	}
	inbox := f.nc.NewInbox()
	sub, err := f.nc.SubscribeSync(inbox)
	if err != nil {
		return 0, err
	}
	defer sub.Unsubscribe()
	if err := f.nc.PublishRequest(f.prefix+digestsSubject, inbox, b); err != nil {
		return 0, err
	}
	m, err := nextWithin(ctx, sub, usageWait)
	if err == nil && m == nil {
		err = jsapi.Explain(f.nc, ErrNoAnswer, f.prefix+digestsSubject)
	}
	var r reportv1.DigestReply
	if err == nil {
		err = proto.Unmarshal(m.Data, &r)
	}
	if err != nil {
		return 0, fmt.Errorf("ask how much of the log %s takes: %w", shard, err)
	}
	return r.GetLogBytes(), nil
}

// ServeLogBytes answers LogBytes until ctx is done. lookup returns 0 if the
// records are not counted yet: then another builder answers, or none.
func (f *Fleet) ServeLogBytes(ctx context.Context, lookup func(ident.Shard) uint64) error {
	return listen(ctx, f, digestsSubject, func(m *nats.Msg, r *reportv1.DigestRequest) {
		if r.GetSession() != "" {
			return
		}
		bytes := lookup(ident.Shard{Source: r.GetSource(), Instance: r.GetInstance()})
		if bytes == 0 {
			return
		}
		err := checkReply(m)
		var b []byte
		if err == nil {
			b, err = proto.Marshal(&reportv1.DigestReply{LogBytes: bytes})
		}
		if err == nil {
			err = m.Respond(b)
		}
		if err != nil {
			f.log.Warn("cannot answer how much of the log a shard takes", "source", r.GetSource(), "instance", r.GetInstance(), "error", err)
		}
	})
}
