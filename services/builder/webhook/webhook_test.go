package webhook_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/builder/webhook"
)

// receiver is a server that takes events.
type receiver struct {
	*httptest.Server
	events chan webhook.Event
}

// receive starts a server. answer writes the response to a call, by its number from 1.
func receive(t *testing.T, answer func(call int, w http.ResponseWriter, r *http.Request)) *receiver {
	t.Helper()
	c := &receiver{events: make(chan webhook.Event, 1000)}
	var mu sync.Mutex
	calls := 0
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var e webhook.Event
		if err := json.NewDecoder(r.Body).Decode(&e); err != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: %v", r.Method, r.Header.Get("Content-Type"), err)
		}
		mu.Lock()
		calls++
		n := calls
		mu.Unlock()
		if answer != nil {
			answer(n, w, r)
		}
		c.events <- e
	}))
	t.Cleanup(c.Close)
	return c
}

// run runs a hook until the test ends. waited gets a value for each failure.
func run(t *testing.T, url string) (h *webhook.Hook, waited chan int) {
	t.Helper()
	waited = make(chan int, 1000)
	h = webhook.New(webhook.Config{URL: url, Domain: "main", Log: slog.New(slog.DiscardHandler), Wait: func(ctx context.Context, failed int) error {
		waited <- failed
		return ctx.Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended: %v", err)
		}
	})
	return h, waited
}

// leading is the report of a leader with a hold, a quarantine and a required source that is away.
func leading() *reportv1.BuilderReport {
	return &reportv1.BuilderReport{
		Builder: "b1", Leader: true, Time: timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
		Head: &snapshotv1.Version{Epoch: 1, Seq: 7}, Position: &snapshotv1.Version{Epoch: 1, Seq: 9},
		Holds:       []*reportv1.Hold{{Id: "hold-1", Source: "kubernetes", Instance: "c1", Keys: 40, Reason: "40 of 50 objects are gone"}},
		Quarantines: []*reportv1.Quarantine{{Id: "quarantine-1", TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster", Name: "cart", Client: "envoy 1.40.0", Reason: "no"}},
		Waiting:     []string{"source file/f is required and has not listed"},
	}
}

// Each event is told once, with what a reader needs to act, and again by a new leader under
// the same id. A builder that stands by tells nothing.
func TestEvents(t *testing.T) {
	c := receive(t, nil)
	h, _ := run(t, c.URL)
	standby := leading()
	standby.Leader = false
	h.Observe(standby)
	next := func() map[string]webhook.Event {
		got := map[string]webhook.Event{}
		for range 3 {
			e := <-c.events
			got[e.What] = e
		}
		return got
	}
	h.Observe(leading())
	h.Observe(leading())
	first := next()
	held, quarantined, stopped := first[webhook.HeldBack], first[webhook.Quarantined], first[webhook.Stopped]
	want := webhook.Event{
		What: webhook.HeldBack, ID: "hold-1", Domain: "main", Builder: "b1", Reason: "40 of 50 objects are gone", Source: "kubernetes/c1", Objects: 40,
		Version: "1.7", Position: "1.9", Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Look: "meshlog status; meshlog approve hold-1",
	}
	if held != want {
		t.Errorf("got %+v, want %+v", held, want)
	}
	if quarantined.ID != "quarantine-1" || !strings.HasSuffix(quarantined.Resource, ".Cluster cart") || quarantined.Client != "envoy 1.40.0" || quarantined.Reason != "no" {
		t.Errorf("got %+v", quarantined)
	}
	if !strings.HasPrefix(stopped.ID, "stopped-") || !strings.Contains(stopped.Reason, "file/f is required") || stopped.Look != "meshlog status" {
		t.Errorf("got %+v", stopped)
	}
	h.Observe(standby)
	other := leading()
	other.Builder = "b2"
	h.Observe(other)
	for what, e := range next() {
		if e.ID != first[what].ID || e.Builder != "b2" {
			t.Errorf("a new leader tells %+v, the one before %+v", e, first[what])
		}
	}
	if len(c.events) > 0 {
		t.Errorf("%d calls more", len(c.events))
	}
}

// A receiver that fails is called again until it takes the event.
func TestDownThenUp(t *testing.T) {
	c := receive(t, func(call int, w http.ResponseWriter, _ *http.Request) {
		if call <= 3 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	h, waited := run(t, c.URL)
	r := leading()
	r.Quarantines, r.Waiting = nil, nil
	h.Observe(r)
	for range 4 {
		if e := <-c.events; e.ID != "hold-1" {
			t.Errorf("got %+v", e)
		}
	}
	for want := 1; want <= 3; want++ {
		if got := <-waited; got != want {
			t.Errorf("waits after %d failures, want %d", got, want)
		}
	}
	r.Holds[0].Id = "hold-2"
	h.Observe(r)
	if e := <-c.events; e.ID != "hold-2" {
		t.Errorf("got %+v after it is up", e)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(h)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if n := f.GetMetric()[0].GetCounter().GetValue(); f.GetName() == "meshlog_builder_webhook_failures_total" && n != 3 {
			t.Errorf("%v failures are counted, want 3", n)
		}
	}
}

// A receiver that refuses an event is not called again with it, nor is another host to which
// it redirects.
func TestRefused(t *testing.T) {
	other := receive(t, nil)
	for name, answer := range map[string]func(int, http.ResponseWriter, *http.Request){
		"refused": func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
		"redirected": func(_ int, w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := receive(t, answer)
			h, waited := run(t, c.URL)
			h.Observe(leading())
			var ids []string
			for range 3 {
				ids = append(ids, (<-c.events).ID)
			}
			if slices.Sort(ids); len(slices.Compact(ids)) != 3 || len(waited) > 0 {
				t.Errorf("called for %v, %d times again", ids, len(waited))
			}
		})
	}
	if len(other.events) > 0 {
		t.Error("another host is called")
	}
}

// A receiver that does not answer delays no one: what happens meanwhile is queued, up to a
// bound, and what did not fit is told when there is room.
func TestSlow(t *testing.T) {
	goOn := make(chan struct{})
	c := receive(t, func(call int, _ http.ResponseWriter, _ *http.Request) {
		if call == 1 {
			<-goOn
		}
	})
	h, _ := run(t, c.URL)
	r := &reportv1.BuilderReport{Leader: true}
	for i := range 300 {
		r.Holds = append(r.Holds, &reportv1.Hold{Id: "hold-" + string(rune('a'+i%26)) + strings.Repeat("x", i/26)})
	}
	for range 10 {
		h.Observe(r)
	}
	close(goOn)
	got := map[string]int{}
	for len(got) < 300 {
		h.Observe(r)
		select {
		case e := <-c.events:
			got[e.ID]++
		case <-t.Context().Done():
			t.Fatal("the test ended")
		}
	}
	for id, n := range got {
		if n != 1 {
			t.Errorf("%s is told %d times", id, n)
		}
	}
}

func TestCheck(t *testing.T) {
	for text, want := range map[string]bool{
		"https://hooks.example.com/meshlog": true, "http://127.0.0.1:8080": true,
		"hooks.example.com": false, "ftp://x/": false, "https:///path": false, "://": false,
	} {
		if err := webhook.Check(text); (err == nil) != want {
			t.Errorf("%s: %v", text, err)
		}
	}
}
