package natsfeed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/proto/ident"
	"meshlog.dev/proto/jsapi"
	"meshlog.dev/store"
	"meshlog.dev/store/internal/link"
)

// window is how many messages one request reads at most.
const window = 64

// message is a message of the stream.
type message struct {
	seq    uint64
	update store.Update
	blob   ident.Hash // holds the delta; zero: the update does
	err    error      // why it holds no version
}

// Position implements link.Entry.
func (m message) Position() uint64 { return m.seq }

// Link implements link.Entry.
func (m message) Link() (*store.Manifest, error) { return m.update.Manifest, m.err }

// Reasons why a message is no version although its bytes may be those of one.
var (
	errEpoch  = errors.New("its epoch is more than a year after the time at which the server got it")
	errServer = errors.New("it is an answer of the server, which a client sent here")
	errHeader = errors.New("no builder published it: it lacks the header " + jetstream.ExpectedStreamHeader)
)

func decode(m jsapi.Message) message {
	switch {
	case m.Header.Get(jetstream.StreamHeader) != "":
		return message{seq: m.Seq, err: errServer}
	case m.Header.Get(jetstream.ExpectedStreamHeader) != Stream:
		return message{seq: m.Seq, err: errHeader}
	}
	u, blob, err := store.DecodeUpdate(m.Data)
	if err != nil {
		return message{seq: m.Seq, err: err}
	}
	if v := store.VersionOf(u.Manifest.GetVersion()); v.Epoch > ident.MaxEpoch(m.Time) {
		return message{seq: m.Seq, err: fmt.Errorf("version %s: %w", v, errEpoch)}
	}
	return message{seq: m.Seq, update: u, blob: blob}
}

// delta returns the delta of m, from its blob if it has one.
func (f *Feed) delta(ctx context.Context, m message) (store.Delta, error) {
	if m.blob.IsZero() {
		return m.update.Delta, nil
	}
	b, err := f.GetBlob(ctx, m.blob)
	if err != nil {
		return store.Delta{}, err
	}
	return store.DecodeDelta(b)
}

// Fetch implements store.Chain.
func (f *Feed) Fetch(ctx context.Context, v ident.Position) (store.Stored, error) {
	back := func(yield func(link.Message, error) bool) {
		for m, err := range f.back(ctx) {
			delta := func(ctx context.Context) (store.Delta, error) { return f.delta(ctx, m) }
			if !yield(link.Message{Manifest: m.update.Manifest, Delta: delta}, err) {
				return
			}
		}
	}
	return link.Fetch(ctx, f, back, v)
}

// History implements store.Chain.
func (f *Feed) History(ctx context.Context) iter.Seq2[*store.Manifest, error] {
	return func(yield func(*store.Manifest, error) bool) {
		for m, err := range f.back(ctx) {
			if err != nil {
				yield(nil, err)
				return
			}
			if !yield(m.update.Manifest, nil) {
				return
			}
		}
	}
}

// Updates implements store.Copier.
func (f *Feed) Updates(ctx context.Context, from ident.Position) iter.Seq2[store.Update, error] {
	return func(yield func(store.Update, error) bool) {
		info, err := f.info(ctx)
		if err != nil {
			yield(store.Update{}, fmt.Errorf("read the version chain: %w", err))
			return
		}
		// Only on the way back is it known which messages are versions.
		versions := map[uint64]bool{}
		for m, err := range f.back(ctx) {
			if err != nil {
				yield(store.Update{}, err)
				return
			}
			versions[m.seq] = true
		}
		for m, err := range f.forward(ctx, f.subject, max(info.State.FirstSeq, 1), info.State.LastSeq) {
			if err != nil {
				yield(store.Update{}, fmt.Errorf("read the version chain: %w", err))
				return
			}
			if !versions[m.seq] {
				continue
			}
			u := store.Update{Manifest: m.update.Manifest}
			v := store.VersionOf(u.Manifest.GetVersion())
			if v.Less(from) {
				continue
			}
			if u.Delta, err = f.delta(ctx, m); err != nil {
				err = fmt.Errorf("delta of version %s: %w", v, err)
			}
			if !yield(u, err) || err != nil {
				return
			}
		}
	}
}

// Foreign implements store.Auditor.
func (f *Feed) Foreign(ctx context.Context) ([]store.ForeignError, error) {
	return link.Foreign(f.messages(ctx))
}

