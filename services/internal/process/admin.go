package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/pprof"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"meshlog.dev/services/internal/loglimit"
)

// Admin is a process's admin server. Pages, checks and metrics can be added while
// it runs. It is safe for concurrent use.
type Admin struct {
	// TokenFile has the token that opens the debug pages to other machines. It is
	// read for each request. If it is empty, the pages are closed to them.
	TokenFile string
	// Pprof adds /debug/pprof/.
	Pprof bool

	listener net.Listener
	registry *prometheus.Registry
	levels   logLevels     // for /debug/log; nil removes the page
	busy     chan struct{} // limits the debug pages that run concurrently

	mu       sync.Mutex
	ready    map[string]func() error
	warnings map[string]func() error
	pages    map[string]page
}

// page is a page under /debug/.
type page struct {
	about   string
	handler http.HandlerFunc
}

// maxPages limits concurrent debug pages, so that they cannot use up the time and
// memory of a process that serves.
const maxPages = 2

// Limits of a connection to the admin server, which any client that reaches the
// port may open.
const (
	headerTimeout  = 5 * time.Second
	requestTimeout = 10 * time.Second // with the body
	// responseTimeout limits the time until a slow client has read a response.
	// Profiles add the time that they take.
	responseTimeout = time.Minute
	idleTimeout     = time.Minute
	maxHeader       = 64 << 10
	maxBody         = 64 << 10
)

// NewAdmin listens on addr; Run serves.
func NewAdmin(addr string) (*Admin, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("admin server: %w; give another address with --admin", err)
	}
	a := &Admin{
		listener: l, registry: prometheus.NewRegistry(), busy: make(chan struct{}, maxPages),
		ready: map[string]func() error{}, warnings: map[string]func() error{}, pages: map[string]page{},
	}
	a.Register(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return a, nil
}

// Addr returns the address of the server.
func (a *Admin) Addr() string { return a.listener.Addr().String() }

// Register adds metrics. It panics if a name is taken.
func (a *Admin) Register(cs ...prometheus.Collector) { a.registry.MustRegister(cs...) }

// Unregister removes metrics.
func (a *Admin) Unregister(cs ...prometheus.Collector) {
	for _, c := range cs {
		a.registry.Unregister(c)
	}
}

// Forget removes the conditions, warnings and pages with these names.
func (a *Admin) Forget(names ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range names {
		delete(a.ready, name)
		delete(a.warnings, name)
		delete(a.pages, name)
	}
}

// Ready adds a condition to /readyz. The process is ready when all conditions
// return nil.
func (a *Admin) Ready(name string, check func() error) { add(a, a.ready, name, check) }

// Warn adds a check to /readyz whose error is a warning: the process stays ready.
func (a *Admin) Warn(name string, check func() error) { add(a, a.warnings, name, check) }

// Page adds /debug/<name>. The index shows about, which describes the page and its
// parameters.
func (a *Admin) Page(name, about string, handler http.HandlerFunc) {
	add(a, a.pages, name, page{about, handler})
}

func add[V any](a *Admin, to map[string]V, name string, v V) {
	a.mu.Lock()
	defer a.mu.Unlock()
	to[name] = v
}

// Params returns the parameters of a request. If one is not in known, Params
// answers with an error and returns nil.
func Params(w http.ResponseWriter, r *http.Request, known ...string) url.Values {
	params := r.URL.Query()
	for _, name := range slices.Sorted(maps.Keys(params)) {
		if !slices.Contains(known, name) {
			hint := "this page has no parameters"
			if len(known) > 0 {
				hint = suggest(name, known, "parameters are "+strings.Join(known, ", "))
			}
			http.Error(w, fmt.Sprintf("no parameter %q; %s", name, hint), http.StatusBadRequest)
			return nil
		}
	}
	return params
}

// Report adds /debug/<name>, which shows the result of report as JSON.
func (a *Admin) Report(name string, report func() any) {
	a.Page(name, "report of the "+name, func(w http.ResponseWriter, r *http.Request) {
		if Params(w, r) != nil {
			WriteJSON(w, report())
		}
	})
}

// NotReady returns the errors of all conditions, one per line, or nil. A process
// without conditions is still starting.
func (a *Admin) NotReady() error {
	n, err := a.run(a.ready)
	if n == 0 {
		return errors.New("starting")
	}
	return err
}

