package apiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"k8s.io/apimachinery/pkg/api/meta"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/watcher/kube/index"
)

// Scope selects objects of a resource.
type Scope struct {
	Resource  Resource
	Namespace string // empty means all
	Object    string // name of a single object; empty means all
	Fields    string // field selector; unused with Object
	Labels    string // label selector
}

// String returns a name that is unique among the feeds of a kind. It begins with
// the resource.
func (s Scope) String() string {
	out := s.Resource.String()
	for _, part := range []string{s.Namespace, s.Object} {
		if part != "" {
			out += "/" + part
		}
	}
	return out
}

// Label returns the name of a kind or, if it is nil, of the resource.
func (s Scope) Label(k *kind.Kind) string {
	if k == nil {
		return s.Resource.Resource
	}
	return k.Name
}

func (s Scope) fieldSelector() string {
	if s.Object != "" {
		return "metadata.name=" + s.Object
	}
	return s.Fields
}

// Options configure a feed.
type Options struct {
	// Convert is called for each object when it arrives, from one goroutine.
	Convert index.Converter
	// Send receives the feed's messages in order. While it blocks, the feed stops
	// reading.
	Send func(Message)
	// Lists and Restarts count lists and restarted watches.
	Lists, Restarts prometheus.Counter
	Limits          Limits
}

// Limits are durations, which tests shorten.
type Limits struct {
	// Patience is the time for which errors are expected to pass; Silence is the
	// longer time for a missing answer.
	Patience, Silence time.Duration
	// Probe is the time between two probes of the API server. After Down without an
	// answer it counts as down.
	Probe, Down time.Duration
	// Idle ends a watch without any event, even a bookmark.
	Idle time.Duration
	// Doubt is the time after a suspect list until an equal one is accepted.
	Doubt time.Duration
	// Retry is the first pause after a failed list or watch, and MaxRetry the
	// longest.
	Retry, MaxRetry time.Duration
}

// DefaultLimits returns the limits for production.
func DefaultLimits() Limits {
	return Limits{
		Patience: 5 * time.Second, Silence: 30 * time.Second, Probe: 5 * time.Second, Down: 15 * time.Second,
		Idle: 3 * time.Minute, Doubt: 3 * time.Second, Retry: 500 * time.Millisecond, MaxRetry: 10 * time.Second,
	}
}

// Message reports an event of a feed.
type Message struct {
	Feed    *Feed
	At      time.Time
	What    What
	Objects []*index.Object // Replaced: all; Put: the one
	Gone    index.Key       // Removed
	Err     error           // Erred, Doubted
}

// What is the type of a message.
type What uint8

// Types of messages.
const (
	Replaced What = iota + 1 // all objects of the feed
	Put                      // an object is new or has changed
	Removed                  // an object is gone
	Answered                 // the API server answered
	Erred                    // it answered with an error, or not at all
	Doubted                  // a list is suspect
)

// Feed follows a resource, in one namespace or in all, and reports its objects.
// Client-go's Reflector does the work: streamed or paged lists, bookmarks, and a
// new list if a watch cannot be resumed. Objects are converted when they arrive.
type Feed struct {
	Scope
	Kind *kind.Kind // nil if the objects belong to no kind
	// Source identifies the feed in an index.
	Source *index.Feed
	State
	// Held is the number of objects, or before the first list the number in the
	// previous run. The receiver of the messages sets it.
	Held atomic.Int64
	// End ends Run. The caller of Run may set it.
	End context.CancelFunc

	api *cache.ListWatch
	o   Options

	// owned by the Reflector
	doubt   doubt
	told    string // the last error that was sent
	watches int

	begun   time.Time
	arrived atomic.Int64 // time of the last arrival, in nanoseconds since begun
}

// State is the state of a feed according to its messages. The receiver of the
// messages owns it.
type State struct {
	UID     string    // of the resource's definition, if known
	Synced  bool      // a list was accepted
	Frozen  string    // why the feed is frozen; empty if it is not
	Err     error     // of the last try; nil if it succeeded
	Since   time.Time // when Err first occurred
	Doubts  bool      // Err is about a suspect list
	Checked time.Time // when the definition was last read
}

