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
)

// Admin is a process's admin server. Its parts add themselves while it runs;
// it is safe for concurrent use.
type Admin struct {
	// TokenFile holds the token that opens the debug pages to others than this
	// machine; empty: to nobody. It is read for each request.
	TokenFile string
	// Pprof adds /debug/pprof/.
	Pprof bool

	listener net.Listener
	registry *prometheus.Registry
	levels   *logLevels    // of /debug/log; nil: there is no such page
	busy     chan struct{} // has room for one more debug page

	mu       sync.Mutex
	ready    map[string]func() error
	warnings map[string]func() error
	pages    map[string]page
}

// page is one of /debug/.
type page struct {
	about   string
	handler http.HandlerFunc
}

// maxPages is how many debug pages are made at a time: whoever looks may not
// take all the time and memory of a process that serves.
const maxPages = 2

// pageWithin is how long a client may take to take a debug page.
const pageWithin = time.Minute

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

// Addr is where the server listens.
func (a *Admin) Addr() string { return a.listener.Addr().String() }

// Register adds metrics. Two of one name are a mistake of the program: it
// panics.
func (a *Admin) Register(cs ...prometheus.Collector) { a.registry.MustRegister(cs...) }

// Unregister takes metrics away, of a part that ends before the process.
func (a *Admin) Unregister(cs ...prometheus.Collector) {
	for _, c := range cs {
		a.registry.Unregister(c)
	}
}

// Forget takes away what was added under those names, of a part that ends before
// the process.
func (a *Admin) Forget(names ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range names {
		delete(a.ready, name)
		delete(a.warnings, name)
		delete(a.pages, name)
	}
}

// Ready adds a condition of /readyz: the process is ready when each of them
// returns nil.
func (a *Admin) Ready(name string, check func() error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ready[name] = check
}

// Warn adds something that /readyz speaks of if it is not nil. The process is
// ready all the same.
func (a *Admin) Warn(name string, check func() error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.warnings[name] = check
}

// Page adds /debug/<name>; about says in a few words what is there, and with
// which parameters.
func (a *Admin) Page(name, about string, handler http.HandlerFunc) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pages[name] = page{about, handler}
}

// Params are those of a request for a page: nil, after an answer that says so,
// if there is one that the page does not know.
func Params(w http.ResponseWriter, r *http.Request, known ...string) url.Values {
	params := r.URL.Query()
	for _, name := range slices.Sorted(maps.Keys(params)) {
		if !slices.Contains(known, name) {
			there := "this page has none"
			if len(known) > 0 {
				there = suggest(name, known, "there are "+strings.Join(known, ", "))
			}
			http.Error(w, fmt.Sprintf("no parameter %q; %s", name, there), http.StatusBadRequest)
			return nil
		}
	}
	return params
}

// Report adds /debug/<name>: what report returns, as JSON.
func (a *Admin) Report(name string, report func() any) {
	a.Page(name, "what the "+name+" says of itself", func(w http.ResponseWriter, r *http.Request) {
		if Params(w, r) != nil {
			WriteJSON(w, report())
		}
	})
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
	return all(checks)
}

// all runs the checks, in the order of their names.
func all(checks map[string]func() error) error {
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
	a.mu.Lock()
	warnings := maps.Clone(a.warnings)
	a.mu.Unlock()
	if err := all(warnings); err != nil {
		fmt.Fprintf(w, "warning: %s\n", strings.ReplaceAll(err.Error(), "\n", "\nwarning: "))
	}
}

func (a *Admin) index(w http.ResponseWriter, _ *http.Request) {
	rows := [][2]string{
		{"/healthz", "the process runs"}, {"/readyz", "it does its job, or why it does not"}, {"/metrics", "for Prometheus"},
	}
	a.mu.Lock()
	for _, name := range slices.Sorted(maps.Keys(a.pages)) {
		rows = append(rows, [2]string{"/debug/" + name, a.pages[name].about})
	}
	a.mu.Unlock()
	if a.levels != nil {
		rows = append(rows, [2]string{"/debug/log", "levels of the log; PUT ?level=COMPONENT=LEVEL changes one"})
	}
	if a.Pprof {
		rows = append(rows, [2]string{"/debug/pprof/", "profiles"})
	}
	var page strings.Builder
	page.WriteString("<!DOCTYPE html><title>meshlog</title><table>\n")
	for _, r := range rows { // texts of ours: nothing to escape
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
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(pageWithin)) // a test's has none
		p.handler(w, r)
	default:
		http.Error(w, "others look at debug pages right now; come again", http.StatusServiceUnavailable)
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
