package kube

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"meshlog.dev/services/internal/kind"
	"meshlog.dev/services/internal/model"
	"meshlog.dev/services/watcher"
)

// run is one Run: the goroutine that calls loop owns it.
type run struct {
	*Watcher
	client *client
	sink   watcher.Sink
	index  *index
	begun  time.Time

	inbox   chan message
	running sync.WaitGroup // all goroutines of the run

	feeds       map[string]*feed // by name
	definitions *feed
	defined     map[string]definition // by name, those of groups that count
	missing     []*kind.Kind          // that the API server does not serve
	reported    map[string][]model.Diagnostic
	reportedAt  time.Time
	unreported  bool // something may have to be

	// When to ask again what is served (zero: not by itself), how often that
	// was in vain, and whether it is under way.
	discoverAt  time.Time
	attempts    int
	discovering bool

	covered map[string]bool // kinds that were listed; nil: none was yet

	unready error // what the API server says of itself; nil: that it is ready

	// unmirrored are Services whose endpoints nobody mirrors; lookAt is when to
	// look for them again.
	unmirrored []model.Diagnostic
	lookAt     time.Time
}

// queued is how many messages wait; then feeds do.
const queued = 1024

func newRun(w *Watcher, c *client, sink watcher.Sink) *run {
	return &run{
		Watcher: w, client: c, sink: sink, index: newIndex(w.cfg.DiscoverySelectors), begun: time.Now(),
		lookAt: time.Now().Add(w.limits.again), inbox: make(chan message, queued), feeds: map[string]*feed{},
		defined: map[string]definition{}, reported: map[string][]model.Diagnostic{},
	}
}

