package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Flow is a steady stream of requests. Each answer carries the revision of the
// configuration by which the request was routed.
type Flow struct {
	loads   []*Load
	clients []*flowClient
}

// FlowConfig sets which requests a Flow sends.
type FlowConfig struct {
	URL  string
	Host string // Host header of the requests; empty: the host of URL
	// Header of each answer holds the revision, a number that grows.
	Header string
	// Conns is how many connections send one request after the other.
	Conns int
}

// StartFlow sends requests until Stop, or until ctx ends. ctx must have a
// deadline.
func StartFlow(ctx context.Context, c FlowConfig) (*Flow, error) {
	f := &Flow{}
	for range c.Conns {
		one := &flowClient{config: c, http: newClient(1), since: time.Now()}
		load, err := StartCalls(ctx, c.Host+c.URL, 1, one.ask, one.http.CloseIdleConnections)
		if err != nil {
			f.Stop()
			return nil, err
		}
		f.loads, f.clients = append(f.loads, load), append(f.clients, one)
	}
	return f, nil
}

// Revision returns the newest revision that every connection has seen.
func (f *Flow) Revision() int {
	oldest := math.MaxInt
	for _, c := range f.clients {
		c.mu.Lock()
		oldest = min(oldest, c.newest)
		c.mu.Unlock()
	}
	return oldest
}

// Stalled returns the longest time without a newer revision, since the start or
// the last Reset.
func (f *Flow) Stalled() time.Duration {
	var longest time.Duration
	for _, c := range f.clients {
		c.mu.Lock()
		longest = max(longest, c.stalled, time.Since(c.since))
		c.mu.Unlock()
	}
	return longest
}

// Sent returns how many requests have finished.
func (f *Flow) Sent() int {
	n := 0
	for _, l := range f.loads {
		n += l.Sent()
	}
	return n
}

// Reset returns the results since the start, or the last Reset. The error is nil
// if every request was answered with code 200, and none by an older revision than
// the answer before it on its connection.
func (f *Flow) Reset() (Tally, error) {
	all := newTally()
	var errs []error
	for i, l := range f.loads {
		t := l.Reset()
		all.Sent += t.Sent
		all.Failed += t.Failed
		if t.LastErr != nil {
			all.LastErr = t.LastErr
		}
		for name, n := range t.Backends {
			all.Backends[name] += n
		}
		for code, n := range t.Statuses {
			all.Statuses[code] += n
		}
		errs = append(errs, f.clients[i].reset())
	}
	return all, errors.Join(append(errs, all.Err())...)
}

// Stop ends the flow. Reset returns the results.
func (f *Flow) Stop() {
	for _, l := range f.loads {
		l.cancel()
	}
	for _, l := range f.loads {
		l.wg.Wait()
	}
}

// flowClient is one connection; one goroutine sends.
type flowClient struct {
	config FlowConfig
	http   *http.Client

	mu      sync.Mutex
	newest  int           // revision
	since   time.Time     // when the newest revision came, or the last reset
	stalled time.Duration // the longest time between two revisions
	first   string        // the first wrong answer
	wrong   int           // how many answers were wrong
}

func (c *flowClient) reset() (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wrong > 0 {
		err = fmt.Errorf("%d answers of %s%s are wrong, the first of them: %s", c.wrong, c.config.Host, c.config.URL, c.first)
	}
	c.wrong, c.stalled, c.since = 0, 0, time.Now()
	return err
}

// complain notes a wrong answer; mu is held.
func (c *flowClient) complain(format string, args ...any) {
	if c.wrong++; c.wrong == 1 {
		c.first = time.Now().Format(time.TimeOnly+".000 ") + fmt.Sprintf(format, args...)
	}
}

// ask sends one request.
func (c *flowClient) ask(ctx context.Context) (backend string, status int, err error) {
	body, status, revision, err := c.get(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil:
		c.complain("%v", err)
	case status != http.StatusOK:
		c.complain("%d %s", status, body)
	case revision < c.newest:
		c.complain("routed by revision %d after %d", revision, c.newest)
	case revision > c.newest:
		now := time.Now()
		c.stalled = max(c.stalled, now.Sub(c.since))
		c.newest, c.since = revision, now
	}
	return body, status, err
}

func (c *flowClient) get(ctx context.Context) (body string, status, revision int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.config.URL, nil)
	if err != nil {
		return "", 0, 0, err
	}
	req.Host = c.config.Host
	resp, err := c.http.Do(req)
	if err != nil {
		return "", 0, 0, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if err == nil && resp.StatusCode == http.StatusOK {
		if revision, err = strconv.Atoi(resp.Header.Get(c.config.Header)); err != nil {
			err = fmt.Errorf("header %s: %w", c.config.Header, err)
		}
	}
	return strings.TrimSpace(string(b)), resp.StatusCode, revision, err
}
