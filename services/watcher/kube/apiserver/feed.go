package apiserver

import (
	"context"
	"errors"
	"fmt"
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

// Scope is what of a resource a feed follows.
type Scope struct {
	Resource  Resource
	Namespace string // empty: all
	Object    string // the one of that name; empty: all
	Fields    string // others that a field selector leaves
	Labels    string // and a label selector
}

// String tells the feeds of one kind apart, and begins with the resource.
func (s Scope) String() string {
	out := s.Resource.String()
	for _, part := range []string{s.Namespace, s.Object} {
		if part != "" {
			out += "/" + part
		}
	}
	return out
}

func (s Scope) fieldSelector() string {
	if s.Object != "" {
		return "metadata.name=" + s.Object
	}
	return s.Fields
}

// Options say what becomes of what a feed reads.
type Options struct {
	// Convert is called for each object on its arrival, from one goroutine.
	Convert index.Converter
	// Send takes the feed's messages in their order. While it blocks, the feed
	// reads no more.
	Send func(Message)
	// Lists and Restarts count lists, and watches begun again.
	Lists, Restarts prometheus.Counter
	Limits          Limits
}

// Limits are times; tests have shorter ones.
type Limits struct {
	// Patience is how long an answer with errors is waited for to pass; Silence
	// is longer, for none at all.
	Patience, Silence time.Duration
	// Probe is the time between two probes of the API server; Down is how long
	// it may answer none.
	Probe, Down time.Duration
	// Idle is how long a watch may bring nothing, not even a bookmark.
	Idle time.Duration
	// Doubt is how long after a list that lost much another one is believed.
	Doubt time.Duration
	// Retry is the first pause of a feed whose list or watch failed, and
	// MaxRetry the longest.
	Retry, MaxRetry time.Duration
}

// DefaultLimits are those of a process.
func DefaultLimits() Limits {
	return Limits{
		Patience: 5 * time.Second, Silence: 30 * time.Second, Probe: 5 * time.Second, Down: 15 * time.Second,
		Idle: 3 * time.Minute, Doubt: 3 * time.Second, Retry: 500 * time.Millisecond, MaxRetry: 10 * time.Second,
	}
}

// Message is what a feed says.
type Message struct {
	Feed    *Feed
	At      time.Time
	What    What
	Objects []*index.Object // Replaced: all; Put: the one
	Gone    index.Key       // Removed
	Err     error           // Erred, Doubted
}

// What a message says.
type What uint8

// What messages say.
const (
	Replaced What = iota + 1 // this is all that the feed holds
	Put                      // an object is new or has changed
	Removed                  // an object is gone
	Answered                 // the API server answered
	Erred                    // it did not, or with an error
	Doubted                  // a list is not believed
)

// Feed follows a resource, in one namespace or in all, and says what it holds.
// Client-go's Reflector does the work: lists streamed or in pages, bookmarks, a
// new list where a watch cannot go on. What goes through is converted on arrival.
type Feed struct {
	Scope
	Kind *kind.Kind // nil: of none
	// Source is what an index knows the feed by.
	Source *index.Feed
	State
	// Held is how many objects there are, and before the first list how many
	// there were before. Who gets the messages keeps it.
	Held atomic.Int64

	reader reader
	o      Options

	// owned by the Reflector
	doubt   doubt
	told    string // the error that was told last
	watches int

	begun   time.Time
	arrived atomic.Int64 // when something came last, in nanoseconds since begun
}

// State is what is known of a feed by its messages; whoever gets them owns it.
type State struct {
	UID     string    // of the definition of its resource, where it is known
	Synced  bool      // a list was taken in
	Frozen  string    // why nothing of it is believed any more; empty: it is
	Err     error     // of the last try; nil: it went well
	Since   time.Time // when Err was told first
	Doubts  bool      // Err is about a list that is not believed
	Checked time.Time // when its definition was asked for last
}

// Note takes in what a message says of the feed itself.
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

// NewFeed returns a feed of what comes to objects of a kind, or of none.
func (c *Client) NewFeed(k *kind.Kind, s Scope, o Options) *Feed {
	f := &Feed{Scope: s, Kind: k, reader: c.reader(s.Resource.GroupVersionResource, s.Namespace), o: o, begun: time.Now()}
	f.Source = &index.Feed{Name: f.label() + " " + s.String(), Resource: s.Resource.String()}
	return f
}

// Name tells the feed from all others: several kinds may come of one resource.
func (f *Feed) Name() string { return f.Source.Name }

func (f *Feed) label() string {
	if f.Kind == nil {
		return f.Scope.Resource.Resource
	}
	return f.Kind.Name
}

// Definition is the name of that of a custom resource; else empty.
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
	// A list that is not the first one it would read in one piece, to have it
	// from a cache; ours come from the database anyway.
	r.WatchListPageSize = pageSize
	r.RunWithContext(ctx)
}

// pageSize is how many objects a page of a list has.
const pageSize = 500

// listTimeout is how long a page may take: longer than the API server itself
// gives it.
const listTimeout = 90 * time.Second

// list reads a page. It is always consistent: never what a cache of the API
// server held some time ago.
func (f *Feed) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	o.ResourceVersion, o.ResourceVersionMatch = "", ""
	o.FieldSelector, o.LabelSelector = f.fieldSelector(), f.Labels
	f.o.Lists.Inc()
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	l, err := f.reader.list(ctx, o)
	f.answer(err)
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
	err = meta.EachListItemWithAlloc(l, func(from runtime.Object) error {
		if converted, ok := f.arrive(from); ok {
			out.Items = append(out.Items, converted)
		}
		return nil
	})
	return out, err
}

// watch begins a watch; with SendInitialEvents it is a list that goes on.
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
	w, err := f.reader.watch(ctx, o)
	if !opening.Stop() && err != nil {
		err = fmt.Errorf("no answer for %s", f.o.Limits.Silence)
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
		f.answer(err)
		return nil, err
	case !streams:
		f.answer(nil)
	}
	return newStream(w, f, cancel), nil
}

// answer tells how the API server answered, if that is news.
func (f *Feed) answer(err error) {
	f.hear(time.Now())
	said := ""
	if err != nil {
		said = err.Error()
		f.doubt = doubt{} // what was said before the error does not count as said twice
	}
	if said == f.told || errors.Is(err, context.Canceled) {
		return
	}
	f.told = said
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

// arrive converts what arrives.
func (f *Feed) arrive(from runtime.Object) (*index.Object, bool) {
	now := time.Now()
	f.hear(now)
	o, ok := f.o.Convert(from)
	o.Seen = now
	return o, ok
}

func (f *Feed) hear(now time.Time) { f.arrived.Store(int64(now.Sub(f.begun))) }

// Heard is when something came last, an answer or an object; before, when the
// feed began. A clock that is set meanwhile does not move it.
func (f *Feed) Heard() time.Time { return f.begun.Add(time.Duration(f.arrived.Load())) }

// store is where a Reflector puts what it reads.
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

// Replace implements cache.ReflectorStore. It refuses a list that is not to be
// believed yet: the Reflector then lists again.
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
