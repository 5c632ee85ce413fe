package natsfeed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/proto/ident"
	"meshlog.dev/proto/jsapi"
	"meshlog.dev/store"
	"meshlog.dev/store/internal/link"
)

// window is how many messages one request reads at most.
const window = 64

// message is one version of the stream.
type message struct {
	seq    uint64
	update store.Update
	blob   ident.Hash // holds the delta; zero: the update does
}

func decode(m jsapi.Message) (message, error) {
	u, blob, err := store.DecodeUpdate(m.Data)
	if err != nil {
		return message{}, fmt.Errorf("message %d of %s: %w", m.Seq, Stream, err)
	}
	return message{m.Seq, u, blob}, nil
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
		for m, err := range f.forward(ctx, f.subject, max(info.State.FirstSeq, 1), info.State.LastSeq) {
			if err != nil {
				yield(store.Update{}, fmt.Errorf("read the version chain: %w", err))
				return
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

// back yields the chain, newest first. It ends with the first error.
func (f *Feed) back(ctx context.Context) iter.Seq2[message, error] {
	return func(yield func(message, error) bool) {
		info, err := f.info(ctx)
		if err != nil {
			yield(message{}, fmt.Errorf("read the version chain: %w", err))
			return
		}
		first, last := max(info.State.FirstSeq, 1), info.State.LastSeq
		for n := uint64(1); last >= first; n = min(4*n, window) { // often one message is enough
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
				if r.Seq > to {
					return
				}
				if m, err := decode(r); !yield(m, err) || err != nil {
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
	sub, err := f.nc.SubscribeSync(inbox)
	if err != nil {
		return nil, fmt.Errorf("direct get from %s: %w", stream, err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only if the connection is closed
	if err := f.nc.PublishRequest(jsapi.DirectGet+stream, inbox, request); err != nil {
		return nil, fmt.Errorf("direct get from %s: %w", stream, err)
	}
	var run []jsapi.Message
	for {
		reply, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return nil, fmt.Errorf("direct get from %s, sequence %d: %w", stream, from, jsapi.Cause(ctx, err))
		}
		m, err := jsapi.ParseDirect(reply)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return run, nil
		}
		if err != nil {
			return nil, fmt.Errorf("direct get from %s: %w", stream, err)
		}
		run = append(run, m)
	}
}