// run runs checks in the order of their names, and returns their number and all
// errors.
func (a *Admin) run(checks map[string]func() error) (n int, err error) {
	a.mu.Lock()
	checks = maps.Clone(checks)
	a.mu.Unlock()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(checks)) {
		if err := checks[name](); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	return len(checks), errors.Join(errs...)
}

// Run serves until ctx is done.
func (a *Admin) Run(ctx context.Context, log *slog.Logger) error {
	srv := a.server(log)
	stop := context.AfterFunc(ctx, func() { srv.Close() }) // requests need no drain
	defer stop()
	if err := srv.Serve(a.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin server: %w", err)
	}
	return ctx.Err()
}

func (a *Admin) server(log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           http.MaxBytesHandler(a.handler(), maxBody),
		ReadHeaderTimeout: headerTimeout, ReadTimeout: requestTimeout, WriteTimeout: responseTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader,
		ErrorLog:       slog.NewLogLogger(errorLog{log.Handler(), loglimit.New(log, 1)}, slog.LevelWarn),
	}
}

// errorLog takes the lines of the HTTP server, which clients cause. All of them
// count as one message.
type errorLog struct {
	slog.Handler
	log *loglimit.Logger
}

// Handle implements slog.Handler.
func (l errorLog) Handle(_ context.Context, r slog.Record) error {
	l.log.Line(r.Level, "admin server", r.Message)
	return nil
}

func (a *Admin) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", a.index)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", a.readyz)
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{}))
	debug := func(pattern string, h http.HandlerFunc) { mux.HandleFunc(pattern, a.guarded(h)) }
	debug("GET /debug/{name}", a.page)
	if a.levels != nil {
		debug("GET /debug/log", a.showLevels)
		debug("PUT /debug/log", a.setLevels)
		debug("POST /debug/log", a.setLevels)
	}
	if a.Pprof {
		debug("GET /debug/pprof/", pprof.Index)
		debug("GET /debug/pprof/cmdline", pprof.Cmdline)
		debug("GET /debug/pprof/profile", pprof.Profile)
		debug("GET /debug/pprof/symbol", pprof.Symbol)
		debug("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

func (a *Admin) readyz(w http.ResponseWriter, _ *http.Request) {
	if err := a.NotReady(); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
	if _, err := a.run(a.warnings); err != nil {
		fmt.Fprintf(w, "warning: %s\n", strings.ReplaceAll(err.Error(), "\n", "\nwarning: "))
	}
}

func (a *Admin) index(w http.ResponseWriter, _ *http.Request) {
	rows := [][2]string{
		{"/healthz", "whether the process runs"}, {"/readyz", "whether it is ready, or why not"}, {"/metrics", "for Prometheus"},
	}
	a.mu.Lock()
	for _, name := range slices.Sorted(maps.Keys(a.pages)) {
		rows = append(rows, [2]string{"/debug/" + name, a.pages[name].about})
	}
	a.mu.Unlock()
	if a.levels != nil {
		rows = append(rows, [2]string{"/debug/log", "log levels; PUT ?level=COMPONENT=LEVEL changes one"})
	}
	if a.Pprof {
		rows = append(rows, [2]string{"/debug/pprof/", "profiles"})
	}
	var page strings.Builder
	page.WriteString("<!DOCTYPE html><title>meshlog</title><table>\n")
	for _, r := range rows { // constant texts, which need no escaping
		fmt.Fprintf(&page, "<tr><td><a href=%q>%s</a><td>%s\n", r[0], r[0], r[1])
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	fmt.Fprint(w, page.String())
}

func (a *Admin) page(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	p, ok := a.pages[r.PathValue("name")]
	a.mu.Unlock()
	if !ok {
		http.Error(w, "no such page; / lists them", http.StatusNotFound)
		return
	}
	select {
	case a.busy <- struct{}{}:
		defer func() { <-a.busy }()
		p.handler(w, r)
	default:
		http.Error(w, "too many requests for debug pages; try again", http.StatusServiceUnavailable)
	}
}

func (a *Admin) showLevels(w http.ResponseWriter, _ *http.Request) { WriteJSON(w, a.levels.report()) }

func (a *Admin) setLevels(w http.ResponseWriter, r *http.Request) {
	if err := a.levels.set(r.FormValue("level")); err != nil {
		http.Error(w, "level: "+err.Error(), http.StatusBadRequest)
		return
	}
	a.showLevels(w, r)
}
