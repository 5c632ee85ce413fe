package nacos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/registry"
)

const (
	// requests is how many requests about services run at a time (NAC-7).
	requests = 16
	// pageSize is of lists: all services, because a server pages an unordered set (NAC-6).
	pageSize = 100000
	// together bounds how long a change waits for the answers to requests that run (REG-11).
	together = 50 * time.Millisecond
	// waiting is how many answers and pushes wait while the log takes no changes. Then the
	// server's probes are not answered any more, and it ends the link.
	waiting = 256
	// tries is how often a service is read before a listing does without it (REG-11).
	tries = 3
	// consumers are Dubbo's services of clients, which are not read.
	consumers = "consumers:"
)

// run is one run of the watcher. Its fields are owned by the goroutine of Run.
type run struct {
	*Watcher
	sink watcher.Sink

	services map[serviceID]*service
	catalog  *registry.Catalog
	doubt    *registry.Doubt
	known    bool // the log has what services says: this run or the one before has listed
	listed   bool // this run has called sink.List
	partial  bool // that listing was
	set      []watcher.Object
	since    time.Time // when the first change of the set came

	// holding: what is missing stays, at least until review (NAC-16, NAC-17).
	holding bool
	why     string
	review  time.Time
	emptied []time.Time // when services became empty

	attached
}

// attached is the state of a run on one link.
type attached struct {
	link    *link
	in      chan func() error // what requests and pushes have to tell the run
	running sync.WaitGroup
	busy    int // requests about services that run
	swept   int // those of the sweep, running or in the queue
	queue   []*service
	later   map[*service]time.Time // when to ask about a service again
	forget  []serviceID            // subscriptions to end
	order   []*service             // those that this turn of the sweep has yet to ask about
	owed    float64                // how many of them are due

	full      bool              // a full read is under way
	reviewing bool              // it is that of a review
	unlisted  bool              // its list has not come yet
	reading   map[*service]bool // services that it has to read yet
	whole     bool              // the last list was

	listing  bool // a list is under way
	listAt   time.Time
	failures int // of lists, in a row
	probing  bool
	good     time.Time // when the server was last known to do its work
}

func (w *Watcher) newRun(sink watcher.Sink) *run {
	r := &run{Watcher: w, sink: sink, services: map[serviceID]*service{}, catalog: &registry.Catalog{}, doubt: &registry.Doubt{Wait: w.limits.hold}}
	if m := w.kept; m != nil && time.Now().Before(m.until) {
		r.services, r.catalog, r.doubt, r.known = m.services, m.catalog, m.doubt, true
	}
	w.kept = nil
	return r
}

// follow connects to a server and follows it. until is when the source is down. It returns
// when the server last did its work, zero if it did not, and why it ended: a linkError if
// another server may do.
func (r *run) follow(ctx context.Context, s server, until time.Time) (good time.Time, err error) {
	r.attached = attached{in: make(chan func() error, waiting), later: map[*service]time.Time{}, reading: map[*service]bool{}}
	defer r.running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.link, err = dial(ctx, s, r.cfg.Namespace, &r.cfg.Credentials, max(time.Second, min(r.limits.deadline, time.Until(until))))
	switch {
	case errors.Is(err, errRefused):
		return good, err
	case err != nil:
		return good, linkError{err}
	}
	defer r.link.close()
	defer cancel() // before the close, so that nothing reports it
	r.link.deadline = r.limits.deadline
	r.cfg.Logger.Info("connected to Nacos", "server", s.grpc)
	r.running.Go(func() { r.receive(ctx, r.link, r.in) })
	r.begin()
	tick := time.NewTicker(r.limits.tick)
	defer tick.Stop()
	for {
		var err error
		r.start(ctx)
		var due <-chan time.Time
		if len(r.set) > 0 && r.listed {
			due = time.After(time.Until(r.since.Add(together)))
		}
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-due:
		case f := <-r.in:
			for _, f := range registry.Gather(ctx, r.in, f) {
				err = errors.Join(err, f())
			}
		case <-tick.C:
			err = r.tick(ctx)
		}
		if err == nil {
			err = r.settle(ctx)
		}
		if err != nil {
			return r.good, err
		}
	}
}

// begin starts to read everything on a new link. A server that has just started lacks what
// its clients have yet to register again, so whatever was there stays for a while (NAC-17).
func (r *run) begin() {
	for _, s := range r.services {
		s.reset()
	}
	if r.known {
		for _, s := range r.services {
			s.held = union(s.instances(), s.held)
		}
		r.hold("a new connection")
	}
	r.readAll(false)
}

// hold makes what is missing stay, and lists doubtful.
func (r *run) hold(why string) {
	r.doubt.Suspect(why)
	r.holding, r.why, r.review = true, why, time.Now().Add(r.limits.hold)
	r.cfg.Logger.Warn("what Nacos lacks stays in service", "reason", why, "for", r.limits.hold)
}

// readAll starts a full read: a list, then each service on it.
func (r *run) readAll(review bool) {
	r.full, r.reviewing, r.unlisted, r.listAt = true, review, true, time.Time{}
	clear(r.reading)
}