// back yields the chain, newest first. It ends with the first error.
func (f *Feed) back(ctx context.Context) iter.Seq2[message, error] {
	return link.Versions(f.messages(ctx), nil)
}

// messages yields the messages of this domain, newest first. It ends with the
// first error.
func (f *Feed) messages(ctx context.Context) iter.Seq2[message, error] {
	return func(yield func(message, error) bool) {
		info, err := f.info(ctx)
		if err != nil {
			yield(message{}, fmt.Errorf("read the version chain: %w", err))
			return
		}
		f.backward(ctx, max(info.State.FirstSeq, 1), info.State.LastSeq, yield)
	}
}

// backward yields the messages of this domain from sequence last back to sequence
// first.
func (f *Feed) backward(ctx context.Context, first, last uint64, yield func(message, error) bool) {
	for n := uint64(2); last >= first && last > 0; n = min(4*n, window) { // often one version is enough
		from := max(first, last-min(n, last)+1)
		run, err := f.between(ctx, from, last)
		if err != nil {
			yield(message{}, fmt.Errorf("read the version chain: %w", err))
			return
		}
		for _, m := range slices.Backward(run) {
			if !yield(m, nil) {
				return
			}
		}
		last = from - 1
	}
}

// between returns the messages of this domain from sequence from to sequence to,
// oldest first.
func (f *Feed) between(ctx context.Context, from, to uint64) ([]message, error) {
	var all []message
	for m, err := range f.forward(ctx, f.subject, from, to) {
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// forward yields the messages on subject from sequence from to sequence to. It
// ends with the first error.
func (f *Feed) forward(ctx context.Context, subject string, from, to uint64) iter.Seq2[message, error] {
	return func(yield func(message, error) bool) {
		for from <= to {
			run, err := f.direct(ctx, Stream, subject, from, int(min(to-from+1, window)))
			if err != nil {
				yield(message{}, err)
				return
			}
			for _, r := range run {
				if r.Seq > to || !yield(decode(r), nil) {
					return
				}
			}
			if len(run) == 0 {
				return
			}
			from = run[len(run)-1].Seq + 1
		}
	}
}

// direct reads up to n messages on subject, from sequence from on, by Direct
// Get. The server may end the run earlier if it has become large. A lost answer
// never ends the run: direct asks once more, because answers get lost when the
// servers of a cluster connect to one another again, and then fails.
func (f *Feed) direct(ctx context.Context, stream, subject string, from uint64, n int) ([]jsapi.Message, error) {
	run, err := f.directOnce(ctx, stream, subject, from, n)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		run, err = f.directOnce(ctx, stream, subject, from, n)
	}
	return run, err
}

func (f *Feed) directOnce(ctx context.Context, stream, subject string, from uint64, n int) ([]jsapi.Message, error) {
	ctx, cancel := f.bound(ctx, jsapi.DirectGet+stream)
	defer cancel()
	request, err := json.Marshal(map[string]any{"seq": from, "next_by_subj": subject, "batch": n})
	if err != nil {
		return nil, err
	}
	inbox := f.nc.NewRespInbox()
	answers := make(chan *nats.Msg, n+1)
	sub, err := f.nc.ChanSubscribe(inbox, answers)
	if err != nil {
		return nil, fmt.Errorf("direct get from %s: %w", stream, err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only if the connection is closed
	if err := f.nc.PublishRequest(jsapi.DirectGet+stream, inbox, request); err != nil {
		return nil, fmt.Errorf("direct get from %s: %w", stream, err)
	}
	var run []jsapi.Message
	for next := from; ; next++ {
		var reply *nats.Msg
		select {
		case reply = <-answers:
		case <-ctx.Done():
			return nil, fmt.Errorf("direct get from %s, sequence %d: %w", stream, from, jsapi.Cause(ctx, ctx.Err()))
		}
		m, err := jsapi.ParseDirect(reply)
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound):
			return run, nil
		case errors.Is(err, jsapi.ErrHeaders):
			m = jsapi.Message{Seq: next} // or behind it: the server's headers are lost with its own
		case err != nil:
			return nil, fmt.Errorf("direct get from %s: %w", stream, err)
		}
		next = m.Seq
		run = append(run, m)
	}
}
