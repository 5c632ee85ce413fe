package watcher

import (
	"context"
	"fmt"
	"slices"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/failpoint"
	"meshlog.dev/services/mesh/problem"
)

// runSession runs a session, fenced on head, the last control record seen of the
// shard, until the session is over. The error is ErrConflict if another holder
// published for the shard.
func (p *Publisher) runSession(ctx context.Context, head uint64) error {
	if err := p.begin(ctx, head); err != nil {
		return err
	}
	l, err := p.awaitListing(ctx)
	if err != nil {
		return err
	}
	if err := p.list(ctx, l); err != nil {
		return err
	}
	if err := p.follow(ctx); err != nil {
		return err
	}
	p.log.Info("session ends", "session", p.session.name, "reason", p.session.over)
	return nil
}

// begin opens a session. The source is read after every earlier record of the
// shard: from now on or, by a warm twin, since the other holder fell silent.
func (p *Publisher) begin(ctx context.Context, head uint64) error {
	p.sessions++
	if p.warm.since == 0 {
		p.in.Rest() // its inputs would be older than the listing
	}
	p.session = session{
		name: fmt.Sprintf("%s-%d", p.id, p.sessions), ctl: head,
		sent: newShadow(nil), refused: map[ident.Key]string{}, denied: map[ident.Key]struct{}{},
	}
	err := p.control(ctx, p.session.name+"/begin", "", &events.Begin{
		Shard: p.cfg.Shard, Session: p.session.name, Holder: p.cfg.Holder, Identity: p.cfg.Identity,
	})
	if err != nil {
		return err
	}
	failpoint.At(failpoint.WatcherBegun)
	p.learn(ctx)
	p.cfg.Metrics.sessions.Inc()
	p.lost = false
	if p.warm.since == 0 {
		p.watch(ctx)
	} else {
		p.source.started, p.warm.since = p.in.Now(), 0
	}
	p.reportState(PhaseListing)
	return nil
}

// watch runs the watcher from the start.
func (p *Publisher) watch(ctx context.Context) {
	p.source.started, p.source.restart, p.source.problems = p.in.Now(), time.Time{}, nil
	p.warm.inputs = nil
	p.in.Watch(ctx)
}

// awaitListing waits for the listing, however long the source is down. A twin
// that can read it may take over meanwhile.
func (p *Publisher) awaitListing(ctx context.Context) (Listing, error) {
	for {
		until := p.in.Now().Add(idle)
		if r := p.source.restart; !r.IsZero() {
			until = r
		}
		in, err := p.next(ctx, until)
		if err != nil {
			return Listing{}, err
		}
		if l, ok := in.(Listed); ok {
			p.source.err = nil
			return l.Listing, nil
		}
		p.handle(in)
		if r := p.source.restart; !r.IsZero() && !p.in.Now().Before(r) {
			p.watch(ctx)
		}
		if p.source.err != nil {
			p.reportState(PhaseDown)
		}
	}
}

// list sends the objects that the leader lacks, and closes the listing.
func (p *Publisher) list(ctx context.Context, l Listing) (err error) {
	p.reportState(PhaseListing)
	p.session.partial, p.session.sent = l.Partial, newShadow(events.KindsOf(l.Kinds...))
	changes := make(map[ident.Key]change, len(l.Objects))
	for _, o := range l.Objects {
		if c, ok := p.change(o); ok {
			changes[c.key] = c
			p.session.sent.set(c.key, c.bucket, c.hash)
		}
	}
	listed := events.AllBuckets()
	if !l.Partial {
		listed = p.differing(ctx)
	}
	var send []change
	for k, c := range changes {
		// The digests do not cover other kinds: the leader may lack any of them.
		if listed.Has(c.bucket) || !p.session.sent.kinds.Cover(k.Kind) {
			if !p.permitted(k) {
				p.session.sent.set(k, c.bucket, ident.Hash{})
				p.refuse(c)
				continue
			}
			send = append(send, c)
		}
	}
	if len(p.session.denied) > 0 { // the log may have other values of them, which the listing must not remove
		p.session.partial, p.session.withheld = true, true
	}
	slices.SortFunc(send, func(a, b change) int { return compareKeys(a.key, b.key) })
	trace, ended := p.trace(send)
	defer func() { ended(err) }()
	if err := p.send(ctx, send, false, failpoint.WatcherListing); err != nil {
		return err
	}
	failpoint.At(failpoint.WatcherListed)
	if p.session.over != "" {
		return nil
	}
	p.log.Info("listed", "session", p.session.name, "keys", len(changes), "sent", len(send), "partial", p.session.partial, "kinds", len(p.session.sent.kinds))
	if err := p.alive(ctx, listed, trace); err != nil {
		return err
	}
	p.listed = p.in.Now()
	p.cfg.Metrics.unsent.Add(float64(len(changes) - len(send)))
	p.cfg.Metrics.listing.Observe(p.in.Now().Sub(p.source.started).Seconds())
	return nil
}

// differing returns the buckets in which the leader has other objects; all if it
// does not answer.
func (p *Publisher) differing(ctx context.Context) events.BucketSet {
	held, err := p.cfg.Leader.Digests(ctx, p.cfg.Shard, p.session.name, p.session.sent.kinds)
	if err != nil {
		p.log.Info("sending all objects: no digests from the leader", "error", err)
		return events.AllBuckets()
	}
	var differ events.BucketSet
	for b := range held {
		if held[b] != p.session.sent.digests[b] {
			differ.Add(b)
		}
	}
	return differ
}

