// Package watch keeps in memory what the pages of the console show again and again: the newest
// reports of the fleet and what follows from them, and the contents of versions that were read
// last. A page that needs nothing else costs no request to another process.
//
// The past is read from the console's own copy, once that is whole, and before from the bus.
// Whole reports are asked for only while somebody looks.
package watch

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/console/mirror"
	"meshlog.dev/services/console/record"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/history"
	"meshlog.dev/services/operate/inspect"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// Now is the mesh as its processes reported it last. It is immutable.
type Now struct {
	At       time.Time // when the reports came; zero: none has come yet
	Status   *inspect.StatusView
	Proxies  []inspect.ProxyView // streams, sorted by proxy
	Sources  []command.Source
	Problems []command.Diagnostic
	Reports  *bus.Reports // with the proxies of frontends
	Head     store.Stored // the newest version; zero: nothing was published
	// Err is why the reports are not newer than At; nil: nothing is wrong.
	Err error
}

// Applied returns how many streams have applied a version or a newer one, and how many there
// are.
func (n *Now) Applied(v ident.Position) (applied, streams uint32) {
	if n.Reports == nil {
		return 0, 0
	}
	for _, f := range n.Reports.Frontends {
		applied, streams = applied+command.Applied(f, v), streams+f.GetStreams()
	}
	return min(applied, streams), streams
}

// Watch is what the console knows of a mesh, with or without a bus. It is safe for concurrent
// use.
type Watch struct {
	// Mirror is the console's copy; nil: it has none.
	Mirror *mirror.Mirror
	// Recorder records; nil: nothing is recorded.
	Recorder *record.Recorder

	log    *slog.Logger
	now    atomic.Pointer[Now]
	hurry  chan struct{}
	looked atomic.Int64  // when somebody looked last, in nanoseconds since 1970
	asked  atomic.Uint64 // questions for reports

	mu       sync.Mutex
	contents []content // the one that was used last is last
	viewers  map[chan struct{}]struct{}
	nodes    map[string]bool // ids of proxies whose nodes the mirror has
}

// content is the content of a version, and where it was read.
type content struct {
	*history.Content
	from string
}

// New returns a Watch that knows nothing yet.
func New(m *mirror.Mirror, r *record.Recorder, log *slog.Logger) *Watch {
	w := &Watch{Mirror: m, Recorder: r, log: log, hurry: make(chan struct{}, 1), viewers: map[chan struct{}]struct{}{}}
	w.now.Store(&Now{Err: errors.New("no process has reported yet")})
	if m != nil {
		m.OnVersion = func(v *store.Manifest) {
			if r != nil {
				r.Published(v)
			}
			w.wake()
		}
	}
	return w
}

// keptContents is how many contents stay in memory: that of the newest version, and of those
// that a few people look at.
const keptContents = 8

// maxViewers is how many pages may listen for changes.
const maxViewers = 256

// ErrManyViewers says that no further page can listen for changes.
var ErrManyViewers = errors.New("too many pages listen for changes")

// Now returns the newest reports.
func (w *Watch) Now() *Now { return w.now.Load() }

// Asked returns how often processes were asked for reports.
func (w *Watch) Asked() uint64 { return w.asked.Load() }

// lookTime is how long somebody who has got a page counts as looking.
const lookTime = 30 * time.Second

// watched reports whether somebody looks: a page listens, or was made lately.
func (w *Watch) watched() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.viewers) > 0 || time.Since(time.Unix(0, w.looked.Load())) < lookTime
}

// freshWait is how long the first page after a while waits for new reports.
const freshWait = 2 * time.Second

// Look returns the newest reports for somebody who looks. It waits for new ones if nobody has
// looked for a while.
func (w *Watch) Look(ctx context.Context) *Now {
	w.looked.Store(time.Now().UnixNano())
	n := w.Now()
	if n.Err != nil || time.Since(n.At) < 2*askEvery {
		return n
	}
	changed, end, err := w.Listen()
	if err != nil {
		return n
	}
	defer end()
	w.wake()
	wait := time.NewTimer(freshWait)
	defer wait.Stop()
	select {
	case <-changed:
	case <-wait.C:
	case <-ctx.Done():
	}
	return w.Now()
}

// wake makes Run ask soon, if somebody looks.
func (w *Watch) wake() {
	select {
	case w.hurry <- struct{}{}:
	default:
	}
}

// set makes n the newest reports, and tells the viewers.
func (w *Watch) set(n *Now) {
	w.now.Store(n)
	w.mu.Lock()
	defer w.mu.Unlock()
	for v := range w.viewers {
		select {
		case v <- struct{}{}:
		default: // it has not read the one before
		}
	}
}

// Listen returns a channel that gets a value when Now changes. The caller calls end.
func (w *Watch) Listen() (changed <-chan struct{}, end func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.viewers) == maxViewers {
		return nil, nil, ErrManyViewers
	}
	v := make(chan struct{}, 1)
	w.viewers[v] = struct{}{}
	return v, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.viewers, v)
	}, nil
}

// Mesh is the mesh that pages show: what the console knows of it, and where its past is read.
type Mesh struct {
	*Watch
	Target *command.Target
	Past   *past.Past
}

// Content returns the content of a version, from memory if it was read lately.
func (m *Mesh) Content(ctx context.Context, at command.Moment) (*history.Content, error) {
	if c := m.kept(at.Version); c != nil {
		return c, nil
	}
	c, err := history.Open(ctx, m.Past, at)
	if err == nil {
		m.keep(c)
	}
	return c, err
}

func (m *Mesh) kept(v ident.Position) *history.Content {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.contents, func(c content) bool { return c.from == m.Past.Name && c.Moment().Version == v })
	if i < 0 {
		return nil
	}
	c := m.contents[i]
	m.contents = append(slices.Delete(m.contents, i, i+1), c)
	return c.Content
}

func (m *Mesh) keep(c *history.Content) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.contents = append(m.contents, content{c, m.Past.Name})
	if len(m.contents) > keptContents {
		m.contents = slices.Delete(m.contents, 0, 1)
	}
}
