// Package jwks watches the key sets of token issuers (POL-12): it fetches the public keys
// of each issuer that builders offer, again and again, and reports them as objects.
//
// A fetch that fails changes nothing. An issuer that no policy names any more is removed.
package jwks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/mesh/jwks"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
)

// DefaultEvery is the time between two fetches of a key set.
const DefaultEvery = 5 * time.Minute

const (
	// offerWithin is how long Run waits for the first offer: builders repeat it every
	// five seconds.
	offerWithin = 20 * time.Second
	// listWithin bounds how long slow servers delay the listing of the others' keys.
	listWithin = 15 * time.Second
	retryFirst = 5 * time.Second
	fetchers   = 32 // fetches at a time
	// old is after how many times of Every a fetch is old.
	old = 3
)

// Watcher watches the key sets of the issuers that were offered.
type Watcher struct {
	fetch    func(context.Context, jwks.Issuer) (keys, from string, err error)
	every    time.Duration
	metrics  *Metrics
	patience time.Duration // offerWithin, but in tests
	kind     *kind.Kind

	mu    sync.Mutex
	offer *reportv1.Issuers // nil: none has come
	news  chan struct{}     // closed by the next offer
}

// New returns a watcher that fetches each key set again after every, 0 for the default.
func New(f *Fetcher, every time.Duration, m *Metrics) *Watcher {
	if every == 0 {
		every = DefaultEvery
	}
	k, _ := kind.ByName("Jwks")
	return &Watcher{fetch: f.Fetch, every: every, metrics: m, patience: offerWithin, kind: k, news: make(chan struct{})}
}

// Offer takes the issuers that a builder offers. It is safe for concurrent use.
func (w *Watcher) Offer(i *reportv1.Issuers) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.offer = i
	close(w.news)
	w.news = make(chan struct{})
}

func (w *Watcher) offered() (*reportv1.Issuers, chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.offer, w.news
}

// key is the state of one issuer in a run. Owned by the goroutine of Run.
type key struct {
	namedBy string
	keys    string // as reported; empty: not fetched in this run
	fetched time.Time
	due     time.Time
	busy    bool
	pause   time.Duration // after a failure; 0: the last fetch was good
	err     error
}

// fetched is the outcome of a fetch.
type fetched struct {
	of         jwks.Issuer
	keys, from string
	err        error
}

// run is one run of the watcher.
type run struct {
	*Watcher
	sink    watcher.Sink
	all     map[jwks.Issuer]*key
	removed map[string]bool // names of objects
	said    map[string][]problem.Diagnostic
	results chan fetched
	slots   chan struct{}
	partial bool // the listing was
}

// Run implements watcher.Watcher. A key set that cannot be fetched is left out of a
// partial listing, so that its last good keys stay.
func (w *Watcher) Run(ctx context.Context, sink watcher.Sink) error {
	ctx, cancel := context.WithCancel(ctx)
	r := &run{
		Watcher: w, sink: sink, all: map[jwks.Issuer]*key{}, removed: map[string]bool{}, said: map[string][]problem.Diagnostic{},
		results: make(chan fetched), slots: make(chan struct{}, fetchers),
	}
	var fetches sync.WaitGroup
	defer fetches.Wait()
	defer cancel()
	start := func() {
		for i, k := range r.all {
			if !k.busy && !time.Now().Before(k.due) {
				k.busy = true
				fetches.Go(func() { r.get(ctx, i) })
			}
		}
	}
	offer, news, err := w.firstOffer(ctx)
	if err != nil {
		return err
	}
	r.take(offer)
	start()
	if err := r.list(ctx, offer); err != nil {
		return err
	}
	for {
		timer := time.NewTimer(r.next())
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-news:
			offer, news = w.offered()
			err = r.remove(ctx, offer, r.take(offer))
		case f := <-r.results:
			err = r.change(ctx, f)
		case <-timer.C:
		}
		timer.Stop()
		if err != nil {
			return err
		}
		if r.partial && r.whole() {
			return nil // the next listing can have everything
		}
		start()
		r.report(offer)
	}
}

