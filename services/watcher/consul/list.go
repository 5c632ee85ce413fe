package consul

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"meshlog.dev/services/watcher"
)

// list reads everything and reports it as the listing of the run.
func (r *run) list(ctx context.Context) error {
	names, err := r.first(ctx)
	if err != nil {
		return err
	}
	for name, tags := range names {
		if r.settings.wanted(name, tags) {
			s := &service{name: name, tags: tags}
			r.services[name] = s
			r.look(s, nil)
			s.seen = time.Time{} // nothing is known to have changed
		}
	}
	for i := range r.agents {
		r.workers.Go(func() { r.probe(ctx, i) })
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for !r.read() {
		r.dispatch(ctx)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case task := <-r.tasks:
			if err := task(); err != nil {
				return err
			}
		case now := <-tick.C:
			if err := r.alive(now); err != nil {
				return err
			}
			r.retry(now)
		}
	}
	return r.listed(ctx)
}

// first makes the first reads, at the first agent that answers: the names of all services,
// and their protocols.
func (r *run) first(ctx context.Context) (map[string][]string, error) {
	var errs []error
	for _, a := range r.agents {
		names, is, err := r.readNames(ctx, a.client, false)
		if errors.Is(err, errRefused) {
			return nil, r.refused(err)
		}
		if err != nil {
			a.err = err
			errs = append(errs, err)
			continue
		}
		// Without the protocols, ports would change their names.
		protocols, _, unknown, err := r.readDefaults(ctx, a.client)
		if err != nil {
			a.err = err
			errs = append(errs, err)
			continue
		}
		a.good, r.index, r.filtered, r.defaults, r.unknown = time.Now(), is.index, is.filtered, protocols, unknown
		return names, nil
	}
	return nil, errors.Join(errs...)
}

// refused says what to do about a token that Consul does not take.
func (r *run) refused(err error) error {
	if file := r.settings.TokenFile; file != "" {
		return fmt.Errorf("%w: put a valid ACL token into %s; it is read again", err, file)
	}
	return fmt.Errorf("%w: give the file of an ACL token with --consul-token-file", err)
}

// read reports whether each service was read, or cannot be.
func (r *run) read() bool {
	for _, s := range r.services {
		if s.at.IsZero() && s.unread == nil {
			return false
		}
	}
	return true
}

// retry queues the reads of services that failed.
func (r *run) retry(now time.Time) {
	for _, s := range r.failing {
		if !s.due.After(now) {
			delete(r.failing, s.name)
			s.queued = true
			r.queue = append(r.queue, s)
		}
	}
}

// listed reports the listing.
func (r *run) listed(ctx context.Context) error {
	now := time.Now()
	unread := len(r.unread()) > 0
	l := watcher.Listing{Partial: r.filtered || unread}
	if c := r.counts(); !l.Partial || r.doubt.Lacks(c) {
		whole, again := r.doubt.Judge(c, now)
		if r.suspected = (time.Time{}); !whole {
			r.doubted, r.recheck, l.Partial = true, again, true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.services)) {
		s := r.services[name]
		if r.doubted && s.n < r.had[name] { // what it lacks may come back
			r.catalog.Remove(r.settings.Namespace, name)
			s.sum = [16]byte{}
		} else {
			l.Objects = append(l.Objects, s.listed...)
		}
		s.listed = nil
	}
	slices.SortFunc(l.Objects, watcher.Object.Compare)
	r.partial, r.following = l.Partial, true
	if !l.Partial {
		clear(r.had)
	}
	for name, s := range r.services {
		if s.n >= r.had[name] && s.n > 0 && s.unread == nil {
			r.had[name] = s.n
		}
		if len(s.ids) == 0 && s.unread == nil && !s.hidden {
			r.forget(s)
		}
	}
	r.move = true
	r.report(now)
	return r.sink.List(ctx, l)
}
