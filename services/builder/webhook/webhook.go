// Package webhook calls a URL when the builder that leads holds a loss back, puts a
// resource into quarantine, or stops a rollout or publishing.
//
// The state of the builder is observed, and the calls are made by a goroutine of their own:
// a receiver that is slow or away delays no version. An event is told once while a builder
// leads, as far as its process lives; a new leader tells what is still so again, under the
// same id.
package webhook

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/store"
)

// What an event is about.
const (
	HeldBack    = "held-back"   // a mass loss of a source waits for an approval
	Quarantined = "quarantined" // proxies reject a resource, and get its earlier content or none
	Stopped     = "stopped"     // no version is published
	// Proxies reject what a rollout gave them, or an operator stopped it; all get the version before.
	RolloutStopped = "rollout-stopped"
)

// Event is the body of a call, as JSON.
type Event struct {
	What string `json:"what"`
	// ID is the same in each repeated call for an event, also by another builder.
	ID       string `json:"id"`
	Domain   string `json:"domain"`
	Builder  string `json:"builder"`
	Reason   string `json:"reason"`
	Source   string `json:"source,omitempty"`   // SOURCE/INSTANCE, if the event is about one
	Objects  uint32 `json:"objects,omitempty"`  // held back
	Resource string `json:"resource,omitempty"` // TYPE NAME of a resource in quarantine
	Client   string `json:"client,omitempty"`   // client and version that reject it
	// Version is the one that is served, Position the last record that is folded, as commands
	// print them and take them.
	Version  string    `json:"version"`
	Position string    `json:"position"`
	Time     time.Time `json:"time"`
	Look     string    `json:"look"` // the command that shows more
}

// The bounds of calls. While a receiver is away, queueSize events wait for it; more are
// queued when there is room again, if they are still so.
const (
	queueSize   = 100
	callTimeout = 10 * time.Second
	attempts    = 12 // for an event, 20 minutes
)

// Config configures a Hook.
type Config struct {
	URL    string // empty: Follow calls nothing
	Domain string
	Log    *slog.Logger
	// Wait waits between attempts; nil: 1 s at first, and twice as long each time, up to 5 min.
	Wait func(ctx context.Context, failed int) error
}

// Hook calls the URL. Use New.
type Hook struct {
	c      Config
	client *http.Client
	queue  chan Event
	told   map[string]bool // ids that are so and told; Observe's alone

	calls, failures, lost prometheus.Counter
}

// Check returns an error for a URL that cannot be called.
func Check(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return errors.New("no URL") // the error repeats the URL, which may have a password
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return errors.New("want http://HOST/PATH or https://HOST/PATH")
	}
	return nil
}

// New returns a Hook for a URL that Check accepts. It calls nothing until Run.
func New(c Config) *Hook {
	if c.Wait == nil {
		c.Wait = backoff
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	return &Hook{
		c: c, queue: make(chan Event, queueSize), told: map[string]bool{},
		client:   &http.Client{Timeout: callTimeout, CheckRedirect: sameHost},
		calls:    counter("meshlog_builder_webhook_calls_total", "Calls of the webhook that its receiver accepted."),
		failures: counter("meshlog_builder_webhook_failures_total", "Calls of the webhook that failed; most are repeated. Rising: see whether the receiver works; the builder's log has the reason."),
		lost:     counter("meshlog_builder_webhook_lost_events_total", "Events of which the webhook was not told, because it refused them or was away for 20 minutes. `meshlog status` shows what is still so."),
	}
}

// sameHost follows a redirect to the host that was called, and no other: what is sent is not
// for it.
func sameHost(r *http.Request, via []*http.Request) error {
	if r.URL.Host != via[0].URL.Host || r.URL.Scheme != via[0].URL.Scheme || len(via) >= 5 {
		return http.ErrUseLastResponse
	}
	return nil
}

// Describe implements prometheus.Collector.
func (h *Hook) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(h, ch) }

// Collect implements prometheus.Collector.
func (h *Hook) Collect(ch chan<- prometheus.Metric) { ch <- h.calls; ch <- h.failures; ch <- h.lost }

// Observe takes the state of the builder, and queues what is new in it. It does not block. It
// is for one goroutine.
func (h *Hook) Observe(r *reportv1.BuilderReport) {
	if !r.GetLeader() {
		clear(h.told)
		return
	}
	now := map[string]bool{}
	for _, e := range h.events(r) {
		if !h.told[e.ID] {
			select {
			case h.queue <- e:
			default:
				continue // it is new still when there is room
			}
		}
		now[e.ID] = true
	}
	h.told = now
}

