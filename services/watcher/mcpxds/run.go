package mcpxds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"slices"
	"time"

	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/registry"
)

// run is the state of one Run. The goroutine of Run owns it.
type run struct {
	*Watcher
	decoder
	sink   watcher.Sink
	stream *stream

	begun, last time.Time // when the stream began, and its last answer came
	sets        []*set
	types       map[string]*collection
	// pending are changes that are not reported yet.
	pending map[key]watcher.Object
	// listed: the listing was reported; partial: it could remove nothing.
	listed, partial bool
	over            bool // a new run can see more than this one

	foreign  map[string]bool // types that came and were not asked for
	reported map[string][]problem.Diagnostic
}

// key names an object.
type key struct {
	set *set
	name
}

// watch runs one stream.
func (w *Watcher) watch(ctx context.Context, sink watcher.Sink) error {
	ctx, cancel := context.WithCancel(ctx)
	s, err := w.dial(ctx)
	if err != nil {
		cancel()
		return err
	}
	defer func() {
		cancel()
		s.close()
	}()
	r := &run{
		Watcher: w, sink: sink, stream: s, begun: time.Now(), pending: map[key]watcher.Object{},
		decoder: decoder{seed: maphash.MakeSeed(), address: w.cfg.Address, revision: w.cfg.Revision, incremental: w.cfg.Incremental},
		foreign: map[string]bool{}, reported: map[string][]problem.Diagnostic{},
	}
	r.sets, r.types = newSets(w.cfg.MeshConfig)
	return r.loop(ctx)
}

// loop asks for all types and reports what comes.
func (r *run) loop(ctx context.Context) error {
	for _, s := range r.sets {
		for _, c := range s.versions {
			if err := r.send(c, "", ""); err != nil {
				return err
			}
		}
	}
	for {
		var due <-chan time.Time
		if at := r.due(); !at.IsZero() {
			due = time.After(time.Until(at))
		}
		select {
		case first := <-r.stream.answers:
			for _, a := range registry.Gather(ctx, r.stream.answers, first) {
				if a.err != nil {
					return r.ended(a.err)
				}
				if err := r.take(a); err != nil {
					return err
				}
			}
		case <-due:
		case <-ctx.Done():
			return ctx.Err()
		}
		if done, err := r.step(ctx, time.Now()); done || err != nil {
			return err
		}
	}
}

// send sends a request. If the stream has ended, its error comes as an answer.
func (r *run) send(c *collection, nonce, bad string) error {
	if err := r.stream.request(c, nonce, bad); err != nil && !errors.Is(err, io.EOF) {
		return r.explain("write to", err)
	}
	return nil
}

func (r *run) ended(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("xds://%s ended the stream", r.cfg.Address)
	}
	return r.explain("read", err)
}

// take takes an answer.
func (r *run) take(a answer) error {
	c := r.types[a.GetTypeUrl()]
	if c == nil {
		r.foreign[a.GetTypeUrl()] = true
		return nil
	}
	s := c.of
	if r.listed && s.awaited() && !s.covered && !r.over { // more patience may be needed to list it
		r.over, r.patience = true, min(2*r.patience, r.limits.longest)
	}
	if r.last = a.at; s.first.IsZero() {
		s.first = a.at
	}
	c.answered = true
	in := r.read(c, a)
	c.problems = in.problems
	bad := in.nack()
	if bad == "" {
		c.accepted = a.GetVersionInfo()
	}
	r.apply(c, in, a.at)
	r.cfg.Status.Count(rejected(c, bad))
	return r.send(c, a.GetNonce(), bad)
}

// step reports the listing, and then what has changed. done: the run is to be followed by
// another one.
func (r *run) step(ctx context.Context, now time.Time) (done bool, err error) {
	if !r.listed {
		if !r.ready(now) {
			return false, nil
		}
		if err := r.list(ctx, now); err != nil {
			return false, err
		}
	} else if len(r.pending) > 0 {
		changes := r.changes()
		if err := r.sink.Change(ctx, changes); err != nil {
			return false, err
		}
	}
	r.report()
	r.cfg.Metrics.set(r.sets)
	r.cfg.Status.Set(r.reading())
	return r.finished(now), nil
}

