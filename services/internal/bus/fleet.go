package bus

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/proto/jsapi"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/loglimit"
)

// Fleet sends and receives the soft state of one mesh over core subjects, which
// the processes repeat and no stream keeps. It is safe for concurrent use.
type Fleet struct {
	nc     *nats.Conn
	prefix string
	keys   string // prefix of key requests
	log    *loglimit.Logger
	lost   atomic.Uint64 // reports
	// Messages of other processes that were dropped.
	unreadable, unanswerable, crowded atomic.Uint64
}

// NewFleet returns the fleet of the mesh called domain.
func NewFleet(nc *Conn, domain string, log *slog.Logger) *Fleet {
	return &Fleet{nc: nc, prefix: fleetPrefix(domain), keys: keyPrefix(domain), log: loglimit.New(log, 1)}
}

// Tick publishes the head; the leader calls it once a second.
func (f *Fleet) Tick(_ context.Context, t *reportv1.Tick) error {
	return f.publish(tickSubject, t)
}

// Ticks calls handle for the leader's ticks until ctx is done.
func (f *Fleet) Ticks(ctx context.Context, handle func(*reportv1.Tick)) error {
	return listen(ctx, f, tickSubject, func(_ *nats.Msg, t *reportv1.Tick) { handle(t) })
}

// OfferIssuers publishes the token issuers that the head names; the leader calls it when
// they change, and every few seconds.
func (f *Fleet) OfferIssuers(i *reportv1.Issuers) error { return f.publish(issuersSubject, i) }

// Issuers calls handle for the messages of OfferIssuers until ctx is done. Only
// watchers of JWKSSource may hear them.
func (f *Fleet) Issuers(ctx context.Context, handle func(*reportv1.Issuers)) error {
	return listen(ctx, f, issuersSubject, func(_ *nats.Msg, i *reportv1.Issuers) { handle(i) })
}

// AskListing asks the watchers of a shard to list again.
func (f *Fleet) AskListing(_ context.Context, r *reportv1.ListingRequest) error {
	return f.publish(listingSubject+shardTokens(ident.Shard{Source: r.GetSource(), Instance: r.GetInstance()}), r)
}

// ListingRequests calls handle for the requests of AskListing for a shard until ctx
// is done.
func (f *Fleet) ListingRequests(ctx context.Context, shard ident.Shard, handle func(*reportv1.ListingRequest)) error {
	return listen(ctx, f, listingSubject+shardTokens(shard), func(_ *nats.Msg, r *reportv1.ListingRequest) { handle(r) })
}

// Digests waits up to digestWait for the leader's answer, and asks again every
// digestRetry: the leader may not have read the begin of the session yet.
const (
	digestWait  = 3 * time.Second
	digestRetry = 200 * time.Millisecond
)

// ErrNoAnswer reports that no leader answered in time.
var ErrNoAnswer = errors.New("no leader answered")

// Digests asks the leader for the bucket digests of the keys of these kinds in a
// shard, after the begin of that session. After 3 s it returns ErrNoAnswer.
func (f *Fleet) Digests(ctx context.Context, shard ident.Shard, session string, kinds events.Kinds) (*events.ShardDigests, error) {
	d, err := f.askDigests(ctx, &reportv1.DigestRequest{Source: shard.Source, Instance: shard.Instance, Session: session, Kinds: kinds})
	if err != nil {
		return nil, fmt.Errorf("ask for digests of %s: %w", shard, err)
	}
	return d, nil
}

