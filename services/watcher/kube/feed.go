package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"meshlog.dev/services/internal/kind"
	"meshlog.dev/services/internal/model"
)

// feed follows a resource, in one namespace or in all, and says what it holds.
// Client-go's Reflector does the work: lists streamed or in pages, bookmarks, a
// new list where a watch cannot go on. What goes through is converted on arrival.
type feed struct {
	scope
	kind *kind.Kind // nil: what is no kind, definitions

	reader  reader
	convert converter
	send    func(message)
	metrics *Metrics
	limits  limits
	cancel  context.CancelFunc

	// owned by the goroutine of the loop
	uid     string    // of the definition, where it is known
	synced  bool      // a list was taken in
	frozen  string    // why nothing of it is believed any more
	err     error     // of the last try; nil: it went well
	since   time.Time // when it was told first
	doubts  bool      // err is about a list that is not believed
	checked time.Time // when its definition was asked for last

	// owned by the Reflector
	doubt   doubt
	said    string // the error that was told last
	watches int

	// arrived is when something came last, in nanoseconds since 1970; held is
	// how many objects there are, and before the first list how many there were
	// in the run before.
	arrived, held atomic.Int64
}

// scope is what of a resource a feed follows.
type scope struct {
	resource  resource
	namespace string // empty: all
	object    string // the one of that name; empty: all
	fields    string // others that a field selector leaves
	labels    string // and a label selector
}

// String tells the feeds of one kind apart, and begins with the resource.
func (s scope) String() string {
	out := s.resource.String()
	for _, part := range []string{s.namespace, s.object} {
		if part != "" {
			out += "/" + part
		}
	}
	return out
}

// limits are times; tests have shorter ones.
type limits struct {
	// quiet has to pass without another change before changes are told;
	// longest bounds that.
	quiet, longest time.Duration
	// patience is how long a listing waits for a kind that the API server
	// answers with errors for; longer where it does not answer at all.
	patience, silence time.Duration
	// probe is the time between two probes of the API server; down is how long
	// it may answer none.
	probe, down time.Duration
	// idle is how long a watch may bring nothing, not even a bookmark.
	idle time.Duration
	// doubt is how long after a list that lost much another one is believed.
	doubt time.Duration
	// again is how long a run lasts before it ends for a kind that can be read.
	again time.Duration
	// rediscover is the first pause before what is served is asked again, where
	// a definition is not served yet; poll is the pause where definitions
	// cannot be watched.
	rediscover, poll time.Duration
	// unmirrored is the time between two looks for Services whose endpoints
	// nobody mirrors.
	unmirrored time.Duration
	// retry is the first pause of a feed whose list or watch failed, and
	// maxRetry the longest.
	retry, maxRetry time.Duration
}

var defaultLimits = limits{
	quiet: 2 * time.Millisecond, longest: 50 * time.Millisecond,
	patience: 5 * time.Second, silence: 30 * time.Second,
	probe: 5 * time.Second, down: 15 * time.Second,
	idle: 3 * time.Minute, doubt: 3 * time.Second, again: 10 * time.Second,
	rediscover: time.Second, poll: time.Minute,
	unmirrored: time.Minute,
	retry:      500 * time.Millisecond, maxRetry: 10 * time.Second,
}

// message is what a feed tells the loop.
type message struct {
	feed *feed
	at   time.Time
	what what
	// replaced: all; put: the one.
	objects []*object
	gone    key   // removed
	err     error // erred, doubted, down
	served  *served

	unmirrored []model.Diagnostic
}

// what a message says.
type what uint8

const (
	replaced   what = iota // this is all that the feed holds
	put                    // an object is new or has changed
	removed                // an object is gone
	answered               // the API server answered
	erred                  // it did not, or with an error
	doubted                // a list was not believed
	discovered             // what the API server serves
	probed                 // whether the API server says that it is ready
	looked                 // for Services whose endpoints nobody mirrors
	down                   // the API server answers nothing any more
)