// Note updates the state from a message.
func (s *State) Note(m Message) {
	switch m.What {
	case Answered:
		if !s.Doubts {
			s.Err = nil
		}
	case Erred, Doubted:
		if s.Err == nil {
			s.Since = m.At
		}
		s.Err, s.Doubts = m.Err, m.What == Doubted
	case Replaced:
		s.Synced, s.Err, s.Doubts = true, nil, false
	}
}

// NewFeed returns a feed for objects of a kind, which may be nil.
func (c *Client) NewFeed(k *kind.Kind, s Scope, o Options) *Feed {
	f := &Feed{Scope: s, Kind: k, api: c.requests(s.Resource.GroupVersionResource, s.Namespace), o: o, begun: time.Now()}
	f.Source = &index.Feed{Name: s.Label(k) + " " + s.String(), Resource: s.Resource.String()}
	return f
}

// Name is unique. It has the kind because several kinds may share a resource.
func (f *Feed) Name() string { return f.Source.Name }

// Definition returns the name of a custom resource's definition, else "".
func (f *Feed) Definition() string {
	if f.Kind == nil || !IsCustom(f.Kind) || f.Scope.Resource.Group != f.Kind.Group {
		return ""
	}
	return f.Scope.Resource.String()
}

// Run follows the resource until ctx is done.
func (f *Feed) Run(ctx context.Context) {
	l := f.o.Limits
	lw := &cache.ListWatch{ListWithContextFunc: f.list, WatchFuncWithContext: f.watch}
	r := cache.NewReflectorWithOptions(lw, nil, store{f}, cache.ReflectorOptions{
		Name: f.Name(), TypeDescription: f.Scope.Resource.String(),
		Backoff: &wait.Backoff{Duration: l.Retry, Cap: l.MaxRetry, Steps: 10, Factor: 2, Jitter: .5},
	})
	// Without it, the Reflector reads later lists in one piece to get them from the
	// API server's cache. Our lists are consistent and never come from the cache.
	r.WatchListPageSize = pageSize
	r.RunWithContext(ctx)
}

// pageSize is the number of objects in a page of a list.
const pageSize = 500

// listTimeout limits the time for a page. It is longer than the API server's own
// limit.
const listTimeout = 90 * time.Second

// list reads a page of a consistent list, never stale data of the API server's
// cache.
func (f *Feed) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	o.ResourceVersion, o.ResourceVersionMatch = "", ""
	o.FieldSelector, o.LabelSelector = f.fieldSelector(), f.Labels
	f.o.Lists.Inc()
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	l, err := f.api.ListWithContext(ctx, o)
	f.answer(err)
	if err != nil {
		return nil, err
	}
	m := l.(metav1.ListInterface)
	out := &metainternal.List{ListMeta: metav1.ListMeta{
		ResourceVersion: m.GetResourceVersion(), Continue: m.GetContinue(), RemainingItemCount: m.GetRemainingItemCount(),
	}}
	err = meta.EachListItemWithAlloc(l, func(from runtime.Object) error {
		if converted, ok := f.arrive(from); ok {
			out.Items = append(out.Items, converted)
		}
		return nil
	})
	return out, err
}

// watch starts a watch. With SendInitialEvents it begins with a list.
func (f *Feed) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	streams := o.SendInitialEvents != nil
	if streams {
		o.ResourceVersion = "" // consistent, as in list
		f.o.Lists.Inc()
	} else if f.watches++; f.watches > 1 {
		f.o.Restarts.Inc()
	}
	o.FieldSelector, o.LabelSelector = f.fieldSelector(), f.Labels
	ctx, cancel := context.WithCancel(ctx)
	opening := time.AfterFunc(f.o.Limits.Silence, cancel)
	w, err := f.api.WatchWithContext(ctx, o)
	if !opening.Stop() && err != nil {
		err = fmt.Errorf("no answer for %s", f.o.Limits.Silence)
	}
	if err != nil {
		cancel()
	}
	switch {
	case streams && err != nil:
		// The Reflector lists next, which reports an error. The cause is hidden
		// because the Reflector waits after some errors without heeding ctx.
		return nil, fmt.Errorf("stream: %v", err) //nolint:errorlint // see above
	case err != nil:
		f.answer(err)
		return nil, err
	case !streams:
		f.answer(nil)
	}
	return newStream(ctx, cancel, w, f), nil
}

