package natsfeed

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go"

	"meshlog.dev/proto/ident"
	"meshlog.dev/proto/jsapi"
	"meshlog.dev/store"
	"meshlog.dev/store/internal/link"
)

// liveBuffer is how many republished messages may wait for Next. The client drops
// the messages that do not fit, and the follower reads them from the stream.
const liveBuffer = 64

// Follower follows the chain of a Feed. It implements store.Follower. One
// goroutine uses it; Hint may be called by others.
type Follower struct {
	feed   *Feed
	sub    *nats.Subscription
	live   chan *nats.Msg
	status chan nats.Status
	hints  chan hint // the newest one

	// Owned by the goroutine that calls Next:
	run       []message // the end of the chain, each following the one before
	stale     bool      // Next must ask the leader for the head
	confirmed bool      // the leader said that the last message of run is the head
	judge     link.Judge
}

type hint struct {
	version ident.Position
	seq     uint64
}

// Follow implements store.Chain; the store.Follower is a *Follower.
func (f *Feed) Follow(ctx context.Context) (store.Follower, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("follow the version chain: %w", err)
	}
	fo := &Follower{feed: f, live: make(chan *nats.Msg, liveBuffer), hints: make(chan hint, 1), stale: true}
	var err error
	if fo.sub, err = f.nc.ChanSubscribe(f.live, fo.live); err != nil {
		return nil, fmt.Errorf("follow the version chain: subscribe to %s: %w", f.live, err)
	}
	fo.status = f.nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.followers[fo] = struct{}{}
	return fo, nil
}

// Close implements store.Follower.
func (fo *Follower) Close() error {
	fo.feed.mu.Lock()
	_, open := fo.feed.followers[fo]
	delete(fo.feed.followers, fo)
	fo.feed.mu.Unlock()
	if !open {
		return nil
	}
	if fo.status != nil {
		fo.feed.nc.RemoveStatusListener(fo.status)
	}
	if err := fo.sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		return fmt.Errorf("follow the version chain: unsubscribe: %w", err)
	}
	return nil
}

// Hint reports the head. If the follower has another head, Next reads the head from
// the server. Hint never blocks.
func (fo *Follower) Hint(v ident.Position, seq uint64) {
	select {
	case <-fo.hints:
	default:
	}
	select {
	case fo.hints <- hint{v, seq}:
	default: // another hint came just now
	}
}

// Next implements store.Follower. While the connection is down it waits. It
// returns the error of a request, and the next call continues. An update that
// does not lead from have may lack its delta.
func (fo *Follower) Next(ctx context.Context, have ident.Position, root ident.Hash) ([]store.Update, error) {
	for {
		links, err := fo.step(ctx, have, root)
		if err != nil || links != nil {
			return links, err
		}
		if err := fo.wait(ctx); err != nil {
			return nil, fmt.Errorf("follow the version chain: %w", err)
		}
	}
}

// step returns the result of Next, nil if there is nothing new.
func (fo *Follower) step(ctx context.Context, have ident.Position, root ident.Hash) ([]store.Update, error) {
	fo.drain()
	if fo.stale && fo.feed.nc.IsConnected() {
		if err := fo.askHead(ctx); err != nil {
			return nil, fmt.Errorf("follow the version chain: %w", err)
		}
	}
	head := fo.head()
	if link.Mismatch(head, have, root) != nil && !fo.confirmed {
		// Republished messages may be old; only the leader knows the head.
		if fo.stale {
			return nil, nil // until the connection is back
		}
		fo.stale = true
		return fo.step(ctx, have, root)
	}
	ahead, err := fo.judge.Ahead(head, have, root)
	if err != nil || !ahead {
		return nil, err
	}
	links, err := fo.links(ctx, have, root)
	if err != nil {
		return nil, fmt.Errorf("follow the version chain: %w", err)
	}
	fo.run = slices.Clone(fo.run[len(fo.run)-1:]) // have will be its end
	return links, nil
}

func (fo *Follower) head() store.Head {
	if len(fo.run) == 0 {
		return store.Head{}
	}
	last := fo.run[len(fo.run)-1]
	return store.Head{Manifest: last.update.Manifest, Seq: last.seq}
}

// askHead asks the leader for the head.
func (fo *Follower) askHead(ctx context.Context) error {
	m, _, err := fo.feed.newest(ctx)
	if err != nil {
		return err
	}
	fo.stale, fo.confirmed = false, true
	if m.seq == 0 {
		fo.run = nil
		return nil
	}
	fo.add(m)
	fo.confirmed = true
	return nil
}

