package consul

import (
	"context"
	"math/rand/v2"
	"net/url"
	"slices"
	"time"
)

// poll is the poll of a service.
type poll struct {
	cancel context.CancelFunc
	agent  *agent
}

// wait returns how long a poll waits. The first ones end at different times, so that all
// the later ones do too (CON-3).
func (r *run) wait(first bool) time.Duration {
	if first {
		return r.settings.Wait/10 + rand.N(r.settings.Wait-r.settings.Wait/10)
	}
	return r.settings.Wait
}

// deadline is when an answer must be there: servers add up to a sixteenth of the wait.
func deadline(wait time.Duration) time.Duration { return wait + wait/16 + 10*time.Second }

// pollIndex polls a path until ctx is done, in a worker. risen gets each body whose index
// has risen, lower is called if an index is lower than the one that was asked for, and
// idle if nothing changed.
func pollIndex[T any](ctx context.Context, r *run, at *agent, path string, params url.Values, index uint64, on pollEvents[T]) {
	var b bucket
	for first, failures := true, 0; sleep(ctx, b.take(time.Now())); first = false {
		wait := r.wait(first)
		var into T
		a, err := at.get(ctx, query{path: path, params: params, index: index, wait: wait, within: deadline(wait)}, &into)
		if ctx.Err() != nil {
			return
		}
		r.status.Count(err)
		if err != nil {
			failures++
			r.send(ctx, func() error { return r.pollFailed(at, err) })
			if !sleep(ctx, pause(failures)) {
				return
			}
			continue
		}
		failures = 0
		switch {
		case a.index > index:
			r.send(ctx, func() error { return on.risen(a, into) })
		case a.index < index:
			r.send(ctx, on.lower)
		default:
			r.send(ctx, on.idle)
		}
		index = a.index
	}
}

// pollEvents are what the goroutine of Run does with the answers of a poll.
type pollEvents[T any] struct {
	risen       func(answer, T) error
	lower, idle func() error
}

func nothing() error { return nil }

// pollFailed notes the error of a poll. A token that is refused is found out by the probe,
// whose answer is not that of an agent's view.
func (r *run) pollFailed(a *agent, err error) error {
	r.suspect(err)
	r.limit(err)
	select {
	case a.ask <- struct{}{}:
	default: // it is asked already
	}
	return nil
}

// pollService polls a service.
func (r *run) pollService(ctx context.Context, s *service) {
	a := r.pick(s.name)
	ctx, cancel := context.WithCancel(ctx)
	s.poll = &poll{cancel: cancel, agent: a}
	index := s.index
	r.workers.Go(func() {
		defer cancel()
		pollIndex(ctx, r, a, "/v1/health/service/"+url.PathEscape(s.name), nil, index, pollEvents[[]entry]{
			risen: func(is answer, entries []entry) error { return r.woke(s, is, entries) },
			lower: func() error { r.lookUnless(s); return nil },
			idle: func() error {
				if s.unread == nil && !s.at.IsZero() {
					s.at = time.Now()
				}
				return nil
			},
		})
	})
}

// lookUnless looks at a service that is still there.
func (r *run) lookUnless(s *service) {
	if r.services[s.name] == s {
		r.look(s, nil)
	}
}

// woke takes the body of a poll. If it lacks an instance that the service had, a read
// decides: the token may have lost rights, of which polls do not tell.
func (r *run) woke(s *service, a answer, entries []entry) error {
	if r.services[s.name] != s || a.index <= s.index {
		return nil
	}
	if s.lacks(entries) || len(entries) == 0 || a.filtered || s.unread != nil {
		r.look(s, nil)
		return nil
	}
	return r.apply(s, a, entries)
}