// loop lists what the API server has, and then says what changes.
func (r *run) loop(ctx context.Context) error {
	s, err := r.discover(ctx)
	if err != nil {
		return fmt.Errorf("reach the API server: %w", err)
	}
	r.running.Go(func() {
		err := r.client.watchOver(ctx, r.limits, func(unready error) {
			r.send(ctx, message{what: probed, err: unready})
		})
		if err != nil {
			r.send(ctx, message{what: down, err: err})
		}
	})
	r.definitions = r.newFeed(nil, scope{resource: resource{GroupVersionResource: definitions}}, definitionsOf)
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
func (r *run) send(ctx context.Context, m message) {
	select {
	case r.inbox <- m:
	case <-ctx.Done():
	}
}

// gather waits until there is a message or something is due, and then until
// there is none for a while.
func (r *run) gather(ctx context.Context) (ms []message, err error) {
	wait := time.Until(r.due(time.Now()))
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

// due is when there is something to do without a message.
func (r *run) due(now time.Time) time.Time {
	until := now.Add(time.Hour)
	soonest := func(t time.Time) {
		if t.After(now) && t.Before(until) {
			until = t
		}
	}
	if !r.discoverAt.IsZero() && !r.discovering {
		soonest(r.discoverAt)
		if !r.discoverAt.After(now) {
			return now
		}
	}
	soonest(r.begun.Add(r.limits.again))
	soonest(r.lookAt)
	if r.unreported {
		soonest(r.reportedAt.Add(reportEvery))
	}
	for _, f := range r.all() {
		if f.err != nil {
			soonest(f.since.Add(f.patience()))
			soonest(f.since.Add(r.limits.down))
		}
		if !f.synced {
			soonest(f.heard().Add(f.limits.silence))
		}
	}
	return until
}

// all are the feeds, that of definitions too.
func (r *run) all() []*feed {
	return append(slices.Collect(maps.Values(r.feeds)), r.definitions)
}

// step takes messages in and says what they come to. Done: the run is to begin
// anew, for it would list other kinds.
func (r *run) step(ctx context.Context, messages []message) (done bool, err error) {
	r.judgeLosses(ctx, messages)
	for _, m := range messages {
		switch {
		case m.what == down:
			return false, m.err
		case m.what == discovered:
			r.rediscovered(ctx, m)
		case m.what == probed:
			r.unready = m.err
		case m.what == looked:
			r.sawUnmirrored(m)
		case m.feed == r.definitions:
			r.take(m)
			r.define(m)
		case m.feed == r.feeds[m.feed.name()] && m.feed.frozen == "":
			r.take(m)
		}
	}
	now := time.Now()
	if r.unreadable(now) {
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
	r.cfg.Metrics.tell(r.index.stats)
	return r.outdated(now) && !now.Before(r.begun.Add(r.limits.again)), nil
}

// reportEvery bounds how often it is looked for what is to be reported while
// there is nothing but objects.
const reportEvery = time.Second

func onlyObjects(messages []message) bool {
	return len(messages) > 0 && !slices.ContainsFunc(messages, func(m message) bool { return m.what != put && m.what != removed })
}

// unreadable says that the API server answers, but nothing that is of use: it
// says itself that it is not ready, and each resource has failed for some time.
func (r *run) unreadable(now time.Time) bool {
	if r.unready == nil {
		return false
	}
	for _, f := range r.all() {
		if f.frozen == "" && (f.err == nil || now.Before(f.since.Add(r.limits.down))) {
			return false
		}
	}
	return true
}

// say lists once all that can be read was, then tells changes.
func (r *run) say(ctx context.Context, now time.Time) error {
	if r.covered != nil {
		if set := r.index.changes(); len(set) > 0 {
			return r.sink.Change(ctx, set)
		}
		return nil
	}
	for _, f := range r.all() {
		if t := f.trouble(now); !f.synced && t == none || t == suspect {
			return nil
		}
	}
	r.lookAtDefinitions(ctx)
	if err := r.nothing(now); err != nil {
		return err
	}
	r.covered = r.readable()
	r.index.covered = r.covered
	return r.sink.List(ctx, watcher.Listing{
		Objects: r.index.changes(), Kinds: slices.Sorted(maps.Keys(r.covered)),
	})
}

// nothing is an error if no resource can be read.
func (r *run) nothing(now time.Time) error {
	var why *model.Diagnostic
	for _, name := range slices.Sorted(maps.Keys(r.feeds)) {
		f := r.feeds[name]
		if f.synced && f.frozen == "" {
			return nil
		}
		if d, ok := f.problem(now); ok && why == nil {
			why = &d
		}
	}
	if why == nil {
		return fmt.Errorf("the API server serves nothing that can be watched")
	}
	return fmt.Errorf("nothing can be read of the API server; %s: %s; %s", why.Origin, why.Reason, why.Advice)
}

// needs are the kinds without which others would be converted to something
// else than before: they are not spoken of either.
func (r *run) needs(name string) []string {
	switch {
	case name == sliceKind && len(r.cfg.Namespaces) > 0:
		return []string{podKind} // a Role gives no nodes
	case name == sliceKind:
		return []string{podKind, nodeKind}
	case name == podKind && len(r.cfg.Namespaces) == 0:
		return []string{nodeKind}
	}
	return nil
}

// readable are the kinds that can be spoken of: all that is there of them is
// known. Of those that are not to be watched there is nothing.
func (r *run) readable() map[string]bool {
	is := map[string]bool{}
	for _, k := range kind.All() {
		is[k.Name] = !r.cfg.wants(k)
	}
	synced := map[string]int{}
	for _, f := range r.feeds {
		if f.synced && f.frozen == "" {
			synced[f.kind.Name]++
		}
	}
	for _, f := range r.feeds {
		is[f.kind.Name] = synced[f.kind.Name] == r.feedsOf(f.kind)
	}
	for _, name := range []string{podKind, sliceKind} { // in this order
		for _, need := range r.needs(name) {
			is[name] = is[name] && is[need]
		}
	}
	if len(r.cfg.DiscoverySelectors) > 0 && !is[namespaceKind] {
		for _, k := range kind.All() { // it is not known which count
			is[k.Name] = is[k.Name] && !k.Namespaced
		}
	}
	maps.DeleteFunc(is, func(_ string, can bool) bool { return !can })
	return is
}

func (r *run) feedsOf(k *kind.Kind) (n int) {
	for _, f := range r.feeds {
		if f.kind == k {
			n++
		}
	}
	return n
}

// outdated says that a new listing would speak for other kinds than the last
// one did: one can be read that could not, or one cannot be read any more and
// will not be by itself.
func (r *run) outdated(now time.Time) bool {
	if r.covered == nil {
		return false
	}
	readable := r.readable()
	for name := range readable {
		if !r.covered[name] {
			return true
		}
	}
	for _, f := range r.feeds {
		lasts := slices.Contains([]trouble{gone, unserved, forbidden}, f.trouble(now))
		if lasts && r.covered[f.kind.Name] && r.discoverAt.IsZero() && !r.discovering {
			return true
		}
	}
	return false
}

// take takes in what a feed says.
func (r *run) take(m message) {
	f := m.feed
	f.note(m)
	if apierrors.IsNotFound(f.err) {
		r.askAgain(m.at)
	}
	if f == r.definitions {
		return
	}
	switch m.what {
	case replaced:
		r.index.replace(f.name(), m.objects, m.at)
	case put:
		for _, o := range m.objects {
			r.index.put(f.name(), o)
		}
	case removed:
		r.index.remove(m.gone, m.at)
	}
	f.held.Store(r.index.held[f.name()])
}

// report tells what keeps kinds from being read, where it is news.
func (r *run) report(now time.Time) {
	all := map[string][]model.Diagnostic{"definitions": nil, "kinds": missing(r.missing), "endpoints": r.unmirrored}
	for _, k := range kind.All() {
		all["kind "+k.Name] = nil
	}
	for _, f := range r.feeds {
		if d, is := f.problem(now); is {
			d.Key.Kind = f.kind.Name
			if len(r.cfg.Namespaces) > 0 && (!f.resource.namespaced || f.object != "") {
				d.Severity = min(d.Severity, model.Warning) // a Role in each namespace is what is asked for
			}
			all["kind "+f.kind.Name] = append(all["kind "+f.kind.Name], d)
		}
	}
	if readable := r.readable(); r.covered != nil {
		for _, name := range []string{podKind, sliceKind} {
			for _, need := range r.needs(name) {
				if !r.covered[name] && !readable[name] && !readable[need] {
					all["kind "+name] = append(all["kind "+name], waits(name, need))
				}
			}
		}
	}
	all["API server"] = unready(r.unready)
	if r.covered != nil && len(r.cfg.DiscoverySelectors) > 0 && !r.covered[namespaceKind] {
		all["discovery selectors"] = []model.Diagnostic{waits("", namespaceKind)}
	}
	if d, is := r.definitions.problem(now); is {
		d.Severity, d.Effect = model.Warning, "definitions that are installed are noticed within a minute, and objects that go with one that is removed are removed"
		all["definitions"] = []model.Diagnostic{d}
	}
	r.mu.Lock()
	maps.Copy(all, r.told)
	r.mu.Unlock()
	for origin, ds := range all {
		ds = slices.Clone(ds)
		slices.SortFunc(ds, func(a, b model.Diagnostic) int { return cmp.Or(a.Compare(b), cmp.Compare(a.Origin, b.Origin)) })
		if !slices.Equal(ds, r.reported[origin]) {
			r.sink.Problems(origin, ds)
			r.reported[origin] = ds
		}
	}
}
