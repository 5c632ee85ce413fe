package natslog

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// prefetch is how many records, and prefetchBytes how many bytes, a server
	// may send ahead; up to twice the bytes for a moment.
	prefetch      = 512
	prefetchBytes = 8 << 20
	// heartbeat is how often a server that has nothing to send says so.
	heartbeat = time.Second
	// pullExpiry ends a request for records that nobody waits for any more.
	pullExpiry = 30 * time.Second
	// inactive is when the server forgets a consumer without requests.
	inactive = time.Minute
	// statusRoom is for messages that are no records: per request one at its
	// end and a heartbeat each second, for three requests.
	statusRoom = 128
)

// reader is one ephemeral consumer and what it has sent. It asks for records
// ahead, so that one that is appended is sent at once; when it is used up or
// in trouble there is a new one.
type reader struct {
	log      *Log
	name     string
	start    uint64 // Seq of the first record; 0 once it came
	inbox    string
	sub      *nats.Subscription
	messages chan *nats.Msg // never full: no more is asked for than fits
	pending  int            // records that were asked for and have not come
}

func (l *Log) newReader(ctx context.Context, start uint64) (*reader, error) {
	r := &reader{
		log:      l,
		name:     "read-" + rand.Text(), // never used before
		start:    start,
		inbox:    l.nc.NewInbox(),
		messages: make(chan *nats.Msg, prefetch+statusRoom),
	}
	rctx, cancel := l.request(ctx, createTimeout, createConsumerAPI+l.stream)
	defer cancel()
	_, err := l.js.CreateConsumer(rctx, l.stream, jetstream.ConsumerConfig{
		Name:              r.name,
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       start,
		AckPolicy:         jetstream.AckNonePolicy,
		InactiveThreshold: inactive,
		Replicas:          1,
		MemoryStorage:     true,
	})
	if err != nil {
		return nil, fmt.Errorf("make a consumer: %w", l.explain(ctx, cause(rctx, err)))
	}
	if r.sub, err = l.nc.ChanSubscribe(r.inbox, r.messages); err != nil {
		return nil, l.explain(ctx, err)
	}
	if err := r.pull(); err != nil {
		r.close()
		return nil, l.explain(ctx, err)
	}
	return r, nil
}

// pull asks for as many records as are missing to prefetch.
func (r *reader) pull() error {
	request, err := json.Marshal(struct {
		Batch     int           `json:"batch"`
		MaxBytes  int           `json:"max_bytes"`
		Expires   time.Duration `json:"expires"`
		Heartbeat time.Duration `json:"idle_heartbeat"`
	}{prefetch - r.pending, prefetchBytes, pullExpiry, heartbeat})
	if err != nil {
		return err
	}
	if err := r.log.nc.PublishRequest(nextAPI+r.log.stream+"."+r.name, r.inbox, request); err != nil {
		return err
	}
	r.pending = prefetch
	return nil
}

// accept takes a message; ok says whether it is a record. An error means that
// this consumer sends no more.
func (r *reader) accept(m *nats.Msg) (seq uint64, t time.Time, ok bool, err error) {
	if m.Reply == "" {
		return 0, time.Time{}, false, r.acceptStatus(m)
	}
	meta, err := m.Metadata()
	if err != nil {
		return 0, time.Time{}, false, err
	}
	if meta.Sequence.Stream == r.start {
		r.start = 0
	}
	return meta.Sequence.Stream, meta.Timestamp, true, r.done(1)
}

func (r *reader) acceptStatus(m *nats.Msg) error {
	if m.Header.Get("Status") == "100" {
		return nil // heartbeat
	}
	// A request ended; the rest of it is not coming.
	if missing, err := strconv.Atoi(m.Header.Get("Nats-Pending-Messages")); err == nil {
		return r.done(missing)
	}
	return errors.New(m.Header.Get("Description"))
}

// done counts what came, or is not coming, and asks for more in time.
func (r *reader) done(n int) error {
	r.pending = max(0, r.pending-n)
	if r.pending > prefetch/2 {
		return nil
	}
	return r.pull()
}

// close gives the consumer up. The server forgets it by itself if the request
// to do so is lost.
func (r *reader) close() {
	_ = r.sub.Unsubscribe()
	_ = r.log.nc.Publish(deleteConsumerAPI+r.log.stream+"."+r.name, nil)
}
