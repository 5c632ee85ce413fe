package consul

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"meshlog.dev/services/watcher/registry"
)

const (
	// A probe comes every probeEvery, or probePause after a poll failed.
	probeEvery = 5 * time.Second
	probePause = time.Second
	// downAfter is how long no probe is good before the source is down (REG-10).
	downAfter = 15 * time.Second
	// calmAfter is how long after an error losses are not checked any more.
	calmAfter = time.Minute
	// A turn of services that are not polled takes turn, or idleTurn if all of them are
	// hidden; not more than one is read in readEvery.
	turn, idleTurn = 10 * time.Second, time.Minute
	readEvery      = 10 * time.Millisecond
	// steady is how often polls move to the services that changed last.
	steady = 10 * time.Second
	// limitedFor is how long a limit of connections counts.
	limitedFor = 10 * time.Minute
)

// follow reports changes until the run ends.
func (r *run) follow(ctx context.Context) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	sweep := time.NewTicker(readEvery)
	defer sweep.Stop()
	r.plan(ctx, time.Now())
	for {
		r.dispatch(ctx)
		if err := r.flush(ctx); err != nil {
			return err
		}
		var turns <-chan time.Time
		if len(r.ring) > 0 {
			turns = sweep.C
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case first := <-r.tasks:
			for _, task := range registry.Gather(ctx, r.tasks, first) {
				if err := task(); err != nil {
					return err
				}
			}
		case now := <-turns:
			r.sweep(now)
		case now := <-tick.C:
			if err := r.ticked(ctx, now); err != nil {
				return err
			}
		}
	}
}

// ticked does what is due.
func (r *run) ticked(ctx context.Context, now time.Time) error {
	if err := r.alive(now); err != nil {
		return err
	}
	r.retry(now)
	r.plan(ctx, now)
	if now.Sub(r.reported) >= time.Second {
		r.report(now)
	}
	if r.halved > 0 && now.Sub(r.limited) > limitedFor {
		r.halved, r.limited = r.halved-1, now
	}
	if r.doubted {
		return r.settle(ctx, now)
	}
	if r.partial && !r.filtered && len(r.unread()) == 0 {
		return errAgain // everything can be read
	}
	return nil
}

// settle makes the second listing of REG-9.
func (r *run) settle(ctx context.Context, now time.Time) error {
	if r.rechecking.IsZero() {
		if now.Before(r.recheck) {
			return nil
		}
		r.rechecking = now
		for _, s := range r.services {
			r.look(s, nil)
		}
		r.readAgain(ctx)
		return nil
	}
	if r.naming || !r.readSince(r.rechecking) {
		return nil
	}
	r.rechecking = time.Time{}
	whole, again := r.doubt.Judge(r.counts(), now)
	if whole {
		return errAgain // which removes what is gone
	}
	r.recheck = again
	return nil
}

// readAgain reads the names for the second listing.
func (r *run) readAgain(ctx context.Context) {
	r.naming = true
	a := r.pick("")
	r.workers.Go(func() {
		names, is, err := r.readNames(ctx, a.client, true)
		r.send(ctx, func() error {
			r.naming = false
			switch {
			case errors.Is(err, errRefused):
				return r.refused(err)
			case err != nil:
				r.suspect(err)
			default:
				r.filtered = is.filtered
				r.names(names, !is.filtered)
			}
			return nil
		})
	})
}

// readSince reports whether each service was read since then.
func (r *run) readSince(then time.Time) bool {
	for _, s := range r.services {
		if s.at.Before(then) && s.unread == nil || s.queued || s.reading {
			return false
		}
	}
	return true
}

// flush reports the changes, and those of batches that are read.
func (r *run) flush(ctx context.Context) error {
	now := time.Now()
	r.batches = slices.DeleteFunc(r.batches, func(b *batch) bool {
		if b.left > 0 && now.Before(b.overdue) {
			return false
		}
		for _, s := range b.members {
			if s.batch == b {
				s.batch = nil // it is reported by itself
			}
		}
		r.pending = append(r.pending, b.set...)
		return true
	})
	if len(r.pending) == 0 {
		return nil
	}
	set := r.pending
	r.pending = nil
	return r.sink.Change(ctx, set)
}

// names takes the names of all services. What is new or has other tags is read; so is what
// is gone: a service is removed when the leader has no instance of it (CON-19). all: the
// token may read all names.
func (r *run) names(names map[string][]string, all bool) {
	b := &batch{overdue: time.Now().Add(batchWithin)}
	for name, tags := range names {
		s := r.services[name]
		wanted := r.settings.wanted(name, tags)
		switch {
		case s == nil && wanted:
			s = &service{name: name, tags: tags}
			r.services[name] = s
			r.look(s, b)
		case s == nil:
		case !wanted:
			r.hide(s)
		case !sameTags(s.tags, tags):
			if s.tags = tags; s.poll == nil {
				r.look(s, b)
			}
		}
	}
	if all {
		for name, s := range r.services {
			if _, ok := names[name]; !ok {
				r.look(s, b)
			}
		}
	}
	if b.left > 0 {
		r.batches = append(r.batches, b)
	}
}

