package kube

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/kube/apiserver"
	"meshlog.dev/services/watcher/kube/index"
)

// run is one Run: the goroutine that calls loop owns it.
type run struct {
	*Watcher
	client *apiserver.Client
	sink   watcher.Sink
	index  *index.Index
	begun  time.Time
	// looked is the time as of which the last step was: what is due later is still
	// to be looked at.
	looked time.Time

	inbox   chan any       // see step
	running sync.WaitGroup // all goroutines of the run

	feeds       map[string]*apiserver.Feed // by name
	ends        map[*apiserver.Feed]context.CancelFunc
	definitions *apiserver.Feed
	defined     map[string]apiserver.Definition // by name, those of groups that count
	missing     []*kind.Kind                    // that the API server does not serve
	asking      asking

	covered    map[string]bool // kinds that were listed; nil: none was yet
	reported   map[string][]problem.Diagnostic
	reportedAt time.Time
	unreported bool // something may have to be

	unready    error                // what the API server says of itself; nil: that it is ready
	unmirrored []problem.Diagnostic // of Services whose endpoints nobody mirrors
	lookAt     time.Time            // when to look for them again
}

// down says that the API server answers nothing any more.
type down struct{ err error }

// probed is what the API server says of itself; nil: that it is ready.
type probed struct{ unready error }

// queued is how many messages wait; then feeds do.
const queued = 1024

func newRun(w *Watcher, c *apiserver.Client, sink watcher.Sink) *run {
	now := time.Now()
	return &run{
		Watcher: w, client: c, sink: sink, index: index.New(w.cfg.DiscoverySelectors), begun: now, looked: now,
		inbox: make(chan any, queued), feeds: map[string]*apiserver.Feed{}, ends: map[*apiserver.Feed]context.CancelFunc{},
		defined: map[string]apiserver.Definition{}, reported: map[string][]problem.Diagnostic{},
		lookAt: now.Add(w.limits.again),
	}
}

// loop lists what the API server has, and then says what changes.
func (r *run) loop(ctx context.Context) error {
	r.reportTold()
	s, err := r.discover(ctx)
	if err != nil {
		return fmt.Errorf("reach the API server: %w", r.client.Unreachable(err))
	}
	r.running.Go(func() {
		err := r.client.WatchOver(ctx, r.limits.Limits, func(unready error) { r.send(ctx, probed{unready}) })
		if err != nil {
			r.send(ctx, down{err})
		}
	})
	r.definitions = r.newFeed(ctx, nil, apiserver.Scope{Resource: apiserver.Definitions}, apiserver.DefinitionObject)
	r.start(ctx, r.definitions)
	r.serve(ctx, s)
	for {
		messages, err := r.gather(ctx)
		if err != nil {
			return err
		}
		if done, err := r.step(ctx, messages); done || err != nil {
			return err
		}
	}
}

// send is a message to the loop; it is dropped when the run ends.
func (r *run) send(ctx context.Context, m any) {
	select {
	case r.inbox <- m:
	case <-ctx.Done():
	}
}

