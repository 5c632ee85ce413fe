package bus

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Limits of the key requests that a watcher answers (KEY-3).
const (
	// keysAtOnce is how many it answers at a time, and keysOfOne how many of them may be
	// of one frontend: one whose keys are slow to read delays no other.
	keysAtOnce = 64
	keysOfOne  = 16
	// keysWaiting is how many wait for their turn, and keysWaitingOfOne those of one
	// frontend. It sends 16 at a time.
	keysWaiting      = 4096
	keysWaitingOfOne = 64
	// keyTurn is how long a request waits for its turn. The frontend waits 5 s for the
	// answer, of which reading the key takes 3 s at most.
	keyTurn = 1500 * time.Millisecond
)

// turns decides which request for a key is answered next: the frontends take turns.
type turns struct {
	// answer is called for each request in a goroutine of its own. It is late if the
	// request has waited too long.
	answer func(m *nats.Msg, late bool)

	mu      sync.Mutex
	idle    sync.WaitGroup
	running int
	waiting int
	lines   map[string]*line
	order   []string // the frontends whose requests wait; the first is next
}

// line is what a frontend has asked for.
type line struct {
	running int
	waiting []arrived
}

type arrived struct {
	*nats.Msg
	at time.Time
}

// put takes a request. It reports false if too many wait.
func (t *turns) put(m *nats.Msg) bool {
	from := connectionOf(m.Reply)
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lines[from]
	if t.waiting >= keysWaiting || l != nil && len(l.waiting) >= keysWaitingOfOne {
		return false
	}
	if l == nil {
		if t.lines == nil {
			t.lines = map[string]*line{}
		}
		l = &line{}
		t.lines[from] = l
	}
	if len(l.waiting) == 0 {
		t.order = append(t.order, from)
	}
	l.waiting = append(l.waiting, arrived{m, time.Now()})
	t.waiting++
	t.next()
	return true
}

// next begins to answer what may be answered. The caller holds mu.
func (t *turns) next() {
	for t.running < keysAtOnce {
		i := slices.IndexFunc(t.order, func(from string) bool { return t.lines[from].running < keysOfOne })
		if i < 0 {
			return
		}
		from := t.order[i]
		t.order = slices.Delete(t.order, i, i+1)
		l := t.lines[from]
		m := l.waiting[0]
		l.waiting = slices.Delete(l.waiting, 0, 1)
		if len(l.waiting) > 0 {
			t.order = append(t.order, from)
		}
		t.waiting--
		t.running++
		l.running++
		t.idle.Go(func() {
			defer t.done(from)
			t.answer(m.Msg, time.Since(m.at) > keyTurn)
		})
	}
}

// done gives the turn of a request to the next one.
func (t *turns) done(from string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running--
	l := t.lines[from]
	if l.running--; l.running == 0 && len(l.waiting) == 0 {
		delete(t.lines, from)
	}
	t.next()
}

// stop drops what waits, and returns when no request is being answered.
func (t *turns) stop() {
	t.mu.Lock()
	for _, from := range t.order {
		t.lines[from].waiting = nil
	}
	t.order, t.waiting = nil, 0
	t.mu.Unlock()
	t.idle.Wait()
}

// connectionOf returns the prefix that the inboxes of one connection share. It stands for
// the frontend, because all frontends have one xkey.
func connectionOf(inbox string) string {
	if i := strings.LastIndexByte(inbox, '.'); i >= 0 {
		return inbox[:i]
	}
	return inbox
}
