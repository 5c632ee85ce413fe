package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/events"
	"meshlog.dev/proto/jsapi"
	auditv1 "meshlog.dev/proto/meshlog/audit/v1"
	"meshlog.dev/services/internal/bus"
)

const (
	// stretch is how many records one request reads at most.
	stretch = 256
	// lookAgain is how often Follow looks for new records.
	lookAgain = 500 * time.Millisecond
)

// ErrNoStream reports that the bus has no audit.
var ErrNoStream = errors.New("the bus has no audit: a builder creates it when it starts")

// Entry is a record as the stream has it.
type Entry struct {
	Seq  uint64
	Time time.Time // by the server's clock
	// Writer is "frontend", or the shard of the watcher that wrote the record as
	// SOURCE/INSTANCE; it follows from the subject. What is in the record, the writer
	// claims.
	Writer string
	Record *auditv1.Record // nil if Err is set
	Err    error           // why the message is no record
}

// Reader reads the audit of one mesh. It is safe for concurrent use.
type Reader struct {
	nc     *bus.Conn
	js     jetstream.JetStream
	domain string
}

// NewReader returns a reader of the audit of the mesh called domain.
func NewReader(nc *bus.Conn, domain string) (*Reader, error) {
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(jsapi.Timeout))
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	return &Reader{nc: nc, js: js, domain: domain}, nil
}

// Newest returns the newest n entries, oldest first, and the sequence number up to which
// it has read; all entries if n is negative.
func (r *Reader) Newest(ctx context.Context, n int) (found []Entry, last uint64, err error) {
	first, last, err := r.bounds(ctx)
	if err != nil {
		return nil, 0, err
	}
	if n < 0 {
		found, err = r.between(ctx, first, last)
		return found, last, err
	}
	// Records of a writer may have expired before older ones of another, so a stretch
	// may hold fewer records than sequences.
	end := last
	for size := uint64(max(n, stretch)); end >= first && len(found) < n; size *= 4 {
		from := max(first, end-min(size, end)+1)
		older, err := r.between(ctx, from, end)
		if err != nil {
			return nil, 0, err
		}
		found, end = append(older, found...), from-1
	}
	return found[max(0, len(found)-n):], last, nil
}

// Since returns the entries of this time or later, oldest first, and the sequence
// number up to which it has read.
func (r *Reader) Since(ctx context.Context, t time.Time) (found []Entry, last uint64, err error) {
	first, last, err := r.bounds(ctx)
	if err != nil {
		return nil, 0, err
	}
	for end := last + 1; first < end; {
		middle := first + (end-first)/2
		m, err := r.next(ctx, middle)
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound), err == nil && !m.Time.Before(t):
			end = middle
		case err != nil:
			return nil, 0, fmt.Errorf("read the audit: %w", err)
		default:
			first = m.Seq + 1
		}
	}
	found, err = r.between(ctx, first, last)
	return found, last, err
}

// Follow passes the entries behind a sequence number, and those that come, to handle
// until ctx is done or handle returns an error.
func (r *Reader) Follow(ctx context.Context, after uint64, handle func([]Entry) error) error {
	for {
		run, err := r.direct(ctx, after+1)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !r.nc.IsConnected(): // the connection renews itself
		case err != nil:
			return err
		}
		if len(run) > 0 {
			after = run[len(run)-1].Seq
			if err := handle(run); err != nil {
				return err
			}
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lookAgain):
		}
	}
}

// bounds returns the first and the last sequence number of the stream.
func (r *Reader) bounds(ctx context.Context) (first, last uint64, err error) {
	s, err := r.js.Stream(ctx, Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return 0, 0, ErrNoStream
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read the audit: %w", jsapi.Explain(r.nc, err, jsapi.StreamInfo+Stream))
	}
	state := s.CachedInfo().State
	return max(1, state.FirstSeq), state.LastSeq, nil
}