// pollNames polls the names of all services.
func (r *run) pollNames(ctx context.Context, a *agent) {
	index := r.index
	r.workers.Go(func() {
		pollIndex(ctx, r, a, "/v1/catalog/services", nil, index, pollEvents[map[string][]string]{
			risen: func(is answer, names map[string][]string) error {
				if !is.filtered { // the probe finds that out
					r.names(names, true)
				}
				return nil
			},
			lower: nothing, idle: nothing, // the probe has seen it
		})
	})
}

// pollDefaults polls the protocols of services.
func (r *run) pollDefaults(ctx context.Context, a *agent) {
	r.workers.Go(func() {
		var index uint64
		for failures := 0; ; failures++ {
			protocols, is, unknown, err := r.readDefaults(ctx, a.client)
			if ctx.Err() != nil {
				return
			}
			r.status.Count(err)
			r.send(ctx, func() error { return r.tookDefaults(protocols, is, unknown, err) })
			if index = is.index; err == nil && !is.filtered && unknown == "" {
				break
			}
			if !sleep(ctx, pause(failures+8)) {
				return
			}
		}
		pollIndex(ctx, r, a, "/v1/config/service-defaults", nil, index, pollEvents[[]struct{ Name, Protocol string }]{
			risen: func(is answer, all []struct{ Name, Protocol string }) error {
				protocols := map[string]string{}
				for _, d := range all {
					if d.Protocol != "" {
						protocols[d.Name] = d.Protocol
					}
				}
				return r.tookDefaults(protocols, is, "", nil)
			},
			lower: nothing, idle: nothing,
		})
	})
}

// tookDefaults takes the protocols. Those that the token may not read stay as they were.
func (r *run) tookDefaults(protocols map[string]string, a answer, unknown string, err error) error {
	if err != nil {
		return nil
	}
	if r.unknown = unknown; a.filtered || unknown != "" {
		return nil
	}
	changed := changedProtocols(r.defaults, protocols)
	r.defaults = protocols
	for _, name := range changed {
		if s := r.services[name]; s != nil {
			r.look(s, nil)
		}
	}
	return nil
}

// pollStates polls the checks that do not pass, so that a change of health is seen at once
// of services that are read in turn (CON-11).
func (r *run) pollStates(ctx context.Context, a *agent) {
	const path = "/v1/health/state/any"
	params := url.Values{"filter": {`Status != "passing"`}}
	r.workers.Go(func() {
		index := uint64(1)
		for failures := 1; ; failures++ {
			var all []check
			is, err := a.get(ctx, query{path: path, params: params, within: readWithin}, &all)
			if ctx.Err() != nil {
				return
			}
			r.status.Count(err)
			if err == nil {
				r.send(ctx, func() error { r.states(all); return nil })
				index = is.index
				break
			}
			if !sleep(ctx, pause(failures)) {
				return
			}
		}
		pollIndex(ctx, r, a, path, params, index, pollEvents[[]check]{
			risen: func(_ answer, all []check) error { r.states(all); return nil },
			lower: nothing, idle: nothing,
		})
	})
}

// states looks at the services of which a check changed.
func (r *run) states(all []check) {
	is := make(map[check]string, len(all))
	for _, c := range all {
		is[check{Node: c.Node, CheckID: c.CheckID, ServiceName: c.ServiceName}] = c.Status
	}
	was := r.unhealth
	r.unhealth = is
	if was == nil {
		return
	}
	changed := map[check]bool{}
	for c, status := range is {
		if was[c] != status {
			changed[c] = true
		}
	}
	for c := range was {
		if _, ok := is[c]; !ok {
			changed[c] = true
		}
	}
	nodes := map[string]bool{}
	for c := range changed {
		if c.ServiceName == "" {
			nodes[c.Node] = true
		} else if s := r.services[c.ServiceName]; s != nil && s.poll == nil {
			r.look(s, nil)
		}
	}
	if len(nodes) == 0 {
		return
	}
	for _, s := range r.services {
		if s.poll == nil && slices.ContainsFunc(s.ids, func(id string) bool { return nodes[nodeOf(id)] }) {
			r.look(s, nil)
		}
	}
}
