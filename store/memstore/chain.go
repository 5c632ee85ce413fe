package memstore

import (
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"sync"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
	"meshlog.dev/store/internal/link"
)

// Chain is a version chain. It implements store.Publisher and store.Chain, and has
// the faults of a real one on demand: Rewind, Expire, Reconnect.
type Chain struct {
	mu         sync.Mutex
	generation uint64
	seq        uint64    // of the last message
	messages   []message // the last ones, up to seq
	blobs      map[ident.Hash][]byte
	changed    chan struct{} // closed when a field above changes
}

// message is a message of the chain's stream.
type message struct {
	seq    uint64
	update store.Update
	err    error // it holds no version
}

// Position implements link.Entry.
func (m message) Position() uint64 { return m.seq }

// Link implements link.Entry.
func (m message) Link() (*store.Manifest, error) { return m.update.Manifest, m.err }

// Inject appends a message as a process does that is no builder: without a fence
// and without checks. If unreadable is not nil, the message holds no update.
func (c *Chain) Inject(u store.Update, unreadable error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.append(u, unreadable)
}

func (c *Chain) append(u store.Update, unreadable error) {
	c.seq++
	c.messages = append(c.messages, message{c.seq, u, unreadable})
	c.signal()
}

// NewChain returns an empty chain.
func NewChain() *Chain {
	return &Chain{generation: 1, blobs: make(map[ident.Hash][]byte), changed: make(chan struct{})}
}

// Rewind removes all messages after seq and renews the connection. If the last
// message has expired, no message is left.
func (c *Chain) Rewind(seq uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if seq < c.seq {
		gone := min(c.seq-seq, uint64(len(c.messages)))
		c.messages = slices.Clip(c.messages[:uint64(len(c.messages))-gone])
		c.seq = seq
	}
	c.generation++
	c.signal()
}

// Expire drops all messages, as retention does: the chain has no head any more,
// and keeps its last sequence.
func (c *Chain) Expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.messages = nil
	c.signal()
}

// Trim drops the messages up to seq, as retention does.
func (c *Chain) Trim(seq uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := c.seq - uint64(len(c.messages)) + 1
	if seq >= first {
		c.messages = c.messages[min(seq+1-first, uint64(len(c.messages))):]
	}
	c.signal()
}

// LoseBlobs drops all blobs, as if the bus had lost its object store.
func (c *Chain) LoseBlobs() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.blobs)
}

// Reconnect renews the connection.
func (c *Chain) Reconnect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.generation++
	c.signal()
}

func (c *Chain) signal() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// Generation implements store.Publisher.
func (c *Chain) Generation() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.generation
}

