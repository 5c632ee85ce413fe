package apiserver

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// TestHeardIsNoWallClock checks that Heard returns a monotonic time, so that setting the
// clock does not look like a long silence. The text of a time shows its monotonic reading.
func TestHeardIsNoWallClock(t *testing.T) {
	c, err := New(&rest.Config{Host: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	f := c.NewFeed(nil, Scope{Resource: Definitions}, Options{Limits: DefaultLimits()})
	for range 2 {
		if at := f.Heard(); !strings.Contains(at.String(), "m=") || time.Since(at) > time.Minute {
			t.Errorf("Heard returned %s", at)
		}
		f.hear(time.Now())
	}
}

// TestRequestsAreLimited checks that requests beyond the burst wait, except probes.
func TestRequestsAreLimited(t *testing.T) {
	var definitions, probes atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			probes.Add(1)
			return
		}
		definitions.Add(1)
		http.NotFound(w, r)
	}))
	defer s.Close()
	const burst = 3
	c, err := New(&rest.Config{Host: s.URL, QPS: .001, Burst: burst})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // the limiter allows the next request later
	defer cancel()
	for range burst + 1 {
		_, err = c.Definition(ctx, "d")
	}
	if err == nil || !strings.Contains(err.Error(), "rate limiter") {
		t.Errorf("the request after the burst: %v", err)
	}
	for range 2 * burst {
		if _, err := c.ready(ctx, time.Minute); err != nil {
			t.Errorf("a probe: %v", err)
		}
	}
	if definitions.Load() != burst || probes.Load() != 2*burst {
		t.Errorf("the server got %d requests and %d probes", definitions.Load(), probes.Load())
	}
}