// hide removes a service that the settings hide now.
func (r *run) hide(s *service) {
	set := r.catalog.Remove(r.settings.Namespace, s.name)
	for i := range set {
		set[i].Observed = time.Now()
	}
	s.leave()
	r.forget(s)
	r.problems("service "+s.name, nil)
	r.put(s, set)
	r.published(s.name, 0)
}

func sameTags(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(a, b)
}

// probe reads the names from the leader every five seconds, and when a poll has failed, in
// a worker: it shows that
// there is a leader, that it has the data that it had, and what the token may read now.
func (r *run) probe(ctx context.Context, i int) {
	a := r.agents[i]
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(probeEvery):
		case <-a.ask:
			if !sleep(ctx, probePause) {
				return
			}
		}
		names, is, err := r.readNames(ctx, a.client, false)
		r.send(ctx, func() error { return r.probed(a, names, is, err) })
	}
}

// probed takes the answer of a probe.
func (r *run) probed(a *agent, names map[string][]string, is answer, err error) error {
	now, was := time.Now(), a.err
	a.err = err
	switch {
	case errors.Is(err, errRefused):
		return r.refused(err)
	case err != nil:
		if was == nil { // of several addresses one may be away for long
			r.suspect(err)
		}
		r.limit(err)
	case is.index < r.index:
		r.suspect(fmt.Errorf("the index of the catalog went back from %d to %d", r.index, is.index))
		return errAgain
	default:
		a.good, r.index = now, is.index
		if !r.suspected.IsZero() && now.Sub(r.suspected) > calmAfter && r.following && !r.partial {
			if whole, _ := r.doubt.Judge(r.catalog.Counts(), now); whole {
				r.suspected = time.Time{}
			}
		}
		if is.filtered && !r.filtered && r.following && !r.partial {
			return errAgain
		}
		if r.filtered = is.filtered; r.following {
			r.names(names, !is.filtered)
		}
	}
	if (was == nil) != (err == nil) {
		r.move = true // the agents share the services anew
	}
	return nil
}

// alive returns an error if no probe was good for too long (REG-10).
func (r *run) alive(now time.Time) error {
	last := r.began
	var why error
	for _, a := range r.agents {
		if a.good.After(last) {
			last = a.good
		}
		why = cmp.Or(why, a.err)
	}
	if now.Sub(last) < downAfter {
		return nil
	}
	if why == nil {
		why = errors.New("the agents do not answer")
	}
	return fmt.Errorf("no good answer of Consul's leader for %s: %w", downAfter, why)
}

// plan decides which services are polled: all, or those that changed last.
func (r *run) plan(ctx context.Context, now time.Time) {
	if !r.move && len(r.services) == r.planned && !(r.changed && now.Sub(r.plans) >= steady) {
		return
	}
	r.move, r.changed, r.planned, r.plans = false, false, len(r.services), now
	room := map[*agent]int{}
	for _, a := range r.agents {
		if most := r.settings.maxPolls(a.base); a.err == nil {
			room[a] = max(most>>r.halved, min(most, 8))
		}
	}
	all := slices.SortedFunc(maps.Values(r.services), func(a, b *service) int {
		return cmp.Or(cmp.Compare(b.index, a.index), strings.Compare(a.name, b.name))
	})
	r.ring, r.sweeping = r.ring[:0], false
	for _, s := range all {
		a := r.pick(s.name)
		polled := room[a] > 0 && !s.hidden && !s.at.IsZero()
		if polled {
			room[a]--
		}
		if s.poll != nil && (!polled || s.poll.agent != a) {
			s.poll.cancel()
			s.poll = nil
		}
		if polled && s.poll == nil {
			r.pollService(ctx, s)
		}
		if !polled {
			r.ring = append(r.ring, s)
			r.sweeping = r.sweeping || !s.hidden
		}
	}
	r.pollShared(ctx)
}

// pollShared polls what is about all services, at an agent that answers.
func (r *run) pollShared(ctx context.Context) {
	a := r.pick("")
	if r.shared.agent == a && (r.shared.states || !r.sweeping) {
		return
	}
	if r.shared.cancel != nil {
		r.shared.cancel()
	}
	ctx, r.shared.cancel = context.WithCancel(ctx)
	r.shared.agent, r.shared.states = a, r.sweeping
	r.pollNames(ctx, a)
	r.pollDefaults(ctx, a)
	if r.sweeping {
		r.pollStates(ctx, a)
	}
}

// sweep reads the next service that is not polled, if its time has come.
func (r *run) sweep(now time.Time) {
	period := idleTurn
	if r.sweeping {
		period = turn
	}
	if len(r.ring) == 0 || now.Sub(r.swept) < max(readEvery-time.Millisecond, period/time.Duration(len(r.ring))) || len(r.queue) > 0 {
		return
	}
	r.swept = now
	s := r.ring[r.next%len(r.ring)]
	r.next++
	if !s.queued && !s.reading && s.failures == 0 {
		s.queued = true
		r.queue = append(r.queue, s)
	}
}

// nodeOf returns the node of an identity.
func nodeOf(id string) string {
	node, _, _ := strings.Cut(id, "/")
	return node
}
