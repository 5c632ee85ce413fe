// Package ready answers the readiness probes of a workload, and drains it when it ends
// (AGT-5).
package ready

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// Path is where the probes ask, as in Istio.
const Path = "/healthz/ready"

// Envoy answers questions about the state of an Envoy.
type Envoy interface {
	Ready(ctx context.Context) error
	Connections(ctx context.Context) (int, error)
	Drain(ctx context.Context) error
}

// Probe answers probes.
type Probe struct {
	envoy    Envoy
	checks   []func() error
	draining atomic.Bool
}

// New returns a Probe that is ready when Envoy is, and no check returns an error.
func New(e Envoy, checks ...func() error) *Probe { return &Probe{envoy: e, checks: checks} }

var errDraining = errors.New("the workload ends: connections are drained")

// Ready returns why the workload is not ready, or nil.
func (p *Probe) Ready(ctx context.Context) error {
	if p.draining.Load() {
		return errDraining
	}
	for _, c := range p.checks {
		if err := c(); err != nil {
			return err
		}
	}
	return p.envoy.Ready(ctx)
}

// ServeHTTP implements http.Handler.
func (p *Probe) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != Path {
		http.NotFound(w, r)
		return
	}
	if err := p.Ready(r.Context()); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ready")
}

// Run serves probes on l until ctx is done.
func (p *Probe) Run(ctx context.Context, l net.Listener) error {
	const limit = 5 * time.Second
	s := &http.Server{Handler: p, ReadTimeout: limit, WriteTimeout: limit, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return ctx.Err()
}

// look is how often the connections are counted while they are drained.
const look = 200 * time.Millisecond

// Drain fails all probes from now on, asks the clients of Envoy to leave, and waits until
// none is connected, for most at the longest.
func (p *Probe) Drain(ctx context.Context, most time.Duration, log *slog.Logger) {
	p.draining.Store(true)
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	if err := p.envoy.Drain(ctx); err != nil {
		log.Warn("cannot drain Envoy; ending it", "error", err)
		return
	}
	tick := time.NewTicker(look)
	defer tick.Stop()
	for began := time.Now(); ; {
		n, err := p.envoy.Connections(ctx)
		if err != nil && ctx.Err() == nil {
			log.Warn("cannot count Envoy's connections; ending it", "error", err)
			return
		}
		if err == nil && n == 0 {
			log.Info("drained: no client is connected", "after", time.Since(began).Round(time.Millisecond))
			return
		}
		select {
		case <-ctx.Done():
			log.Warn("ending Envoy while clients are connected", "connections", n, "after", most)
			return
		case <-tick.C:
		}
	}
}