// receive passes the pushes of a link to the run.
func (r *run) receive(ctx context.Context, l *link, in chan<- func() error) {
	err := l.receive(func(i *serviceInfo) {
		at := time.Now()
		tell(ctx, in, func() error { r.pushed(i, at); return nil })
	})
	tell(ctx, in, func() error { return linkError{fmt.Errorf("%s: %w", l.server.grpc, err)} })
}

// tell has the goroutine of the run call f, unless the link is over.
func tell(ctx context.Context, in chan<- func() error, f func() error) {
	select {
	case in <- f:
	case <-ctx.Done():
	}
}

func (r *run) pushed(i *serviceInfo, at time.Time) {
	if s := r.services[serviceID{i.Group, strings.TrimPrefix(i.Name, i.Group+"@@")}]; s != nil {
		s.pushes++
		r.learn(s, i, false, at)
	}
}

// start starts requests about services while there are slots, and the list when it is due.
func (r *run) start(ctx context.Context) {
	if !r.listing && !time.Now().Before(r.listAt) {
		r.listing = true
		r.listAt = time.Now().Add(r.cfg.List)
		l, in := r.link, r.in
		r.running.Go(func() {
			services, whole, err := l.list(ctx, r.cfg.Namespace, r.cfg.Groups)
			tell(ctx, in, func() error { return r.tookList(services, whole, err) })
		})
	}
	for r.busy < requests && len(r.forget) > 0 {
		id := r.forget[0]
		r.forget = r.forget[1:]
		if r.services[id] != nil {
			continue // it is back
		}
		r.busy++
		l, in := r.link, r.in
		r.running.Go(func() {
			err := l.unsubscribe(ctx, r.cfg.Namespace, id)
			tell(ctx, in, func() error { r.busy--; r.cfg.Status.Count(err); return nil })
		})
	}
	for r.busy < requests && len(r.queue) > 0 {
		s := r.queue[0]
		r.queue = r.queue[1:]
		s.queued, s.asking = false, true
		r.busy++
		l, in, subscribe, pushes := r.link, r.in, !s.subscribed, s.pushes
		r.running.Go(func() {
			info, err := l.ask(ctx, r.cfg.Namespace, s.id, subscribe)
			at := time.Now()
			tell(ctx, in, func() error { r.answered(s, info, pushes, at, err); return nil })
		})
	}
}

// ask puts a service into the queue.
func (r *run) ask(s *service) {
	delete(r.later, s)
	if s.asking {
		s.again = true
	} else if !s.queued {
		s.queued = true
		r.queue = append(r.queue, s)
	}
}

// answered takes the answer to a request that began after a number of pushes.
func (r *run) answered(s *service, info *serviceInfo, pushes int, at time.Time, err error) {
	r.busy--
	s.asking = false
	if s.swept {
		s.swept = false
		r.swept--
	}
	if err != nil {
		r.cfg.Status.Count(fmt.Errorf("%s: %w", s.id.object(), err))
	} else {
		r.cfg.Status.Count(nil)
	}
	switch {
	case r.services[s.id] != s:
		return // removed meanwhile
	case err != nil:
		r.failed(s, err)
	case s.pushes != pushes: // which of the two is newer cannot be told (NAC-8)
		s.subscribed = true
		r.ask(s)
	default:
		s.subscribed = true
		r.learn(s, info, true, at)
	}
	if s.again {
		s.again = false
		r.ask(s)
	}
}

// failed notes that a service could not be read. It is tried again, less and less often.
func (r *run) failed(s *service, err error) {
	s.failures++
	r.later[s] = time.Now().Add(time.Duration(min(s.failures, 30)) * r.limits.tick)
	if s.failures >= tries {
		delete(r.reading, s)
		s.err = err
		r.reportUnread(s)
	}
}

// tookList takes the list of all services.
func (r *run) tookList(listed []serviceID, whole bool, err error) error {
	r.listing = false
	r.cfg.Status.Count(err)
	switch {
	case errors.Is(err, errRefused):
		return err
	case err != nil:
		r.failures++
		if r.failures >= tries {
			return linkError{fmt.Errorf("the services cannot be listed: %w", err)}
		}
		r.listAt = time.Now().Add(r.limits.tick)
		return nil
	}
	now := time.Now()
	r.failures, r.whole, r.good = 0, whole, now
	there := make(map[serviceID]bool, len(listed))
	for _, id := range listed {
		if strings.HasPrefix(id.name, consumers) {
			continue
		}
		there[id] = true
		s := r.services[id]
		if s == nil {
			s = &service{id: id}
			r.services[id] = s
		}
		s.listed = true
		if r.full && r.unlisted {
			r.reading[s] = true
			r.ask(s)
		} else if !s.subscribed && !s.asking && s.failures == 0 {
			r.ask(s)
		}
	}
	r.unlisted = false
	if !whole {
		return nil // what it lacks may be there
	}
	for id, s := range r.services {
		if there[id] {
			continue
		}
		s.listed = false
		switch {
		case s.size > 0:
			r.empty(s, false, now)
		case !r.holding && r.listed:
			r.remove(s, now)
		}
	}
	return nil
}

