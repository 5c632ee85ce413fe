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

	"meshlog.dev/proto/jsapi"
)

const (
	// The server may send prefetch records and prefetchBytes bytes ahead; for a
	// moment twice the bytes.
	prefetch      = 512
	prefetchBytes = 8 << 20
	// heartbeat is how often the server reports that it has nothing to send.
	heartbeat = time.Second
	// pullExpiry ends a request for records whose client is gone.
	pullExpiry = 30 * time.Second
	// inactive is when the server removes a consumer without requests.
	inactive = time.Minute
	// statusRoom is for status messages: one at the end of a request and a
	// heartbeat each second, for three requests.
	statusRoom = 128
)

// reader is one ephemeral consumer and the messages that it has sent. It asks
// for records ahead, so that the server sends an appended record at once.
type reader struct {
	log      *Log
	name     string
	start    uint64 // Seq of the first record; 0 once it has arrived
	inbox    string
	sub      *nats.Subscription
	messages chan *nats.Msg // never full: pull asks for no more than fits
	pending  int            // records that were asked for and have not arrived
}

// newReader makes a reader that begins at start. headers: the server sends records
// without their data.
func (l *Log) newReader(ctx context.Context, start uint64, headers bool) (*reader, error) {
	r := &reader{
		log:      l,
		name:     "read-" + rand.Text(), // never used before
		start:    start,
		inbox:    l.nc.NewInbox(),
		messages: make(chan *nats.Msg, prefetch+statusRoom),
	}
	rctx, cancel := jsapi.Bound(ctx, l.nc, createTimeout, jsapi.ConsumerCreate+Stream)
	defer cancel()
	_, err := l.js.CreateConsumer(rctx, Stream, jetstream.ConsumerConfig{
		Name:              r.name,
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       start,
		AckPolicy:         jetstream.AckNonePolicy,
		InactiveThreshold: inactive,
		Replicas:          1,
		MemoryStorage:     true,
		HeadersOnly:       headers,
	})
	if err != nil {
		return nil, fmt.Errorf("make a consumer: %w", l.explain(ctx, jsapi.Cause(rctx, err)))
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

// pull asks for records until prefetch are pending.
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
	if err := r.log.nc.PublishRequest(jsapi.ConsumerNext+Stream+"."+r.name, r.inbox, request); err != nil {
		return err
	}
	r.pending = prefetch
	return nil
}

// accept takes a message; ok reports whether it is a record. After an error
// this consumer sends nothing more.
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
		return nil // a heartbeat
	}
	// A request ended; its remaining records will not arrive.
	if missing, err := strconv.Atoi(m.Header.Get("Nats-Pending-Messages")); err == nil {
		return r.done(missing)
	}
	return errors.New(m.Header.Get("Description"))
}

// done counts n records that are no longer pending, and asks for more in time.
func (r *reader) done(n int) error {
	r.pending = max(0, r.pending-n)
	if r.pending > prefetch/2 {
		return nil
	}
	return r.pull()
}

// close deletes the consumer. If that request is lost, the server removes the
// consumer when it has been inactive.
func (r *reader) close() {
	_ = r.sub.Unsubscribe()
	_ = r.log.nc.Publish(jsapi.ConsumerDelete+Stream+"."+r.name, nil)
}
