package audit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/jsapi"
	auditv1 "meshlog.dev/proto/meshlog/audit/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/loglimit"
)

const (
	// queued is how many records may wait for the bus.
	queued = 4096
	// window is how many records are published at once.
	window = 64
	// A Writer retries after these pauses while the bus takes no records.
	firstRetry = 250 * time.Millisecond
	lastRetry  = 10 * time.Second
	// ackWithin is how long a record waits for its acknowledgement before it is
	// published again, under the same id.
	ackWithin = 2 * time.Second
	// storeWithin bounds Store.
	storeWithin = 4 * time.Second
	// flushWithin is how long Run publishes after its context is done.
	flushWithin = 2 * time.Second
	// digestSize is the size of a SHA-256 and of a keyed hash with it.
	digestSize = 32
	// headers is more than the size of the headers of a record.
	headers = 192
)

// Why a record was lost.
const (
	lostOverflow = "overflow" // the queue was full
	lostInvalid  = "invalid"  // Write or the stream refused it
	lostEnded    = "ended"    // the process ended before the stream had it
)

// WriterOptions describe a Writer.
type WriterOptions struct {
	Domain string
	// Role is bus.Frontend(), bus.Operator() or the Watcher of a shard.
	Role bus.Role
	// Process is the id of the process within its role.
	Process string
	Log     *slog.Logger
}

// Writer writes the audit of one process. Write never waits for the bus: Run publishes.
// Store waits, for what must not happen without a record.
//
// At most 4096 records wait. Then the newest are dropped (the policy is drop-newest, so
// that the beginning of an incident stays), logged and counted as lost. A Writer is
// also the prometheus.Collector of its counts. It is safe for concurrent use.
type Writer struct {
	js      jetstream.JetStream
	nc      *bus.Conn
	subject string
	process string
	log     *loglimit.Logger
	queue   chan *nats.Msg
	// run makes the ids of records unknown to other writers: with an id that it knows,
	// a client could make the server take a record for a duplicate.
	run     string
	numbers atomic.Uint64

	written atomic.Uint64
	lost    map[string]*atomic.Uint64 // by reason; the keys never change
}

// NewWriter returns a Writer. Its records are published while Run runs.
func NewWriter(nc *bus.Conn, o WriterOptions) (*Writer, error) {
	s, ok := subject(o.Role, o.Domain)
	if shard, watches := o.Role.Shard(); !ok || watches && shard.Instance == "" {
		return nil, fmt.Errorf("audit: %s writes none: want a frontend, an operator, or the watcher of one shard", o.Role)
	}
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncTimeout(jsapi.Timeout))
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	return &Writer{
		js: js, nc: nc, subject: s, process: o.Process, log: loglimit.New(o.Log, 1),
		queue: make(chan *nats.Msg, queued), run: rand.Text(),
		lost: map[string]*atomic.Uint64{lostOverflow: {}, lostInvalid: {}, lostEnded: {}},
	}, nil
}

// Write queues a record, and sets its process. It never blocks, and does not keep r.
func (w *Writer) Write(r *auditv1.Record) {
	m, err := w.message(r)
	if err != nil {
		w.lose(lostInvalid, err)
		return
	}
	select {
	case w.queue <- m:
	default:
		w.lose(lostOverflow, fmt.Errorf("%d records wait for the bus", queued))
	}
}

// Store publishes a record, sets its process, and returns when the stream has it, within
// four seconds. Run need not run. After an error the stream may have the record.
func (w *Writer) Store(ctx context.Context, r *auditv1.Record) error {
	m, err := w.message(r)
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, storeWithin)
	defer cancel()
	for pause := firstRetry; ; pause *= 2 {
		bound, stop := jsapi.Bound(ctx, w.nc, ackWithin, w.subject)
		// The id of the message stays, so that the stream takes it once.
		_, err := w.js.PublishMsg(bound, m, jetstream.WithRetryAttempts(0))
		err = jsapi.Cause(bound, err)
		stop()
		var api *jetstream.APIError
		switch {
		case err == nil:
			w.written.Add(1)
			return nil
		case errors.As(err, &api) && api.Code == badRequest, errors.As(err, new(*jsapi.DeniedError)):
			return fmt.Errorf("audit: %w", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("audit: %w", jsapi.Explain(w.nc, err, w.subject))
		case <-time.After(pause):
		}
	}
}

func (w *Writer) message(r *auditv1.Record) (*nats.Msg, error) {
	if n := len(r.GetDigest()); n != 0 && n != digestSize {
		return nil, fmt.Errorf("digest: has %d bytes, must have %d: no key may be in a record", n, digestSize)
	}
	r.Process = w.process
	b, err := proto.Marshal(r)
	if err != nil {
		return nil, err
	}
	if size := len(b) + headers; size > maxRecord {
		return nil, fmt.Errorf("has %d bytes with its headers, must have %d at most", size, maxRecord)
	}
	m := nats.NewMsg(w.subject)
	m.Data = b
	m.Header.Set(jetstream.ExpectedStreamHeader, Stream)
	m.Header.Set(jetstream.MsgIDHeader, w.run+"-"+strconv.FormatUint(w.numbers.Add(1), 10))
	return m, nil
}

