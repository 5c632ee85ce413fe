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

// run is the state of one call of Run. The goroutine that calls loop owns it.
type run struct {
	*Watcher
	client *apiserver.Client
	sink   watcher.Sink
	index  *index.Index
	begun  time.Time
	looked time.Time // time of the last step; everything due later is still to be done

	inbox   chan any       // an apiserver.Message, a func() for step to call, or the error that ends the run
	running sync.WaitGroup // all goroutines of the run

	feeds       map[string]*apiserver.Feed // by name
	definitions *apiserver.Feed
	defined     map[string]apiserver.Definition // by name, in the groups of our kinds
	missing     []*kind.Kind                    // kinds that the API server does not serve
	asking      asking

	covered    map[string]bool // kinds in the listing; nil before the listing
	reported   map[string][]problem.Diagnostic
	reportedAt time.Time
	unreported bool // diagnostics may have changed since the last report

	unready    error                // why the API server is not ready; nil if it is
	unmirrored []problem.Diagnostic // Services with unmirrored endpoints
	lookAt     time.Time            // when to search for them again
}

// queued limits the messages that wait for the loop. When the queue is full, the
// feeds wait.
const queued = 1024

func newRun(w *Watcher, c *apiserver.Client, sink watcher.Sink) *run {
	now := time.Now()
	return &run{
		Watcher: w, client: c, sink: sink, index: index.New(w.cfg.DiscoverySelectors), begun: now, looked: now,
		inbox: make(chan any, queued), feeds: map[string]*apiserver.Feed{}, defined: map[string]apiserver.Definition{},
		reported: map[string][]problem.Diagnostic{}, lookAt: now.Add(w.limits.again),
	}
}

// loop reports a listing of the cluster and then its changes.
func (r *run) loop(ctx context.Context) error {
	r.report(time.Now()) // the diagnostics of Tell do not need the API server
	s, err := r.discover(ctx)
	if err != nil {
		return fmt.Errorf("reach the API server: %w", r.client.Unreachable(err))
	}
	r.running.Go(func() {
		err := r.client.WatchOver(ctx, r.limits.Limits, func(unready error) {
			r.send(ctx, func() { r.unready = unready })
		})
		if err != nil {
			r.send(ctx, err)
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

// send sends a message to the loop. It drops the message when the run ends.
func (r *run) send(ctx context.Context, m any) {
	select {
	case r.inbox <- m:
	case <-ctx.Done():
	}
}

// gather waits for a message, or until something is due, and then collects
// messages until none arrives for a while.
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

// due returns the time after now at which something is to be done without a
// message.
func (r *run) due(now time.Time) time.Time {
	if r.asking.due(now) {
		return now
	}
	times := []time.Time{r.asking.at, r.begun.Add(r.limits.again), r.lookAt}
	if r.unreported {
		times = append(times, r.reportedAt.Add(reportEvery))
	}
	for _, f := range r.all() {
		times = append(times, f.Deadlines()...)
	}
	return apiserver.EarliestAfter(now, times)
}

// all returns all feeds, including the feed of definitions.
func (r *run) all() []*apiserver.Feed {
	return append(slices.Collect(maps.Values(r.feeds)), r.definitions)
}

// step applies messages and reports the results. done means that the run must end
// because a new one would list other kinds.
func (r *run) step(ctx context.Context, messages []any) (done bool, err error) {
	r.judgeLosses(ctx, messages)
	for _, m := range messages {
		switch m := m.(type) {
		case apiserver.Message:
			r.take(m)
		case func():
			m()
		case error:
			return false, m
		}
	}
	now := time.Now()
	r.looked = now
	if r.useless(now) {
		return false, fmt.Errorf("no resource can be read, and the API server %w", r.unready)
	}
	r.rediscover(ctx, now)
	r.lookUnmirrored(ctx, now)
	if err := r.publish(ctx, now); err != nil {
		return false, err
	}
	if r.unreported = onlyObjects(messages) && now.Before(r.reportedAt.Add(reportEvery)); r.unreported {
		return false, nil
	}
	r.reportedAt = now
	r.report(now)
	r.cfg.Metrics.update(r.index.Figures())
	return r.outdated(now) && !now.Before(r.begun.Add(r.limits.again)), nil
}

// reportEvery is the minimum time between two reports while all messages are about
// objects.
const reportEvery = time.Second

func onlyObjects(messages []any) bool {
	return len(messages) > 0 && !slices.ContainsFunc(messages, func(m any) bool {
		of, is := m.(apiserver.Message)
		return !is || of.What != apiserver.Put && of.What != apiserver.Removed
	})
}

// take applies a feed's message.
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

// publish reports the listing when all readable feeds are synced, and later the
// changes.
func (r *run) publish(ctx context.Context, now time.Time) error {
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
