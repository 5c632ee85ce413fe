// Package watch keeps in memory what the pages of the console show again and again: the newest
// reports of the fleet and what follows from them, and the contents of versions that were read
// last. A page that needs nothing else costs no request to another process.
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
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
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

// Mesh is the mesh that the console shows. It is safe for concurrent use.
type Mesh struct {
	Target *command.Target
	Past   *past.Past
	log    *slog.Logger
	events command.EventLog
	now    atomic.Pointer[Now]
	hurry  chan struct{}

	mu       sync.Mutex
	contents []*history.Content // the one that was used last is last
	viewers  map[chan struct{}]struct{}
}

// keptContents is how many contents stay in memory: that of the newest version, and of those
// that a few people look at.
const keptContents = 8

// maxViewers is how many pages may listen for changes.
const maxViewers = 256

// ErrManyViewers says that no further page can listen for changes.
var ErrManyViewers = errors.New("too many pages listen for changes")

// Open opens the mesh that a connection reaches. It fails while a builder has not made the
// streams yet. The caller closes target, and the connection.
func Open(ctx context.Context, target *command.Target, log *slog.Logger) (*Mesh, error) {
	events, err := target.Log(ctx)
	if err != nil {
		return nil, err
	}
	chain, err := target.Chain(ctx)
	if err != nil {
		return nil, err
	}
	m := &Mesh{
		Target: target, log: log, events: events, hurry: make(chan struct{}, 1), viewers: map[chan struct{}]struct{}{},
		Past: &past.Past{Name: "the mesh", Log: events, Versions: chain, Blobs: chain, Live: true},
	}
	m.now.Store(&Now{Err: errors.New("no process has reported yet")})
	return m, nil
}

// Now returns the newest reports.
func (m *Mesh) Now() *Now { return m.now.Load() }

// The pauses between two questions for reports: without a reason, and after a new version.
const (
	askEvery = 5 * time.Second
	askSoon  = 500 * time.Millisecond
)

// Run asks for reports until ctx is done: at intervals, and soon after a new version.
func (m *Mesh) Run(ctx context.Context) error {
	fleet, err := m.Target.Fleet()
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := fleet.Ticks(ctx, m.tick); err != nil && ctx.Err() == nil {
			m.log.Warn("the console hears of no new versions, and looks at intervals", "error", err)
		}
	}()
	defer func() { <-ended }()
	for {
		m.look(ctx)
		pause := time.NewTimer(askEvery)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-pause.C:
		case <-m.hurry:
			soon := time.NewTimer(askSoon)
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-soon.C:
			}
		}
	}
}

// tick makes Run ask soon if the leader tells of a newer version.
func (m *Mesh) tick(t *reportv1.Tick) {
	if m.Now().Head.Version() == store.VersionOf(t.GetHead()) && m.Now().Err == nil {
		return
	}
	select {
	case m.hurry <- struct{}{}:
	default:
	}
}

// look asks once, and tells the viewers.
func (m *Mesh) look(ctx context.Context) {
	last := m.Now()
	now, err := m.ask(ctx, last.Head)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		m.log.Debug("the console shows older reports", "error", err)
		kept := *last
		kept.Err = err
		now = &kept
	}
	m.now.Store(now)
	m.mu.Lock()
	defer m.mu.Unlock()
	for v := range m.viewers {
		select {
		case v <- struct{}{}:
		default: // it has not read the one before
		}
	}
}

func (m *Mesh) ask(ctx context.Context, head store.Stored) (*Now, error) {
	s := &command.Sources{Log: m.events, Chain: m.Past.Versions}
	problems, err := m.Target.Reports(ctx, bus.Diagnostics)
	if err != nil {
		return nil, err
	}
	if s.Reports, err = m.Target.Reports(ctx, bus.Proxies); err != nil {
		return nil, err
	}
	if newest, err := command.Head(ctx, s.Chain); err != nil {
		return nil, err
	} else if newest.Manifest == nil {
		return nil, errors.New("nothing has been published yet")
	} else if newest.Version != head.Version() || head.Manifest == nil {
		if head, err = s.Chain.Fetch(ctx, newest.Version); err != nil {
			return nil, err
		}
	}
	s.Head = head
	n := &Now{At: time.Now(), Reports: s.Reports, Head: head}
	if n.Status, err = inspect.StatusOf(ctx, s, s.Reports, problems, n.At); err != nil {
		return nil, err
	}
	if n.Sources, err = s.Views(ctx); err != nil {
		return nil, err
	}
	n.Problems = inspect.DiagnosticsOf(problems, command.Diagnostics(head.Manifest.GetDiagnostics(), ""))
	n.Proxies, err = inspect.Proxies(s.Reports, m.Past.Versions.History(ctx), n.At)
	return n, err
}

// Listen returns a channel that gets a value when Now changes. The caller calls end.
func (m *Mesh) Listen() (changed <-chan struct{}, end func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.viewers) == maxViewers {
		return nil, nil, ErrManyViewers
	}
	v := make(chan struct{}, 1)
	m.viewers[v] = struct{}{}
	return v, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.viewers, v)
	}, nil
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
	i := slices.IndexFunc(m.contents, func(c *history.Content) bool { return c.Moment().Version == v })
	if i < 0 {
		return nil
	}
	c := m.contents[i]
	m.contents = append(slices.Delete(m.contents, i, i+1), c)
	return c
}

func (m *Mesh) keep(c *history.Content) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.contents = append(m.contents, c)
	if len(m.contents) > keptContents {
		m.contents = slices.Delete(m.contents, 0, 1)
	}
}