// Head implements store.Publisher.
func (c *Chain) Head(ctx context.Context) (store.Head, error) {
	if err := ctx.Err(); err != nil {
		return store.Head{}, fmt.Errorf("read the head of the version chain: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.head(), nil
}

func (c *Chain) head() store.Head {
	h := store.Head{Seq: c.seq}
	newest, _, foreign, _ := link.Head(backward(c.messages))
	h.Manifest, h.Foreign = newest.update.Manifest, foreign
	return h
}

// backward yields messages, newest first.
func backward(messages []message) iter.Seq2[message, error] {
	return func(yield func(message, error) bool) {
		for _, m := range slices.Backward(messages) {
			if !yield(m, nil) {
				return
			}
		}
	}
}

// versions returns the newest versions among messages, up to max, oldest first.
func versions(messages []message, most int) []store.Update {
	var all []store.Update
	for m, _ := range link.Versions(backward(messages), nil) { // messages in memory are read without an error
		if all = append(all, m.update); len(all) == most {
			break
		}
	}
	slices.Reverse(all)
	return all
}

// Publish implements store.Publisher.
func (c *Chain) Publish(ctx context.Context, u store.Update, expect, generation uint64) (uint64, error) {
	v := store.VersionOf(u.Manifest.GetVersion())
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("publish version %s: %w", v, err)
	}
	if err := u.Check(); err != nil {
		return 0, fmt.Errorf("publish: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if generation != c.generation {
		return 0, fmt.Errorf("publish version %s: %w", v, store.ErrReconnected)
	}
	if expect != c.seq {
		return 0, fmt.Errorf("publish version %s after sequence %d: the last is %d: %w", v, expect, c.seq, store.ErrConflict)
	}
	c.append(u, nil)
	return c.seq, nil
}

// PutBlob implements store.Blobs.
func (c *Chain) PutBlob(ctx context.Context, b []byte) (ident.Hash, error) {
	h := ident.HashOf(b)
	if err := ctx.Err(); err != nil {
		return h, fmt.Errorf("put blob %s: %w", h, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.blobs[h]; !ok {
		c.blobs[h] = slices.Clone(b)
	}
	return h, nil
}

// GetBlob implements store.Blobs.
func (c *Chain) GetBlob(ctx context.Context, h ident.Hash) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("get blob %s: %w", h, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	b, ok := c.blobs[h]
	if !ok {
		return nil, fmt.Errorf("get blob %s: %w", h, store.ErrNotFound)
	}
	return slices.Clone(b), nil
}

// run returns the current messages; no method changes them.
func (c *Chain) run() []message {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.messages[:len(c.messages):len(c.messages)]
}

// Fetch implements store.Chain.
func (c *Chain) Fetch(ctx context.Context, v ident.Position) (store.Stored, error) {
	return link.Fetch(ctx, c, func(yield func(link.Message, error) bool) {
		for m, _ := range link.Versions(backward(c.run()), nil) {
			delta := func(ctx context.Context) (store.Delta, error) { return m.update.Delta, ctx.Err() }
			if !yield(link.Message{Manifest: m.update.Manifest, Delta: delta}, nil) {
				return
			}
		}
	}, v)
}

// History implements store.Chain.
func (c *Chain) History(ctx context.Context) iter.Seq2[*store.Manifest, error] {
	return func(yield func(*store.Manifest, error) bool) {
		for m, _ := range link.Versions(backward(c.run()), nil) {
			if err := ctx.Err(); err != nil {
				yield(nil, fmt.Errorf("read the version chain: %w", err))
				return
			}
			if !yield(m.update.Manifest, nil) {
				return
			}
		}
	}
}

// Updates implements store.Copier.
func (c *Chain) Updates(ctx context.Context, from ident.Position) iter.Seq2[store.Update, error] {
	return func(yield func(store.Update, error) bool) {
		for _, u := range versions(c.run(), math.MaxInt) {
			if store.VersionOf(u.Manifest.GetVersion()).Less(from) {
				continue
			}
			if err := ctx.Err(); err != nil {
				yield(store.Update{}, fmt.Errorf("read the version chain: %w", err))
				return
			}
			if !yield(u, nil) {
				return
			}
		}
	}
}

// Foreign implements store.Auditor.
func (c *Chain) Foreign(ctx context.Context) ([]store.ForeignError, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read the version chain: %w", err)
	}
	return link.Foreign(backward(c.run()))
}

// Follow implements store.Chain; the Follower is a *ChainFollower.
func (c *Chain) Follow(ctx context.Context) (store.Follower, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("follow the version chain: %w", err)
	}
	return c.Follower(), nil
}

// Follower is Follow with the concrete type.
func (c *Chain) Follower() *ChainFollower { return &ChainFollower{chain: c} }

// ChainFollower follows a Chain. It implements store.Follower.
type ChainFollower struct {
	chain *Chain
	judge link.Judge
}

// Poll is Next for callers that cannot block. It reports whether there are updates.
func (f *ChainFollower) Poll(have ident.Position, root ident.Hash) ([]store.Update, bool, error) {
	links, _, err := f.poll(have, root)
	return links, len(links) > 0, err
}

func (f *ChainFollower) poll(have ident.Position, root ident.Hash) ([]store.Update, <-chan struct{}, error) {
	f.chain.mu.Lock()
	defer f.chain.mu.Unlock()
	ahead, err := f.judge.Ahead(f.chain.head(), have, root)
	if err != nil || !ahead {
		return nil, f.chain.changed, err
	}
	run := versions(f.chain.messages, link.Max)
	manifests := make([]*store.Manifest, len(run))
	for i, u := range run {
		manifests[i] = u.Manifest
	}
	i := link.From(manifests, have, root)
	if i < 0 {
		i = len(run) - 1
	}
	return slices.Clone(run[i:]), nil, nil
}

// Next implements store.Follower.
func (f *ChainFollower) Next(ctx context.Context, have ident.Position, root ident.Hash) ([]store.Update, error) {
	for {
		links, changed, err := f.poll(have, root)
		if err != nil || len(links) > 0 {
			return links, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("follow the version chain: %w", ctx.Err())
		}
	}
}

// Close implements store.Follower.
func (f *ChainFollower) Close() error { return nil }