// answer sends the result of a request if it differs from the previous one.
func (f *Feed) answer(err error) {
	f.hear(time.Now())
	text := ""
	if err != nil {
		text = err.Error()
		f.doubt = doubt{} // a list from before the error does not confirm a later one
	}
	if text == f.told || errors.Is(err, context.Canceled) {
		return
	}
	f.told = text
	if err != nil {
		f.tell(Message{What: Erred, Err: err})
	} else {
		f.tell(Message{What: Answered})
	}
}

func (f *Feed) tell(m Message) {
	m.Feed, m.At = f, time.Now()
	f.o.Send(m)
}

// arrive converts an object.
func (f *Feed) arrive(from runtime.Object) (*index.Object, bool) {
	now := time.Now()
	f.hear(now)
	o, ok := f.o.Convert(from)
	o.Seen = now
	return o, ok
}

func (f *Feed) hear(now time.Time) { f.arrived.Store(int64(now.Sub(f.begun))) }

// Heard returns the time of the last answer or object, or of the feed's start. It
// uses the monotonic clock.
func (f *Feed) Heard() time.Time { return f.begun.Add(time.Duration(f.arrived.Load())) }

// store receives the objects of a Reflector.
type store struct{ *Feed }

// Add implements cache.ReflectorStore.
func (s store) Add(o any) error { return s.Update(o) }

// Update implements cache.ReflectorStore.
func (s store) Update(o any) error {
	s.tell(Message{What: Put, Objects: []*index.Object{o.(*index.Object)}})
	return nil
}

// Delete implements cache.ReflectorStore.
func (s store) Delete(o any) error {
	s.tell(Message{What: Removed, Gone: o.(*index.Object).Key})
	return nil
}

// Replace implements cache.ReflectorStore. It rejects a suspect list; the
// Reflector then lists again.
func (s store) Replace(all []any, _ string) error {
	if err := s.doubt.judge(len(all), int(s.Held.Load()), time.Now(), s.o.Limits.Doubt); err != nil {
		s.tell(Message{What: Doubted, Err: err})
		return err
	}
	objects := make([]*index.Object, len(all))
	for i, o := range all {
		objects[i] = o.(*index.Object)
	}
	s.told = ""
	s.tell(Message{What: Replaced, Objects: objects})
	return nil
}

// Resync implements cache.ReflectorStore; it is never called.
func (s store) Resync() error { return nil }

// doubt decides whether to accept a list.
type doubt struct {
	since time.Time // of the first suspect list; zero if there is none
}

// few is the size up to which a feed may lose objects, but not all of them, without
// a doubt.
const few = 10

// judge returns an error if a list of n objects has lost most of the previous
// objects and no suspect list came long enough before.
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

// stream is a watch that converts its objects.
type stream struct {
	watch.Interface
	end context.CancelFunc // of the request
}

// newStream returns the stream of in, whose request ends with ctx, by end. A long
// silence ends it, too.
func newStream(ctx context.Context, end context.CancelFunc, in watch.Interface, f *Feed) stream {
	idle := time.AfterFunc(f.o.Limits.Idle, end)
	out := watch.Filter(in, func(e watch.Event) (watch.Event, bool) {
		idle.Reset(f.o.Limits.Idle)
		e, ok := f.convert(e)
		// After the end nothing may come: the event before it may be lost.
		return e, ok && ctx.Err() == nil
	})
	context.AfterFunc(ctx, func() {
		idle.Stop()
		in.Stop()
		for range out.ResultChan() { // drops what nothing reads any more
		}
	})
	return stream{out, end}
}

// Stop implements watch.Interface; the stream has ended when it returns.
func (s stream) Stop() {
	s.end()
	for range s.ResultChan() {
	}
}

// convert converts an event. ok is false if the event is to be dropped.
func (f *Feed) convert(e watch.Event) (watch.Event, bool) {
	if !slices.Contains([]watch.EventType{watch.Added, watch.Modified, watch.Deleted}, e.Type) {
		f.hear(time.Now())
		return e, true
	}
	o, ok := f.arrive(e.Object)
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
