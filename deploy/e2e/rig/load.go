package rig

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Tally counts the results of a number of requests.
type Tally struct {
	Sent     int
	Backends map[string]int // answers with code 200, by backend
	Statuses map[int]int    // other answers, by code
	Failed   int            // requests without an answer
	LastErr  error          // error of the last of those
}

// Share returns the part of all requests that a backend answered, in percent.
func (t Tally) Share(backend string) float64 {
	if t.Sent == 0 {
		return 0
	}
	return 100 * float64(t.Backends[backend]) / float64(t.Sent)
}

// Err returns nil if every request was answered with code 200.
func (t Tally) Err() error {
	var bad []string
	for _, code := range slices.Sorted(maps.Keys(t.Statuses)) {
		bad = append(bad, fmt.Sprintf("%d answered with %d", t.Statuses[code], code))
	}
	if t.Failed > 0 {
		bad = append(bad, fmt.Sprintf("%d without an answer (%v)", t.Failed, t.LastErr))
	}
	if t.Sent == 0 {
		bad = append(bad, "none was sent")
	}
	if bad == nil {
		return nil
	}
	return fmt.Errorf("of %d requests: %s", t.Sent, strings.Join(bad, ", "))
}

func (t *Tally) add(backend string, status int, err error) {
	t.Sent++
	switch {
	case err != nil:
		t.Failed++
		t.LastErr = err
	case status == http.StatusOK:
		t.Backends[backend]++
	default:
		t.Statuses[status]++
	}
}

func newTally() Tally { return Tally{Backends: map[string]int{}, Statuses: map[int]int{}} }

// RequestTimeout bounds a request.
const RequestTimeout = 5 * time.Second

func newClient(conns int) *http.Client {
	return &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: conns, MaxConnsPerHost: conns},
		Timeout:   RequestTimeout,
	}
}

// Call makes one request. It returns the name of the backend that answered, and
// the code, or the reason why no backend answered.
type Call func(context.Context) (backend string, status int, err error)

// Send sends n requests, one after the other, over one kept connection.
func Send(ctx context.Context, url string, n int) Tally {
	one, end := To(url, "", 1)
	defer end()
	return SendCalls(ctx, n, one)
}

// To returns a Call that requests a URL over at most conns kept connections, and a function
// that closes them. The requests have a Host header of host, or the URL's if it is empty.
func To(url, host string, conns int) (one Call, end func()) {
	client := newClient(conns)
	return func(ctx context.Context) (string, int, error) { return ask(ctx, client, url, host) }, client.CloseIdleConnections
}

// SendCalls makes n calls, one after the other.
func SendCalls(ctx context.Context, n int, one Call) Tally {
	t := newTally()
	for range n {
		if ctx.Err() != nil {
			break
		}
		t.add(one(ctx))
	}
	return t
}

// Load is a steady stream of requests.
type Load struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	tally Tally
}

// pause separates two requests of one connection of a Load.
const pause = 2 * time.Millisecond

// StartLoad sends requests over conns kept connections until Stop, or until ctx
// ends. ctx must have a deadline.
func StartLoad(ctx context.Context, url string, conns int) (*Load, error) {
	one, end := To(url, "", conns)
	return StartCalls(ctx, url, conns, one, end)
}

// StartLoads is StartLoad with requests to several URLs in turn.
func StartLoads(ctx context.Context, conns int, urls ...string) (*Load, error) {
	client := newClient(conns)
	var turn atomic.Uint64
	one := func(ctx context.Context) (string, int, error) {
		return ask(ctx, client, urls[turn.Add(1)%uint64(len(urls))], "")
	}
	return StartCalls(ctx, urls[0], conns, one, client.CloseIdleConnections)
}

// StartCalls is StartLoad for any calls: each of n goroutines makes one call
// after the other. It calls end when the load stops.
func StartCalls(ctx context.Context, what string, n int, one Call, end func()) (*Load, error) {
	if _, ok := ctx.Deadline(); !ok {
		return nil, fmt.Errorf("load on %s: the context has no deadline", what)
	}
	ctx, cancel := context.WithCancel(ctx)
	l := &Load{cancel: cancel, tally: newTally()}
	for range n {
		l.wg.Go(func() {
			defer end()
			tick := time.NewTicker(pause)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				// The request is allowed to finish although the load was stopped.
				backend, status, err := one(context.WithoutCancel(ctx))
				l.mu.Lock()
				l.tally.add(backend, status, err)
				l.mu.Unlock()
			}
		})
	}
	return l, nil
}

// Sent returns how many requests have finished since the start, or the last
// Reset.
func (l *Load) Sent() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tally.Sent
}

// Reset returns the results since the start, or the last Reset.
func (l *Load) Reset() Tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tally
	l.tally = newTally()
	return t
}

// Stop ends the load and returns the results since the last Reset.
func (l *Load) Stop() Tally {
	l.cancel()
	l.wg.Wait()
	return l.Reset()
}