// firstOffer waits for an offer.
func (w *Watcher) firstOffer(ctx context.Context) (*reportv1.Issuers, chan struct{}, error) {
	timer := time.NewTimer(w.patience)
	defer timer.Stop()
	for {
		offer, news := w.offered()
		if offer != nil {
			return offer, news, nil
		}
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-news:
		case <-timer.C:
			return nil, nil, errors.New("no builder has said yet which token issuers the configuration names")
		}
	}
}

// get fetches a key set when a slot is free.
func (r *run) get(ctx context.Context, i jwks.Issuer) {
	f := fetched{of: i}
	select {
	case <-ctx.Done():
		return
	case r.slots <- struct{}{}:
	}
	f.keys, f.from, f.err = r.fetch(ctx, i)
	<-r.slots
	select {
	case <-ctx.Done():
	case r.results <- f:
	}
}

// take follows an offer, and returns the issuers that it names no more.
func (r *run) take(offer *reportv1.Issuers) (gone []jwks.Issuer) {
	named := map[jwks.Issuer]bool{}
	for _, i := range offer.GetIssuers() {
		of := jwks.Issuer{Issuer: i.GetIssuer(), URI: i.GetJwksUri()}
		named[of] = true
		if r.all[of] == nil {
			r.all[of] = &key{}
		}
		r.all[of].namedBy = i.GetNamedBy()
	}
	if offer.GetLeftOut() > 0 {
		return nil // it may name them
	}
	for i := range r.all {
		if !named[i] {
			gone = append(gone, i)
		}
	}
	slices.SortFunc(gone, jwks.Issuer.Compare)
	return gone
}

// list waits for the first fetches, and reports what they have got.
func (r *run) list(ctx context.Context, offer *reportv1.Issuers) error {
	end := time.NewTimer(listWithin)
	defer end.Stop()
	var l watcher.Listing
	var unfit error
	for r.fetching() && unfit == nil {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case f := <-r.results:
			var o *watcher.Object
			if o, unfit = r.put(f); o != nil {
				l.Objects = append(l.Objects, *o)
			}
			continue
		case <-end.C:
		}
		break
	}
	if unfit != nil {
		return unfit
	}
	l.Partial = !r.whole() || offer.GetLeftOut() > 0
	r.partial = l.Partial
	slices.SortFunc(l.Objects, watcher.Object.Compare)
	r.report(offer)
	if err := r.sink.List(ctx, l); err != nil {
		return err
	}
	if l.Partial {
		return r.remove(ctx, offer, nil)
	}
	return nil
}

// fetching reports whether a fetch is under way.
func (r *run) fetching() bool {
	for _, k := range r.all {
		if k.busy {
			return true
		}
	}
	return false
}

// whole reports whether all key sets were fetched in this run.
func (r *run) whole() bool {
	for _, k := range r.all {
		if k.keys == "" {
			return false
		}
	}
	return true
}

// next returns how long until the next fetch is due.
func (r *run) next() time.Duration {
	wait := r.every
	for _, k := range r.all {
		if !k.busy {
			wait = min(wait, time.Until(k.due))
		}
	}
	return max(wait, 0)
}

// put takes the outcome of a fetch, and returns the object if it differs from what was
// reported.
func (r *run) put(f fetched) (*watcher.Object, error) {
	k := r.all[f.of]
	if k == nil {
		return nil, nil // named no more
	}
	k.busy, k.err = false, f.err
	r.metrics.count(f.err)
	if f.err != nil {
		k.pause = min(max(2*k.pause, retryFirst), r.every)
		k.due = time.Now().Add(jitter(k.pause))
		return nil, nil
	}
	k.pause, k.fetched = 0, time.Now()
	k.due = k.fetched.Add(jitter(r.every))
	if k.keys == f.keys {
		return nil, nil
	}
	k.keys = f.keys
	b, err := r.kind.Encode(&registryv1.Jwks{Issuer: f.of.Issuer, Uri: f.from, Keys: f.keys})
	if err != nil {
		return nil, err
	}
	delete(r.removed, f.of.ObjectName())
	return &watcher.Object{
		Kind: r.kind.Name, Name: f.of.ObjectName(), Value: ident.Value{Type: r.kind.TypeURL, Bytes: b}, Origin: f.from, Observed: k.fetched,
	}, nil
}