// run follows the resource until ctx is done.
func (f *feed) run(ctx context.Context) {
	f.arrived.Store(time.Now().UnixNano())
	lw := &cache.ListWatch{ListWithContextFunc: f.list, WatchFuncWithContext: f.watch}
	r := cache.NewReflectorWithOptions(lw, nil, store{f}, cache.ReflectorOptions{
		Name: f.name(), TypeDescription: f.resource.String(),
		Backoff: &wait.Backoff{Duration: f.limits.retry, Cap: f.limits.maxRetry, Steps: 10, Factor: 2, Jitter: .5},
	})
	r.RunWithContext(ctx)
}

// listTimeout is how long a page may take: longer than the API server itself
// gives it.
const listTimeout = 90 * time.Second

// list reads a page. It is always consistent: never what a cache of the API
// server held some time ago.
func (f *feed) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	o.ResourceVersion, o.ResourceVersionMatch = "", ""
	o.FieldSelector, o.LabelSelector = f.selector(), f.labels
	f.metrics.lists.WithLabelValues(f.label()).Inc()
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	l, err := f.reader.list(ctx, o)
	f.tell(err)
	if err != nil {
		return nil, err
	}
	m, err := meta.ListAccessor(l)
	if err != nil {
		return nil, err
	}
	out := &metainternal.List{ListMeta: metav1.ListMeta{
		ResourceVersion: m.GetResourceVersion(), Continue: m.GetContinue(), RemainingItemCount: m.GetRemainingItemCount(),
	}}
	err = items(l, func(from runtime.Object) {
		if converted, ok := f.arrive(from); ok {
			out.Items = append(out.Items, converted)
		}
	})
	return out, err
}

func (s scope) selector() string {
	if s.object != "" {
		return "metadata.name=" + s.object
	}
	return s.fields
}

// watch begins a watch; with SendInitialEvents it is a list that goes on.
func (f *feed) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	streams := o.SendInitialEvents != nil
	if streams {
		o.ResourceVersion = "" // consistent, as in list
		f.metrics.lists.WithLabelValues(f.label()).Inc()
	} else if f.watches++; f.watches > 1 {
		f.metrics.restarts.WithLabelValues(f.label()).Inc()
	}
	o.FieldSelector, o.LabelSelector = f.selector(), f.labels
	ctx, cancel := context.WithCancel(ctx)
	opening := time.AfterFunc(f.limits.silence, cancel)
	w, err := f.reader.watch(ctx, o)
	if !opening.Stop() && err != nil {
		err = fmt.Errorf("no answer for %s", f.limits.silence)
	}
	if err != nil {
		cancel()
	}
	switch {
	case streams && err != nil:
		// A list comes next, which tells. Some errors the Reflector would wait
		// after, without heeding ctx: it is not to know them.
		return nil, fmt.Errorf("stream: %v", err) //nolint:errorlint // see above
	case err != nil:
		f.tell(err)
		return nil, err
	case !streams:
		f.tell(nil)
	}
	return newStream(w, f, cancel), nil
}

// tell reports how the API server answered, if that is news.
func (f *feed) tell(err error) {
	f.arrived.Store(time.Now().UnixNano())
	said := ""
	if err != nil {
		said = err.Error()
	}
	if said == f.said || errors.Is(err, context.Canceled) {
		return
	}
	f.said = said
	m := message{feed: f, what: answered}
	if err != nil {
		m.what, m.err = erred, err
	}
	f.tellLoop(m)
}

func (f *feed) tellLoop(m message) {
	m.feed, m.at = f, time.Now()
	f.send(m)
}

// arrive converts what arrives.
func (f *feed) arrive(from runtime.Object) (*object, bool) {
	now := time.Now()
	f.arrived.Store(now.UnixNano())
	o, ok := f.convert(from)
	o.seen = now
	return o, ok
}

// label is that of the metrics.
func (f *feed) label() string {
	if f.kind == nil {
		return f.resource.Resource
	}
	return f.kind.Name
}

// name tells it from all others: several kinds may come of one resource.
func (f *feed) name() string { return f.label() + " " + f.scope.String() }

// note takes in what a message says of the feed itself.
func (f *feed) note(m message) {
	switch m.what {
	case answered:
		if !f.doubts {
			f.err = nil
		}
	case erred, doubted:
		if f.err == nil {
			f.since = m.at
		}
		f.err, f.doubts = m.err, m.what == doubted
	case replaced:
		f.synced, f.err, f.doubts = true, nil, false
	}
}

