package consul

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/registry"
)

// attempts is how often a service is read before a listing goes on without it (REG-11).
const attempts = 3

// errFiltered says that an answer may lack instances.
var errFiltered = errors.New("the token may not read all of its instances")

// look queues a read of a service. A read under way may have begun before the change, so
// another one follows it.
func (r *run) look(s *service, b *batch) {
	if b != nil && s.batch == nil {
		s.batch, b.members = b, append(b.members, s)
		b.left++
	}
	if s.seen.IsZero() {
		s.seen = time.Now()
	}
	switch {
	case s.reading:
		s.again = true
	case !s.queued:
		s.queued = true
		delete(r.failing, s.name)
		r.queue = append(r.queue, s)
	}
}

// dispatch begins reads that are queued.
func (r *run) dispatch(ctx context.Context) {
	for len(r.queue) > 0 && r.reading < readsAtOnce {
		s := r.queue[0]
		r.queue[0] = nil
		if r.queue = r.queue[1:]; r.services[s.name] != s {
			continue // it is gone
		}
		r.reading++
		s.queued, s.reading, s.began = false, true, time.Now()
		stale := r.settings.Stale && s.seen.IsZero() && !s.at.IsZero() && r.rechecking.IsZero()
		q := query{path: "/v1/health/service/" + url.PathEscape(s.name), within: readWithin, params: url.Values{}}
		if !r.rechecking.IsZero() {
			q.params["consistent"] = []string{""} // CON-5
		} else if stale {
			q.params["stale"] = []string{""}
		}
		a := r.pick(s.name)
		r.workers.Go(func() {
			var entries []entry
			is, err := a.get(ctx, q, &entries)
			if err == nil && stale && (is.stale || len(entries) == 0) {
				r.send(ctx, func() error { return r.fresh(s) })
				return
			}
			if err == nil && is.stale {
				err = fmt.Errorf("%s%s: the answer is old, or there is no leader", a.base, q.path)
			}
			r.status.Count(err)
			r.send(ctx, func() error {
				if stale && err == nil && (is.index < s.index || s.lacks(entries)) {
					return r.fresh(s)
				}
				return r.took(s, is, entries, err)
			})
		})
	}
}

// fresh reads a service again from the leader: a follower does not decide what is gone.
func (r *run) fresh(s *service) error {
	r.reading--
	s.reading, s.again = false, false
	r.lookUnless(s)
	return nil
}

// lacks reports whether an instance that the service had is not there.
func (s *service) lacks(entries []entry) bool {
	has := make(map[string]bool, len(entries))
	for i := range entries {
		has[entries[i].id()] = true
	}
	return slices.ContainsFunc(s.ids, func(id string) bool { return !has[id] })
}

// took takes the answer of a read.
func (r *run) took(s *service, a answer, entries []entry, err error) error {
	r.reading--
	s.reading = false
	if r.services[s.name] != s {
		return nil
	}
	switch {
	case errors.Is(err, errRefused):
		return r.refused(err)
	case err != nil:
		r.suspect(err)
		r.limit(err)
		s.failures++
		if s.failures >= attempts {
			s.unread = err
			r.unreadable(s)
			s.leave()
		}
		s.due, s.again = time.Now().Add(pause(s.failures)), false
		r.failing[s.name] = s
		return nil
	}
	s.failures = 0
	if s.again {
		s.again = false
		r.look(s, nil)
	}
	if a.index < s.index {
		if !s.began.After(s.at) { // it began before the answer that is newer
			r.look(s, nil)
			return nil
		}
		r.suspect(fmt.Errorf("the index of service %s went back from %d to %d", s.name, s.index, a.index))
	}
	if a.filtered {
		s.unread, s.index, s.at = errFiltered, a.index, time.Now()
		s.due = s.at.Add(probeEvery)
		r.failing[s.name] = s
		r.unreadable(s)
		s.leave()
		if r.following && !r.partial {
			return errAgain // as a partial listing
		}
		return nil
	}
	return r.apply(s, a, entries)
}

// unreadable reports a service that keeps its objects because it cannot be read.
func (r *run) unreadable(s *service) {
	advice := "the watcher tries again by itself"
	if errors.Is(s.unread, errFiltered) {
		advice = `give the token the rights service_prefix "" { policy = "read" } node_prefix "" { policy = "read" }`
	}
	r.problems("service "+s.name, []problem.Diagnostic{{
		Severity: problem.Error, Code: "unread", Reason: fmt.Sprintf("service %s cannot be read: %v", s.name, s.unread), Advice: advice,
		Effect: "its last good objects stay in service",
	}})
}

// leave takes the service out of its batch.
func (s *service) leave() {
	if s.batch != nil {
		s.batch.left--
		s.batch = nil
	}
}