// jitter spreads fetches: many meshes fetch from one issuer.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}

// change reports what a fetch changes.
func (r *run) change(ctx context.Context, f fetched) error {
	o, err := r.put(f)
	if o == nil || err != nil {
		return err
	}
	return r.sink.Change(ctx, []watcher.Object{*o})
}

// remove reports that issuers are named no more, and that the objects are gone that the
// head has without a policy that needs them.
func (r *run) remove(ctx context.Context, offer *reportv1.Issuers, gone []jwks.Issuer) error {
	names := slices.Clone(offer.GetUnnamed())
	for _, i := range gone {
		delete(r.all, i)
		r.problems(origin(i), nil)
		names = append(names, i.ObjectName())
	}
	var set []watcher.Object
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if r.removed[name] || r.named(name) {
			continue
		}
		r.removed[name] = true
		set = append(set, watcher.Object{Kind: r.kind.Name, Name: name, Delete: true, Observed: time.Now()})
	}
	if len(set) == 0 {
		return nil
	}
	return r.sink.Change(ctx, set)
}

func (r *run) named(object string) bool {
	for i := range r.all {
		if i.ObjectName() == object {
			return true
		}
	}
	return false
}

// origin names an issuer as the origin of problems.
func origin(i jwks.Issuer) string { return i.Issuer + " " + i.URI }

// report reports which key sets cannot be fetched.
func (r *run) report(offer *reportv1.Issuers) {
	c := counts{issuers: len(r.all), leftOut: int(offer.GetLeftOut())}
	for i, k := range r.all {
		var ds []problem.Diagnostic
		if k.err != nil {
			c.failing++
			ds = append(ds, r.failure(i, k))
		}
		if k.keys == "" {
			c.unfetched++
		} else if c.oldest.IsZero() || k.fetched.Before(c.oldest) {
			c.oldest = k.fetched
		}
		r.problems(origin(i), ds)
	}
	r.metrics.set(c)
	var ds []problem.Diagnostic
	if c.leftOut > 0 {
		ds = append(ds, problem.Diagnostic{
			Severity: problem.Error, Code: "jwks-too-many", Reason: fmt.Sprintf("the configuration names %d token issuers more than meshlog fetches keys of", c.leftOut),
			Advice: "name fewer issuers, or give their keys with jwks", Effect: "the keys of these issuers are not fetched",
		})
	}
	r.problems("issuers", ds)
}

// problems replaces the problems of an origin, if they differ.
func (r *run) problems(origin string, ds []problem.Diagnostic) {
	if !slices.Equal(r.said[origin], ds) {
		r.said[origin] = ds
		r.sink.Problems(origin, ds)
	}
}

// failure describes why the keys of an issuer cannot be fetched, on the policy that names
// it.
func (r *run) failure(i jwks.Issuer, k *key) problem.Diagnostic {
	d := problem.Diagnostic{
		Severity: problem.Warning, Code: "jwks-fetch", Origin: i.Issuer,
		Reason: fmt.Sprintf("cannot fetch the keys of issuer %s, which RequestAuthentication %s names: %v", i.Issuer, k.namedBy, k.err),
		Advice: "repair the jwksUri or the issuer's server; the watcher tries again by itself",
		Effect: "the keys stay as they are",
	}
	switch {
	case k.keys == "":
		d.Severity, d.Effect = problem.Error, "the keys on the log stay; if there are none, no token of the issuer can be verified"
	case time.Since(k.fetched) > old*r.every:
		d.Severity = problem.Error
		d.Effect = fmt.Sprintf("the keys are those of %s; tokens with a newer key are refused", k.fetched.UTC().Format(time.RFC3339))
	}
	return d
}