// rejected returns the error of an answer; nil: it was accepted.
func rejected(c *collection, bad string) error {
	if bad == "" {
		return nil
	}
	return fmt.Errorf("rejected an answer of %s: %s", c.url, bad)
}

// reading returns what is read, for `meshlog sources` (REG-15). Each change is pushed.
func (r *run) reading() registry.Reading {
	var all registry.Reading
	for _, s := range r.sets {
		if s.kind.Name == serviceKind {
			all.Counts = s.total()
		}
		if s.held {
			all.Doubted = cmp.Or(all.Doubted, r.doubt(s.kind.Name).Reason())
		}
	}
	all.Polled = all.Services
	return all
}

// changes returns what is pending, by key.
func (r *run) changes() []watcher.Object {
	all := slices.SortedFunc(maps.Values(r.pending), watcher.Object.Compare)
	r.pending = map[key]watcher.Object{}
	return all
}

// closed reports whether what the source has of a kind is known: all versions are
// answered, or the source has been quiet since an answer of one (MCP-10).
func (r *run) closed(s *set, now time.Time) bool {
	return s.complete() || !s.first.IsZero() && !now.Before(r.closes())
}

// closes returns when the kinds are closed of which a version is not answered.
func (r *run) closes() time.Time {
	at := r.last.Add(r.limits.versions)
	if end := r.begun.Add(r.patience); end.Before(at) {
		return end
	}
	return at
}

// ready reports whether the listing is complete, or waits no longer.
func (r *run) ready(now time.Time) bool {
	if !now.Before(r.begun.Add(r.patience)) {
		return true
	}
	return !slices.ContainsFunc(r.sets, func(s *set) bool { return s.awaited() && !r.closed(s, now) })
}

// due returns when something is to be done without an answer; zero: never.
func (r *run) due() time.Time {
	if r.listed {
		return r.again()
	}
	if !r.last.IsZero() {
		if at := r.closes(); at.After(time.Now()) {
			return at
		}
	}
	return r.begun.Add(r.patience)
}

// list reports the listing. It speaks for the kinds that are closed (MCP-3).
func (r *run) list(ctx context.Context, now time.Time) error {
	l := watcher.Listing{Kinds: []string{}} // nil would be all
	for _, s := range r.sets {
		if !s.awaited() || !r.closed(s, now) {
			continue
		}
		s.covered = true
		l.Kinds = append(l.Kinds, s.kind.Name)
		if s.unclear() {
			s.held = true
			if r.decoder.incremental { // no later answer has all objects
				s.again = now.Add(r.limits.doubt)
			}
		} else {
			whole, again := r.doubt(s.kind.Name).Judge(registry.Counts{Services: s.total().Services}, now)
			s.held, s.doubted, s.again = !whole, now, again
		}
		l.Partial = l.Partial || s.held
	}
	if len(l.Kinds) == 0 {
		return fmt.Errorf("xds://%s answered for no type within %v", r.cfg.Address, r.patience)
	}
	r.listed, r.partial = true, l.Partial
	l.Objects = r.changes()
	return r.sink.List(ctx, l)
}

// again returns when a set is to be read a second time; zero: none is.
func (r *run) again() (at time.Time) {
	for _, s := range r.sets {
		if !s.again.IsZero() && (at.IsZero() || s.again.Before(at)) {
			at = s.again
		}
	}
	return at
}

// finished reports whether a new run can see more than this one.
func (r *run) finished(now time.Time) bool {
	if at := r.again(); !at.IsZero() && !now.Before(at) {
		r.confirming = true
		return true
	}
	held := slices.ContainsFunc(r.sets, func(s *set) bool { return s.held })
	return r.over || r.partial && !held
}