func (w *Writer) lose(reason string, why error) {
	w.lost[reason].Add(1)
	w.log.Error("a record of the audit is lost", "reason", reason, "error", why)
}

// Run publishes queued records until ctx is done, and then for 2 s more at most. It
// retries what the bus does not take. Records that wait when it returns are lost.
func (w *Writer) Run(ctx context.Context) error {
	var rest []*nats.Msg
	for ctx.Err() == nil {
		select {
		case m := <-w.queue:
			rest = w.deliver(ctx, w.take(m))
		case <-ctx.Done():
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushWithin)
	defer cancel()
	rest = w.deliver(last, rest)
	for len(w.queue) > 0 && last.Err() == nil {
		rest = w.deliver(last, w.take(<-w.queue))
	}
	for range len(rest) + len(w.queue) {
		w.lose(lostEnded, errEnded)
	}
	return ctx.Err()
}

var errEnded = errors.New("the process ended before the bus had the record")

// take returns first and what is queued behind it, a window at most.
func (w *Writer) take(first *nats.Msg) []*nats.Msg {
	all := []*nats.Msg{first}
	for len(all) < window {
		select {
		case m := <-w.queue:
			all = append(all, m)
		default:
			return all
		}
	}
	return all
}

// deliver publishes records until the stream has them or ctx is done. It returns those
// that the stream is not known to have.
func (w *Writer) deliver(ctx context.Context, all []*nats.Msg) []*nats.Msg {
	for pause := firstRetry; len(all) > 0; pause = min(2*pause, lastRetry) {
		var err error
		if all, err = w.publish(ctx, all); len(all) == 0 || ctx.Err() != nil {
			return all
		}
		w.log.Warn("the bus does not take records of the audit; retrying", "waiting", len(w.queue)+len(all), "error", err)
		select {
		case <-ctx.Done():
			return all
		case <-time.After(pause):
		}
	}
	return all
}

// publish publishes records once. It returns those that the stream is not known to have,
// and why one of them is not there. A record that it has already counts as stored.
func (w *Writer) publish(ctx context.Context, all []*nats.Msg) (rest []*nats.Msg, err error) {
	bound, cancel := context.WithTimeout(ctx, ackWithin)
	defer cancel()
	futures := make([]jetstream.PubAckFuture, len(all))
	for i, m := range all {
		again := &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data} // the library sets the reply
		// The library must not retry: deliver does.
		futures[i], err = w.js.PublishMsgAsync(again, jetstream.WithRetryAttempts(0))
		if err != nil {
			break // the rest would fail alike
		}
	}
	for i, m := range all {
		failed := err
		if futures[i] != nil {
			failed = outcome(bound, futures[i])
		}
		var api *jetstream.APIError
		switch {
		case failed == nil:
			w.written.Add(1)
		case errors.As(failed, &api) && api.Code == badRequest:
			w.lose(lostInvalid, failed)
		default:
			rest, err = append(rest, m), jsapi.Explain(w.nc, failed, w.subject)
		}
	}
	return rest, err
}

// badRequest is the status of an answer to a message that the stream will never take.
const badRequest = 400

func outcome(ctx context.Context, f jetstream.PubAckFuture) error {
	select {
	case <-f.Ok():
		return nil
	case err := <-f.Err():
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

var (
	writtenDesc = prometheus.NewDesc("meshlog_audit_written_total", "Records of the audit that the bus has stored for this process.", nil, nil)
	waitingDesc = prometheus.NewDesc("meshlog_audit_waiting", "Records of the audit that wait for the bus. Above 0 for long: the log says why it takes none; beyond 4096 the newest are lost.", nil, nil)
	lostDesc    = prometheus.NewDesc("meshlog_audit_lost_total", "Records of the audit that are lost, by reason: overflow (the bus was away for too long), invalid (the log says why), ended (the process ended before the bus had them). Above 0: keys or certificates were given or refused that `meshlog audit` does not show; the log of the process does.", []string{"reason"}, nil)
)

// Describe implements prometheus.Collector.
func (w *Writer) Describe(ch chan<- *prometheus.Desc) {
	ch <- writtenDesc
	ch <- waitingDesc
	ch <- lostDesc
}

// Collect implements prometheus.Collector.
func (w *Writer) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(writtenDesc, prometheus.CounterValue, float64(w.written.Load()))
	ch <- prometheus.MustNewConstMetric(waitingDesc, prometheus.GaugeValue, float64(len(w.queue)))
	for reason, n := range w.lost {
		ch <- prometheus.MustNewConstMetric(lostDesc, prometheus.CounterValue, float64(n.Load()), reason)
	}
}