func (f *Fleet) askDigests(ctx context.Context, q *reportv1.DigestRequest) (*events.ShardDigests, error) {
	b, err := proto.Marshal(q)
	if err != nil {
		return nil, err
	}
	inbox := f.nc.NewInbox() // one for all attempts: the answer to an earlier one counts
	sub, err := f.nc.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer sub.Unsubscribe()
	for deadline := time.Now().Add(digestWait); time.Now().Before(deadline); {
		if err := f.nc.PublishRequest(f.prefix+digestsSubject, inbox, b); err != nil {
			return nil, err
		}
		for again := time.Now().Add(digestRetry); time.Now().Before(again); {
			m, err := nextWithin(ctx, sub, time.Until(again))
			switch {
			case errors.Is(err, nats.ErrNoResponders): // no builder listens yet
			case err != nil:
				return nil, err
			case m != nil:
				return decodeDigests(m.Data)
			}
		}
	}
	return nil, jsapi.Explain(f.nc, ErrNoAnswer, f.prefix+digestsSubject)
}

// ServeDigests answers Digests until ctx is done. known is false if this process
// does not lead, or has not read the begin of the session: then another builder
// answers, or the watcher asks again.
func (f *Fleet) ServeDigests(
	ctx context.Context,
	lookup func(ctx context.Context, shard ident.Shard, session string, kinds events.Kinds) (d *events.ShardDigests, known bool),
) error {
	return listen(ctx, f, digestsSubject, func(m *nats.Msg, r *reportv1.DigestRequest) {
		if err := checkReply(m); err != nil {
			f.unanswerable.Add(1)
			f.log.Warn("cannot answer a question for digests", "source", r.GetSource(), "instance", r.GetInstance(), "error", err)
			return
		}
		d, known := lookup(ctx, ident.Shard{Source: r.GetSource(), Instance: r.GetInstance()}, r.GetSession(), events.KindsOf(r.GetKinds()...))
		if !known {
			return
		}
		b, err := encodeDigests(d)
		if err == nil {
			err = m.Respond(b)
		}
		if err != nil {
			f.log.Warn("cannot answer a question for digests", "source", r.GetSource(), "instance", r.GetInstance(), "error", err)
		}
	})
}

func encodeDigests(d *events.ShardDigests) ([]byte, error) {
	b, err := binary.Append(nil, binary.BigEndian, d)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(&reportv1.DigestReply{Known: true, Digests: b})
}

func decodeDigests(reply []byte) (*events.ShardDigests, error) {
	var r reportv1.DigestReply
	if err := proto.Unmarshal(reply, &r); err != nil {
		return nil, err
	}
	var d events.ShardDigests
	if have, want := len(r.GetDigests()), binary.Size(d); have != want {
		return nil, fmt.Errorf("%d bytes, want %d", have, want)
	}
	_, err := binary.Decode(r.GetDigests(), binary.BigEndian, &d)
	return &d, err
}

func (f *Fleet) publish(subject string, m proto.Message) error {
	b, err := proto.Marshal(m)
	if err == nil {
		err = f.nc.Publish(f.prefix+subject, b)
	}
	if err != nil {
		return fmt.Errorf("publish %s: %w", subject, err)
	}
	return nil
}

// listen calls handle for each message under a subject until ctx is done or the
// connection is closed. If handle is too slow it misses messages, which their
// senders repeat.
func listen[M any, P interface {
	*M
	proto.Message
}](ctx context.Context, f *Fleet, subject string, handle func(*nats.Msg, P)) error {
	return f.receive(ctx, subject, func(m *nats.Msg) {
		p := P(new(M))
		if err := proto.Unmarshal(m.Data, p); err != nil {
			f.unreadable.Add(1)
			f.log.Warn("unreadable message", "subject", m.Subject, "error", err)
			return
		}
		handle(m, p)
	})
}

// receive is listen for messages as they are.
func (f *Fleet) receive(ctx context.Context, subject string, handle func(*nats.Msg)) error {
	sub, err := f.nc.SubscribeSync(f.prefix + subject)
	if err != nil {
		return fmt.Errorf("listen to %s: %w", subject, err)
	}
	defer sub.Unsubscribe()
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if errors.Is(err, nats.ErrSlowConsumer) {
			continue // one error per overflow; onError has logged it
		}
		if err != nil {
			return fmt.Errorf("listen to %s: %w", subject, err)
		}
		handle(m)
	}
}