// follow publishes what changes until the session is to end.
func (p *Publisher) follow(ctx context.Context) error {
	for {
		p.reportState(p.phase())
		if err := p.gather(ctx); err != nil {
			return err
		}
		now := p.in.Now()
		restart := p.source.restart
		due := !restart.IsZero() && !now.Before(restart)
		switch {
		case due && p.source.err == nil && (p.session.partial || len(p.session.sent.kinds) > 0):
			// The source may be readable for other kinds by now, which needs a
			// session of their own.
			p.session.over = "the source may be readable for other kinds"
			return nil
		case due:
			p.watch(ctx)
		case p.session.over != "":
			return nil
		case p.session.waiting.len() > 0:
			if err := p.flush(ctx); err != nil {
				return err
			}
		case !now.Before(p.session.beat):
			if err := p.alive(ctx, events.BucketSet{}, ""); err != nil {
				return err
			}
			p.askAgain(ctx)
		}
	}
}

func (p *Publisher) phase() Phase {
	if p.source.err != nil {
		return PhaseDown
	}
	return PhaseFollowing
}

// gathered is how many inputs are taken before their changes are sent.
const gathered = 256

// gather waits until there is something to do, and takes the waiting inputs.
func (p *Publisher) gather(ctx context.Context) error {
	until := p.session.beat
	if r := p.source.restart; !r.IsZero() && r.Before(until) {
		until = r
	}
	if p.session.waiting.len() > 0 || p.session.over != "" {
		until = p.in.Now()
	}
	for range gathered {
		in, err := p.next(ctx, until)
		if in == nil || err != nil {
			return err
		}
		p.handle(in)
		until = p.in.Now()
	}
	return nil
}

// handle handles an input; without a session it drops it.
func (p *Publisher) handle(in Input) {
	if p.session.name == "" {
		return
	}
	switch in := in.(type) {
	case Listed:
		p.source.err = nil
		p.relisted(in.Listing)
	case Changed:
		p.changed(in.Set)
	case Reported:
		if p.source.problems == nil {
			p.source.problems = map[string][]problem.Diagnostic{}
		}
		p.source.problems[in.Origin] = in.Diagnostics
	case Ended:
		p.ended(in.Err)
	case Requested:
		if !p.session.beat.IsZero() { // else it is listing
			p.session.over = "asked to list again: " + in.Reason
		}
	}
}

// ended sets when the watcher runs again: at once if Run returned nil; after a
// growing pause if its source is down, or if it keeps returning.
func (p *Publisher) ended(err error) {
	s := &p.source
	now := p.in.Now()
	lived := now.Sub(s.started)
	if err == nil && lived >= minSourcePause {
		s.err, s.restart, s.pause = nil, now, 0
		return
	}
	if s.pause == 0 || lived >= maxSourcePause {
		s.pause = minSourcePause
	} else {
		s.pause = min(2*s.pause, maxSourcePause)
	}
	if err != nil && s.err == nil {
		s.down = now
	}
	s.err, s.restart = err, now.Add(s.pause)
	if err != nil {
		p.log.Error("source is down", "error", err, "again_in", s.pause)
	}
}

// changed queues the objects of a change set that are not on the log.
func (p *Publisher) changed(set []Object) {
	n := 0
	for _, o := range set {
		if c, ok := p.change(o); ok && p.queue(c) {
			n++
		}
	}
	p.session.waiting.atomic = p.session.waiting.atomic || n > 1
}

// queue puts c into the backlog, or removes its key there if the log already has
// c. It reports whether c is in the backlog.
func (p *Publisher) queue(c change) bool {
	s := &p.session
	sent, known := s.sent.hashes[c.key]
	known = known || !s.partial && s.sent.kinds.Cover(c.key.Kind) // else the log may have a key that was not listed
	if sent == c.hash && known {
		s.waiting.drop(c.key)
		p.release(c.key)
		return false
	}
	if !p.permitted(c.key) {
		p.refuse(c)
		return false
	}
	if w, ok := s.waiting.changes[c.key]; !ok || w.hash != c.hash {
		s.waiting.put(c)
	}
	return true
}

// relisted makes a change set of a listing within the session: its objects, and
// deletes of the others.
func (p *Publisher) relisted(l Listing) {
	s := &p.session
	switch {
	case s.partial && !s.withheld && !l.Partial:
		s.over = "what was unreadable can be read"
		return
	case !s.sent.kinds.Equal(events.KindsOf(l.Kinds...)):
		s.over = "the source can be read for other kinds"
		return
	}
	s.partial = s.partial || l.Partial
	set := slices.Clone(l.Objects)
	if !l.Partial {
		listed := make(map[ident.Key]bool, len(l.Objects))
		for _, o := range l.Objects {
			listed[p.key(o)] = true
		}
		for _, k := range absent(&s.sent, &s.waiting, listed) {
			set = append(set, Object{Kind: k.Kind, Namespace: k.Namespace, Name: k.Name, Delete: true, Observed: p.in.Now()})
		}
		for k := range s.denied {
			if !listed[k] {
				p.release(k)
			}
		}
	}
	p.changed(set)
}

func (p *Publisher) key(o Object) ident.Key {
	return ident.Key{Source: p.cfg.Shard.Source, Instance: p.cfg.Shard.Instance, Kind: o.Kind, Namespace: o.Namespace, Name: o.Name}
}
