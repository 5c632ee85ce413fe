package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Admin is a process's admin server. Its parts add themselves while it runs;
// it is safe for concurrent use.
type Admin struct {
	listener net.Listener
	registry *prometheus.Registry

	mu      sync.Mutex
	ready   map[string]func() error
	reports map[string]func() any
}

// NewAdmin listens on addr; Run serves.
func NewAdmin(addr string) (*Admin, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("admin server: %w; give another address with --admin", err)
	}
	a := &Admin{
		listener: l, registry: prometheus.NewRegistry(),
		ready: map[string]func() error{}, reports: map[string]func() any{},
	}
	a.Register(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return a, nil
}

// Addr is where the server listens.
func (a *Admin) Addr() string { return a.listener.Addr().String() }

// Register adds metrics. Two of one name are a mistake of the program: it
// panics.
func (a *Admin) Register(cs ...prometheus.Collector) { a.registry.MustRegister(cs...) }

// Ready adds a condition of /readyz: the process is ready when each of them
// returns nil.
func (a *Admin) Ready(name string, check func() error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ready[name] = check
}

// Report adds /debug/<name>: what report returns, as JSON.
func (a *Admin) Report(name string, report func() any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reports[name] = report
}

// NotReady says what is missing, one line for each reason; nil if nothing is.
// A process of which no part has said what it needs is starting.
func (a *Admin) NotReady() error {
	a.mu.Lock()
	checks := maps.Clone(a.ready)
	a.mu.Unlock()
	if len(checks) == 0 {
		return errors.New("starting")
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(checks)) {
		if err := checks[name](); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// Run serves until ctx is done.
func (a *Admin) Run(ctx context.Context, log *slog.Logger) error {
	srv := &http.Server{
		Handler: a.handler(), ReadHeaderTimeout: 5 * time.Second,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	stop := context.AfterFunc(ctx, func() { srv.Close() }) // nothing here is worth a drain
	defer stop()
	if err := srv.Serve(a.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin server: %w", err)
	}
	return ctx.Err()
}

func (a *Admin) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", a.index)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := a.NotReady(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /debug/{name}", a.report)
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}

func (a *Admin) index(w http.ResponseWriter, _ *http.Request) {
	a.mu.Lock()
	names := slices.Sorted(maps.Keys(a.reports))
	a.mu.Unlock()
	paths := []string{"/healthz", "/readyz", "/metrics"}
	for _, name := range names {
		paths = append(paths, "/debug/"+name)
	}
	paths = append(paths, "/debug/pprof/")
	var page strings.Builder
	page.WriteString("<!DOCTYPE html><title>meshlog</title><ul>\n")
	for _, p := range paths { // names of ours: nothing to escape
		fmt.Fprintf(&page, "<li><a href=%q>%s</a>\n", p, p)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	fmt.Fprint(w, page.String())
}

func (a *Admin) report(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	report, ok := a.reports[r.PathValue("name")]
	a.mu.Unlock()
	if !ok {
		http.NotFound(w, r)
		return
	}
	b, err := marshal(report())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, "%s\n", b)
}

func marshal(v any) ([]byte, error) {
	if m, ok := v.(proto.Message); ok {
		b, err := protojson.Marshal(m)
		if err != nil {
			return nil, err
		}
		v = json.RawMessage(b) // protojson's own spaces are random
	}
	return json.MarshalIndent(v, "", "  ")
}