// events returns what is held back, in quarantine, and stopped.
func (h *Hook) events(r *reportv1.BuilderReport) (all []Event) {
	add := func(e Event) {
		e.Domain, e.Builder, e.Time = h.c.Domain, r.GetBuilder(), r.GetTime().AsTime()
		e.Version, e.Position = store.VersionOf(r.GetHead()).String(), store.VersionOf(r.GetPosition()).String()
		all = append(all, e)
	}
	for _, held := range r.GetHolds() {
		add(Event{
			What: HeldBack, ID: held.GetId(), Source: held.GetSource() + "/" + held.GetInstance(), Objects: held.GetKeys(),
			Reason: held.GetReason(), Look: "meshlog status; meshlog approve " + held.GetId(),
		})
	}
	for _, q := range r.GetQuarantines() {
		name := q.GetName()
		if q.GetPiece() != "" {
			name += " " + q.GetPiece()
		}
		add(Event{
			What: Quarantined, ID: q.GetId(), Resource: q.GetTypeUrl() + " " + name, Client: q.GetClient(),
			Reason: q.GetReason(), Look: "meshlog status; meshlog approve " + q.GetId(),
		})
	}
	for _, o := range r.GetRollouts() {
		if o.GetState() == "stopped" {
			add(Event{
				What: RolloutStopped, ID: o.GetId(), Objects: o.GetObjects(), Reason: o.GetReason(),
				Look: "meshlog rollout status; meshlog diagnostics",
			})
		}
	}
	reasons := r.GetWaiting()
	if r.GetError() != "" {
		reasons = append([]string{r.GetError()}, reasons...)
	}
	for _, reason := range reasons {
		// The head is part of it: when it has moved, a stop is another one.
		sum := sha256.Sum256(fmt.Appendf(nil, "%s %s", store.VersionOf(r.GetHead()), reason))
		add(Event{What: Stopped, ID: "stopped-" + hex.EncodeToString(sum[:8]), Reason: reason, Look: "meshlog status"})
	}
	return all
}

// Follow observes the state that report returns once a second, and calls the URL, until ctx
// is done. Without a URL it only waits.
func (h *Hook) Follow(ctx context.Context, report func() *reportv1.BuilderReport) error {
	if h.c.URL == "" {
		<-ctx.Done()
		return ctx.Err()
	}
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error { return h.Run(ctx) })
	work.Go(func() error {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-tick.C:
				h.Observe(report())
			}
		}
	})
	return work.Wait()
}

// Run calls the URL for what is queued until ctx is done.
func (h *Hook) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-h.queue:
			if err := h.tell(ctx, e); err != nil {
				return err
			}
		}
	}
}

// tell calls until the receiver takes an event, refuses it, or has failed too often. Its
// error is that of ctx.
func (h *Hook) tell(ctx context.Context, e Event) error {
	body, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("event of texts: %w", err)
	}
	for failed := 1; ; failed++ {
		again, err := h.call(ctx, body)
		if err == nil {
			h.calls.Inc()
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		h.failures.Inc()
		if !again || failed == attempts {
			h.lost.Inc()
			h.c.Log.Error("the webhook was not told of an event", "event", e.ID, "what", e.What, "attempts", failed, "error", err)
			return nil
		}
		h.c.Log.Warn("cannot call the webhook; trying again", "event", e.ID, "error", err)
		if err := h.c.Wait(ctx, failed); err != nil {
			return err
		}
	}
}

// call posts a body once. again says whether the same call may succeed later. The error
// does not have the URL, which may have a password.
func (h *Hook) call(ctx context.Context, body []byte) (again bool, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.c.URL, bytes.NewReader(body))
	if err != nil {
		return false, errors.New("no URL")
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := h.client.Do(r)
	if err != nil {
		var in *url.Error
		if errors.As(err, &in) {
			err = in.Err
		}
		return true, err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	switch code := resp.StatusCode; {
	case code < 300:
		return false, nil
	case code < 400:
		return false, fmt.Errorf("%s: the builder follows a redirect to the same host only, and five at most", resp.Status)
	case code < 500 && code != http.StatusRequestTimeout && code != http.StatusTooManyRequests:
		return false, errors.New(resp.Status)
	}
	return true, errors.New(resp.Status)
}

const (
	firstWait = time.Second
	lastWait  = 5 * time.Minute
)

func backoff(ctx context.Context, failed int) error {
	t := time.NewTimer(min(firstWait<<(failed-1), lastWait))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