// gather waits until there is a message or something is due, and then until
// there is none for a while.
func (r *run) gather(ctx context.Context) (ms []any, err error) {
	wait := time.Until(r.due(r.looked))
	var end time.Time
	for {
		select {
		case m := <-r.inbox:
			ms = append(ms, m)
			now := time.Now()
			if end.IsZero() {
				end = now.Add(r.limits.longest)
			}
			if now.After(end) {
				return ms, nil
			}
			wait = r.limits.quiet
		case <-r.wakes:
			return ms, nil
		case <-time.After(wait):
			return ms, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// due is when, after now, there is something to do without a message.
func (r *run) due(now time.Time) time.Time {
	until := now.Add(time.Hour)
	soonest := func(t time.Time) {
		if t.After(now) && t.Before(until) {
			until = t
		}
	}
	if r.asking.due(now) {
		return now
	}
	soonest(r.asking.at)
	soonest(r.begun.Add(r.limits.again))
	soonest(r.lookAt)
	if r.unreported {
		soonest(r.reportedAt.Add(reportEvery))
	}
	for _, f := range r.all() {
		if f.Err != nil {
			soonest(f.Since.Add(f.Patience()))
			soonest(f.Since.Add(r.limits.Down))
		}
		if !f.Synced {
			soonest(f.Heard().Add(r.limits.Silence))
		}
	}
	return until
}

// all are the feeds, that of definitions too.
func (r *run) all() []*apiserver.Feed {
	return append(slices.Collect(maps.Values(r.feeds)), r.definitions)
}

// step takes messages in and says what they come to. Done: the run is to begin
// anew, for it would list other kinds.
func (r *run) step(ctx context.Context, messages []any) (done bool, err error) {
	r.judgeLosses(ctx, messages)
	for _, m := range messages {
		switch m := m.(type) {
		case apiserver.Message:
			r.take(m)
		case discovered:
			r.rediscovered(ctx, m)
		case probed:
			r.unready = m.unready
		case looked:
			r.unmirrored, r.lookAt = m.unmirrored, m.at.Add(r.limits.unmirrored)
		case down:
			return false, m.err
		}
	}
	now := time.Now()
	r.looked = now
	if r.useless(now) {
		return false, fmt.Errorf("nothing can be read of the API server, and it %w", r.unready)
	}
	r.rediscover(ctx, now)
	r.lookUnmirrored(ctx, now)
	if err := r.say(ctx, now); err != nil {
		return false, err
	}
	if r.unreported = onlyObjects(messages) && now.Before(r.reportedAt.Add(reportEvery)); r.unreported {
		return false, nil
	}
	r.reportedAt = now
	r.report(now)
	r.cfg.Metrics.tell(r.index.Figures())
	return r.outdated(now) && !now.Before(r.begun.Add(r.limits.again)), nil
}

// reportEvery bounds how often it is looked for what is to be reported while
// there is nothing but objects.
const reportEvery = time.Second

func onlyObjects(messages []any) bool {
	return len(messages) > 0 && !slices.ContainsFunc(messages, func(m any) bool {
		of, is := m.(apiserver.Message)
		return !is || of.What != apiserver.Put && of.What != apiserver.Removed
	})
}

// take takes in what a feed says.
func (r *run) take(m apiserver.Message) {
	f := m.Feed
	if f != r.definitions && (r.feeds[f.Name()] != f || f.Frozen != "") {
		return
	}
	f.Note(m)
	if apierrors.IsNotFound(f.Err) {
		r.asking.again(m.At)
	}
	if f == r.definitions {
		r.define(m)
		return
	}
	switch m.What {
	case apiserver.Replaced:
		r.index.Replace(f.Source, m.Objects, m.At)
	case apiserver.Put:
		for _, o := range m.Objects {
			r.index.Put(f.Source, o)
		}
	case apiserver.Removed:
		r.index.Remove(m.Gone, m.At)
	}
	f.Held.Store(r.index.Held(f.Source))
}

// say lists once all that can be read was, then tells changes.
func (r *run) say(ctx context.Context, now time.Time) error {
	if r.covered != nil {
		if set := r.index.Changes(); len(set) > 0 {
			return r.sink.Change(ctx, set)
		}
		return nil
	}
	for _, f := range r.all() {
		if t := f.Trouble(now); !f.Synced && t == apiserver.None || t == apiserver.Suspect {
			return nil
		}
	}
	r.lookAtDefinitions(ctx)
	if err := r.nothing(now); err != nil {
		return err
	}
	r.covered = r.readable()
	r.index.Cover(r.covered)
	return r.sink.List(ctx, watcher.Listing{
		Objects: r.index.Changes(), Kinds: slices.AppendSeq([]string{}, maps.Keys(r.covered)), // nil would be all
	})
}