// apply takes what a service is now.
func (r *run) apply(s *service, a answer, entries []entry) error {
	now := time.Now()
	ids := make([]string, 0, len(entries))
	for i := range entries {
		if dc := entries[i].Node.Datacenter; dc != "" && dc != r.settings.Datacenter {
			return fmt.Errorf("the agents answer for datacenter %s, and not for %s: set --consul-datacenter", dc, r.settings.Datacenter)
		}
		if entries[i].Service.Kind == "" {
			ids = append(ids, entries[i].id())
		}
	}
	slices.Sort(ids)
	v := r.settings.service(s.name, r.agents[0].base.String(), entries)
	if r.following {
		switch held, err := r.holds(s.name, len(v.Instances)); {
		case err != nil:
			return err
		case held:
			s.index, s.at, s.unread, s.ids, s.n = a.index, now, nil, ids, len(v.Instances)
			s.leave()
			return nil
		}
	}
	r.changed = r.changed || s.poll == nil && a.index > s.index
	s.index, s.unread, s.ids, s.n = a.index, nil, ids, len(v.Instances)
	if hidden := len(entries) > 0 && len(ids) == 0; s.at.IsZero() || hidden != s.hidden {
		s.hidden, r.move = hidden, true
	}
	s.at = now
	seen := cmp.Or(s.seen, now)
	s.seen = time.Time{}
	convert := r.settings.Convert
	convert.Protocol = cmp.Or(r.defaults[s.name], convert.Protocol)
	var objects, set []watcher.Object
	var ds []problem.Diagnostic
	if len(ids) == 0 {
		set = r.catalog.Remove(v.Namespace, v.Name)
		if s.sum = [16]byte{}; len(entries) == 0 && r.following {
			r.forget(s)
		}
	} else {
		objects, ds = convert.Convert(v)
		sum := sumOf(objects)
		set = r.catalog.Set(v, objects)
		if sum == s.sum {
			set = nil
		}
		s.sum = sum
	}
	r.problems("service "+s.name, ds)
	if !r.following {
		observe(objects, seen)
		s.listed = objects
		return nil
	}
	observe(set, seen)
	r.put(s, set)
	r.published(s.name, len(v.Instances))
	return nil
}

// observe sets when a change was seen.
func observe(set []watcher.Object, at time.Time) {
	for i := range set {
		set[i].Observed = at
	}
}

// sumOf returns a hash of objects, but for their versions.
func sumOf(objects []watcher.Object) (sum [16]byte) {
	h := sha256.New()
	for _, o := range objects {
		fmt.Fprintf(h, "%s %q %q %d ", o.Kind, o.Name, o.Origin, len(o.Value.Bytes))
		h.Write(o.Value.Bytes)
	}
	copy(sum[:], h.Sum(nil))
	return sum
}

// put adds a change to the next set, or to its batch.
func (r *run) put(s *service, set []watcher.Object) {
	if b := s.batch; b != nil {
		s.leave()
		b.set = append(b.set, set...)
		return
	}
	r.pending = append(r.pending, set...)
}

// forget drops a service that has no instances.
func (r *run) forget(s *service) {
	delete(r.services, s.name)
	delete(r.failing, s.name)
	if s.poll != nil {
		s.poll.cancel()
		s.poll = nil
	}
	r.ring = slices.DeleteFunc(r.ring, func(o *service) bool { return o == s })
}

// holds reports whether a service keeps its objects although it has n instances now: while
// the listing is doubted, it may not lose any. The error is errAgain if so much is gone
// after an error that only a listing can decide (REG-9).
func (r *run) holds(name string, n int) (bool, error) {
	had := r.had[name]
	switch {
	case n >= had:
		return false, nil
	case r.doubted:
		return true, nil
	case r.suspected.IsZero():
		return false, nil
	}
	c := r.catalog.Counts()
	if c.Instances += n - had; n == 0 {
		c.Services--
	}
	if r.doubt.Lacks(c) {
		return true, errAgain
	}
	return false, nil
}

// published notes what the log has of a service.
func (r *run) published(name string, n int) {
	if n == 0 {
		delete(r.had, name)
	} else {
		r.had[name] = n
	}
	if r.suspected.IsZero() && !r.partial {
		r.doubt.Published(r.catalog.Counts())
	}
}

// suspect notes a reason for doubt: a listing, or changes, that lack much are checked.
func (r *run) suspect(err error) {
	r.suspected = time.Now()
	r.doubt.Suspect(err.Error())
}

// limit polls fewer services if Consul refuses connections (CON-7).
func (r *run) limit(err error) {
	if now := time.Now(); errors.Is(err, errLimited) && now.Sub(r.limited) > 10*time.Second {
		r.halved, r.limited = r.halved+1, now
		r.move = true
	}
}

// counts returns the size of what was read.
func (r *run) counts() (c registry.Counts) {
	for _, s := range r.services {
		if s.n > 0 {
			c.Services++
			c.Instances += s.n
		}
	}
	return c
}