// tick does what is due.
func (r *run) tick(ctx context.Context) error {
	now := time.Now()
	for s, at := range r.later {
		if !now.Before(at) {
			r.ask(s)
		}
	}
	r.sweep()
	if r.holding && !r.full && !now.Before(r.review) {
		r.readAll(true)
	}
	if now.Sub(time.Unix(0, r.link.answered.Load())) >= r.limits.quiet && !r.probing {
		r.probing = true
		l, in := r.link, r.in
		r.running.Go(func() {
			err := l.call(ctx, healthCheck, struct{}{}, &answer{})
			tell(ctx, in, func() error { return r.probed(err) })
		})
	}
	r.status(now)
	return nil
}

func (r *run) probed(err error) error {
	r.probing = false
	if err != nil {
		return linkError{fmt.Errorf("%s does not answer: %w", r.link.server.grpc, err)}
	}
	if r.failures == 0 {
		r.good = time.Now()
	}
	return nil
}

// sweep asks about the next services in turn, so that each is read once in a while: that
// heals a lost push (NAC-9).
func (r *run) sweep() {
	if !r.listed || r.full {
		return
	}
	if len(r.order) == 0 {
		for _, s := range r.services {
			r.order = append(r.order, s)
		}
	}
	r.owed += float64(len(r.services)) * r.limits.tick.Seconds() / r.limits.sweep.Seconds()
	n := min(len(r.order), int(r.owed))
	r.owed -= float64(n)
	for _, s := range r.order[:n] {
		if r.services[s.id] != s || s.failures > 0 {
			continue
		}
		if !s.queued && !s.asking {
			s.swept = true
			r.swept++
		}
		r.ask(s)
	}
	r.order = slices.Clone(r.order[n:])
}

// settle reports what has changed, and ends a full read that has everything.
func (r *run) settle(ctx context.Context) error {
	if r.full && !r.unlisted && len(r.reading) == 0 {
		if err := r.read(ctx); err != nil {
			return err
		}
	}
	if len(r.set) == 0 {
		r.since = time.Time{}
	} else if r.since.IsZero() {
		r.since = time.Now()
	}
	// What a list has found becomes one set, if the answers come soon. Changes do not wait
	// for the sweep: with thousands of services it always has requests under way.
	if r.listed && len(r.set) > 0 && (r.busy+len(r.queue) == r.swept || time.Since(r.since) >= together) {
		set := r.set
		r.set, r.since = nil, time.Time{}
		if err := r.sink.Change(ctx, set); err != nil {
			return err
		}
		r.doubt.Published(r.catalog.Counts())
	}
	if r.partial && !r.full && r.complete() {
		return errAgain
	}
	return nil
}

// complete reports whether a listing would be whole.
func (r *run) complete() bool {
	for _, s := range r.services {
		if s.listed && !s.read && len(s.hosts)+len(s.held) == 0 {
			return false
		}
	}
	return r.whole
}

// read ends a full read: it lists, if the run has not yet, and decides about what is held.
func (r *run) read(ctx context.Context) error {
	r.full = false
	now := time.Now()
	agreed, again := r.doubt.Judge(r.counts(), now)
	if !r.listed {
		if err := r.list(ctx, now); err != nil {
			return err
		}
	}
	switch {
	case !r.holding || !r.reviewing && agreed:
	case agreed && r.whole:
		r.release(now)
	case agreed:
		r.review = now.Add(r.limits.hold)
	default:
		r.review = again
	}
	return nil
}

// list reports everything.
func (r *run) list(ctx context.Context, now time.Time) error {
	l := watcher.Listing{Partial: !r.complete()}
	r.listed, r.known, r.partial = true, true, l.Partial
	for _, s := range r.services {
		clear(s.hashes)
		r.publish(s, now)
	}
	for _, o := range r.set {
		if !o.Delete { // what is not listed is deleted
			l.Objects = append(l.Objects, o)
		}
	}
	r.set = nil
	if err := r.sink.List(ctx, l); err != nil {
		return err
	}
	r.doubt.Published(r.catalog.Counts())
	return nil
}

// counts returns the size of what the server last said, believed or not.
func (r *run) counts() registry.Counts {
	var c registry.Counts
	for _, s := range r.services {
		if s.listed {
			c.Services++
			c.Instances += s.seen
		}
	}
	return c
}

// release ends a hold: what is missing is gone.
func (r *run) release(now time.Time) {
	r.holding = false
	for _, s := range r.services {
		if len(s.held) == 0 || !s.emptyAt.IsZero() || r.cfg.KeepEmpty && s.seen == 0 {
			continue
		}
		s.held = nil
		if !s.listed && len(s.hosts) == 0 {
			continue // removed below
		}
		r.publish(s, now)
	}
	for _, s := range r.services {
		if !s.listed && len(s.hosts)+len(s.held) == 0 {
			r.remove(s, now)
		}
	}
	r.cfg.Logger.Info("Nacos agrees about what it lacks; nothing is held any more")
}