// add makes m the head.
func (fo *Follower) add(m message) {
	if len(fo.run) > 0 {
		last := fo.run[len(fo.run)-1]
		if last.seq == m.seq && same(last, m) {
			return
		}
		if last.seq >= m.seq || !link.Follows(last.update.Manifest, m.update.Manifest) {
			fo.run = nil
		}
	}
	fo.run = append(fo.run, m)
	if len(fo.run) > link.Max {
		fo.run = slices.Delete(fo.run, 0, len(fo.run)-link.Max)
	}
	fo.confirmed = false
}

func same(a, b message) bool {
	return store.VersionOf(a.update.Manifest.GetVersion()) == store.VersionOf(b.update.Manifest.GetVersion()) &&
		store.RootOf(a.update.Manifest) == store.RootOf(b.update.Manifest)
}

// receive takes a republished message.
func (fo *Follower) receive(live *nats.Msg) {
	read, err := jsapi.ParseRepeated(live)
	if err != nil {
		fo.stale = true
		return
	}
	m, head := decode(read), fo.head()
	switch {
	case m.err != nil:
		fo.stale = true // Next asks the leader, and finds out what the head is
	case m.seq <= head.Seq:
		// The follower has it already, or the chain was rewound.
		fo.stale = fo.stale || m.seq < head.Seq || !same(fo.run[len(fo.run)-1], m)
	case head.Manifest == nil || !link.Follows(head.Manifest, m.update.Manifest):
		fo.stale = true // messages are missing, or it is no version
	default:
		fo.add(m)
	}
}

// drain takes all that has arrived.
func (fo *Follower) drain() {
	for {
		select {
		case m := <-fo.live:
			fo.receive(m)
		case h := <-fo.hints:
			fo.takeHint(h)
		case _, open := <-fo.status:
			fo.renewed(open)
		default:
			return
		}
	}
}

// wait waits until something arrives.
func (fo *Follower) wait(ctx context.Context) error {
	if fo.feed.nc.IsClosed() {
		return nats.ErrConnectionClosed
	}
	select {
	case m := <-fo.live:
		fo.receive(m)
	case h := <-fo.hints:
		fo.takeHint(h)
	case _, open := <-fo.status:
		fo.renewed(open)
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// renewed notes that the connection was renewed, or closed for good if its
// status channel is closed.
func (fo *Follower) renewed(open bool) {
	fo.stale, fo.confirmed = true, false
	if !open {
		fo.status = nil
	}
}

// takeHint compares a hint with the head. The hint's sequence is that of the
// stream: a message of another domain makes it greater, only a rewind makes it
// smaller.
func (fo *Follower) takeHint(h hint) {
	head := fo.head()
	fo.stale = fo.stale || h.version != head.Version() || h.seq < head.Seq
}

// links returns the updates that lead from have to the head, with whole deltas;
// or only the update of the head.
func (fo *Follower) links(ctx context.Context, have ident.Position, root ident.Hash) ([]store.Update, error) {
	i, err := fo.reach(ctx, have, root)
	if err != nil {
		return nil, err
	}
	if i < 0 {
		return []store.Update{fo.run[len(fo.run)-1].update}, nil
	}
	var links []store.Update
	for _, m := range fo.run[i:] {
		u := m.update
		if u.Delta, err = fo.feed.delta(ctx, m); errors.Is(err, store.ErrNotFound) {
			return []store.Update{fo.run[len(fo.run)-1].update}, nil // fetching may do better
		} else if err != nil {
			return nil, err
		}
		links = append(links, u)
	}
	return links, nil
}

// reach reads the chain back to the message that leads on from have, and returns
// its index in run; -1 if there is none, or it is too far back.
func (fo *Follower) reach(ctx context.Context, have ident.Position, root ident.Hash) (int, error) {
	for n := 8; ; n *= 4 {
		if i := link.From(manifests(fo.run), have, root); i >= 0 || have.IsZero() {
			return i, nil
		}
		oldest := fo.run[0]
		room := link.Max - len(fo.run)
		prev, _ := store.PreviousOf(oldest.update.Manifest)
		if room <= 0 || prev.Compare(have) <= 0 || oldest.seq <= 1 {
			return -1, nil
		}
		back := uint64(min(n, room))
		older, err := fo.feed.between(ctx, oldest.seq-min(back, oldest.seq-1), oldest.seq-1)
		if err != nil {
			return -1, err
		}
		if older = link.Back(older, oldest.update.Manifest); len(older) == 0 {
			return -1, nil
		}
		fo.run = append(older, fo.run...)
	}
}

func manifests(run []message) []*store.Manifest {
	all := make([]*store.Manifest, len(run))
	for i, m := range run {
		all[i] = m.update.Manifest
	}
	return all
}