// between returns the entries from one sequence number to another.
func (r *Reader) between(ctx context.Context, from, to uint64) ([]Entry, error) {
	var all []Entry
	for from <= to {
		run, err := r.direct(ctx, from)
		if err != nil {
			return nil, err
		}
		if len(run) == 0 {
			break
		}
		all = append(all, run...)
		from = run[len(run)-1].Seq + 1
	}
	return slices.DeleteFunc(all, func(e Entry) bool { return e.Seq > to }), nil
}

// next returns the first message from a sequence number on. The leader tells sequence,
// time and subject beside the message, whatever its headers are.
func (r *Reader) next(ctx context.Context, from uint64) (jsapi.Message, error) {
	return jsapi.Get(ctx, r.nc, Stream, jsapi.GetRequest{Seq: from, NextFor: r.subjects()})
}

func (r *Reader) subjects() string { return domainPrefix(r.domain) + ">" }

// direct reads a stretch of entries by Direct Get; none if there is no further one. An
// answer may get lost when the servers of a cluster connect to one another again, so
// it asks once more.
func (r *Reader) direct(ctx context.Context, from uint64) ([]Entry, error) {
	run, err := r.directOnce(ctx, from)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		run, err = r.directOnce(ctx, from)
	}
	if err != nil {
		return nil, fmt.Errorf("read the audit: %w", err)
	}
	return run, nil
}

func (r *Reader) directOnce(ctx context.Context, from uint64) ([]Entry, error) {
	q, err := json.Marshal(map[string]any{"seq": from, "next_by_subj": r.subjects(), "batch": stretch})
	if err != nil {
		return nil, err
	}
	ctx, cancel := jsapi.Bound(ctx, r.nc, jsapi.Timeout, jsapi.DirectGet+Stream)
	defer cancel()
	inbox := r.nc.NewRespInbox()
	answers := make(chan *nats.Msg, stretch+1)
	sub, err := r.nc.ChanSubscribe(inbox, answers)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only if the connection is closed
	if err := r.nc.PublishRequest(jsapi.DirectGet+Stream, inbox, q); err != nil {
		return nil, err
	}
	var run []Entry
	for {
		var answer *nats.Msg
		select {
		case answer = <-answers:
		case <-ctx.Done():
			return nil, jsapi.Cause(ctx, ctx.Err())
		}
		m, err := jsapi.ParseDirect(answer)
		if errors.Is(err, jsapi.ErrHeaders) { // the writer's headers hide those of the server
			m, err = r.next(ctx, from)
		}
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound):
			return run, nil
		case err != nil:
			return nil, err
		}
		from = m.Seq + 1
		run = append(run, entry(r.domain, m))
	}
}

// Reasons why a message is no record.
var (
	errServer = errors.New("it is an answer of the server, which a client sent here")
	errHeader = errors.New("no process of meshlog wrote it: it lacks the header " + jetstream.ExpectedStreamHeader)
)

// entry reads a message. Texts of a record become printable: a client may choose them.
func entry(domain string, m jsapi.Message) Entry {
	e := Entry{Seq: m.Seq, Time: m.Time}
	e.Writer, e.Err = writer(domain, m.Subject)
	record := new(auditv1.Record)
	switch {
	case e.Err != nil:
	case m.Header.Get(jetstream.StreamHeader) != "":
		e.Err = errServer
	case m.Header.Get(jetstream.ExpectedStreamHeader) != Stream:
		e.Err = errHeader
	default:
		e.Err = proto.Unmarshal(m.Data, record)
	}
	if e.Err != nil {
		return e
	}
	for _, text := range []*string{
		&record.Process, &record.Identity, &record.Proxy, &record.Object, &record.Name, &record.Serial, &record.Authenticator, &record.Reason,
	} {
		*text = events.Printable(*text)
	}
	for i, fact := range record.GetFacts() {
		record.Facts[i] = events.Printable(fact)
	}
	e.Record = record
	return e
}