// definition is the name of that of a custom resource; else empty.
func (f *feed) definition() string {
	if f.kind == nil || !isCustom(f.kind) || f.resource.Group != f.kind.Group {
		return ""
	}
	return f.resource.String()
}

// store is where a Reflector puts what it reads.
type store struct{ *feed }

// Add implements cache.ReflectorStore.
func (s store) Add(o any) error { s.put(o); return nil }

// Update implements cache.ReflectorStore.
func (s store) Update(o any) error { s.put(o); return nil }

func (s store) put(o any) {
	s.tellLoop(message{what: put, objects: []*object{o.(*object)}})
}

// Delete implements cache.ReflectorStore.
func (s store) Delete(o any) error {
	s.tellLoop(message{what: removed, gone: o.(*object).key})
	return nil
}

// Replace implements cache.ReflectorStore. It refuses a list that is not to be
// believed yet: the Reflector then lists again.
func (s store) Replace(all []any, _ string) error {
	if err := s.doubt.judge(len(all), int(s.held.Load()), time.Now(), s.limits.doubt); err != nil {
		s.tellLoop(message{what: doubted, err: err})
		return err
	}
	objects := make([]*object, len(all))
	for i, o := range all {
		objects[i] = o.(*object)
	}
	s.said = ""
	s.tellLoop(message{what: replaced, objects: objects})
	return nil
}

// Resync implements cache.ReflectorStore; it is never asked for.
func (s store) Resync() error { return nil }

// doubt decides whether a list is believed.
type doubt struct {
	since time.Time // when the first was that is not; zero: none is doubted
}

// few objects may be lost at once without a doubt, unless all are.
const few = 10

// judge is an error if a list of n objects has lost most of those that there
// were, and no other has said so some time ago.
func (d *doubt) judge(n, were int, now time.Time, settle time.Duration) error {
	lost := n == 0 && were > 0 || were >= few && 2*n < were
	switch {
	case !lost:
	case d.since.IsZero():
		d.since = now
		fallthrough
	case now.Sub(d.since) < settle:
		return fmt.Errorf("the API server lists %d objects where there were %d", n, were)
	}
	d.since = time.Time{}
	return nil
}

// stream is a watch whose objects are converted, and that ends when nothing has
// come for too long.
type stream struct {
	in   watch.Interface
	feed *feed
	out  chan watch.Event
	stop func()
	end  context.CancelFunc // of the request
	over chan struct{}      // nobody reads any more
	done chan struct{}      // run has returned
}

func newStream(in watch.Interface, f *feed, end context.CancelFunc) *stream {
	s := &stream{in: in, feed: f, end: end, out: make(chan watch.Event), over: make(chan struct{}), done: make(chan struct{})}
	s.stop = sync.OnceFunc(func() { close(s.over) })
	go s.run()
	return s
}

// ResultChan implements watch.Interface.
func (s *stream) ResultChan() <-chan watch.Event { return s.out }

// Stop implements watch.Interface; the stream has ended when it returns.
func (s *stream) Stop() {
	s.stop()
	<-s.done
}

func (s *stream) run() {
	defer close(s.done)
	defer close(s.out)
	defer s.end()
	defer s.in.Stop()
	idle := time.NewTimer(s.feed.limits.idle)
	defer idle.Stop()
	for {
		select {
		case e, ok := <-s.in.ResultChan():
			if !ok {
				return
			}
			idle.Reset(s.feed.limits.idle)
			if e, ok = s.convert(e); !ok {
				continue
			}
			select {
			case s.out <- e:
			case <-s.over:
				return
			}
		case <-idle.C:
			return
		case <-s.over:
			return
		}
	}
}

// convert is not ok for an event that says nothing.
func (s *stream) convert(e watch.Event) (watch.Event, bool) {
	if !slices.Contains([]watch.EventType{watch.Added, watch.Modified, watch.Deleted}, e.Type) {
		s.feed.arrived.Store(time.Now().UnixNano())
		return e, true
	}
	o, ok := s.feed.arrive(e.Object)
	e.Object = o
	if ok || e.Type == watch.Deleted {
		return e, true
	}
	if e.Type == watch.Added {
		return e, false
	}
	e.Type = watch.Deleted
	return e, true
}
