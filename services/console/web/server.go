// Package web is the console in a browser: pages that show a mesh at any time, over the same
// functions as the command line.
//
// Every page is made by the server and reads without JavaScript. With it, a page of the present
// follows the mesh by server-sent events. Every page has an address that can be shared; the
// parameter at, a version, moves it in time, and links of a page keep it.
package web

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/console/watch"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/draft"
)

//go:embed static
var assets embed.FS

//go:embed pages
var sources embed.FS

// Server serves the console. Its fields are not changed once Serve runs.
type Server struct {
	// TokenFile has the token that opens the console to other machines; empty: it is open to
	// this machine only. It is read for each request that brings a token.
	TokenFile string
	Log       *slog.Logger
	// Away returns why the bus cannot be reached; nil: it can.
	Away func() error

	// Watch is what the console knows.
	Watch *watch.Watch

	// OperatorKey is the file with the key that signs acts; empty: the console only reads.
	OperatorKey string
	// EnvoyAdmin are the admin addresses of Envoys that the console may ask; none: it asks none.
	EnvoyAdmin []AdminRule

	live          atomic.Pointer[watch.Live] // nil: the bus is not open yet
	pages         map[string]*template.Template
	sessions      sessions
	confirmations confirmations
	scene         routeScene
	drafts        draft.Warm
	work          chan struct{}
}

// New returns a server that shows no mesh yet.
func New(tokenFile string, log *slog.Logger) (*Server, error) {
	s := &Server{TokenFile: tokenFile, Log: log, Away: func() error { return nil }, pages: map[string]*template.Template{}, work: make(chan struct{}, maxWork)}
	names, err := fs.Glob(sources, "pages/*.html")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		name = strings.TrimPrefix(name, "pages/")
		if name == "base.html" {
			continue
		}
		s.pages[name], err = template.New("base.html").Funcs(functions).ParseFS(sources, "pages/base.html", "pages/"+name)
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Show makes the server show a mesh that a bus reaches.
func (s *Server) Show(l *watch.Live) { s.live.Store(l) }

// Ready returns why there is nothing to show yet; nil: there is a mesh, or a copy of one.
func (s *Server) Ready() error {
	if s.mesh() == nil {
		return errNotOpen
	}
	return nil
}

// mesh returns the mesh to make a page from; nil: there is neither a bus nor a copy.
func (s *Server) mesh() *watch.Mesh {
	if s.Watch == nil {
		return nil
	}
	return s.Watch.Current(s.live.Load(), s.Away())
}

// Limits of connections, which any client that reaches the port may open.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	writeTimeout  = 30 * time.Second
	idleTimeout   = time.Minute
	maxHeader     = 64 << 10
)

// Serve serves on l until ctx is done.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("console: %w", err)
	}
	return ctx.Err()
}

// Handler returns the pages.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	for path, v := range views {
		mux.HandleFunc("GET "+path, s.limited(func(w http.ResponseWriter, r *http.Request) { s.view(w, r, v) }))
	}
	mux.HandleFunc("GET /routes", s.limited(s.routesPage))
	mux.HandleFunc("GET /envoy", s.limited(s.envoyPage))
	mux.HandleFunc("GET /act/{act}", s.limited(s.actPage))
	mux.HandleFunc("POST /act/{act}", s.limited(s.act))
	mux.HandleFunc("GET /what-if", s.limited(s.whatIfPage))
	mux.HandleFunc("POST /what-if", s.limited(s.whatIf))
	mux.HandleFunc("GET /events", s.events)
	mux.HandleFunc("GET /login", s.limited(s.login))
	mux.HandleFunc("POST /login", s.limited(s.login))
	mux.HandleFunc("GET /static/{name}", asset)
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, &page{Path: r.URL.Path, Now: time.Now()}, command.NotFound("there is no page %s", r.URL.Path))
	})
	forms, drafts := http.MaxBytesHandler(s.guarded(mux), maxForm), http.MaxBytesHandler(s.guarded(mux), maxDraft)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == whatIfPath {
			drafts.ServeHTTP(w, r)
			return
		}
		forms.ServeHTTP(w, r)
	})
}

func isAsset(path string) bool { return strings.HasPrefix(path, "/static/") }

// asset serves an embedded file. Its name has its version, or it is checked again each time.
func asset(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-cache")
	http.ServeFileFS(w, r, assets, "static/"+r.PathValue("name"))
}

// view is one sort of page.
type view struct {
	title, file string
	make        func(ctx context.Context, p *page) (any, error)
	// live pages load themselves again when the mesh changes. Those that read the log or
	// compare versions do not: their answer is of one version.
	live bool
}

// view serves a page of a sort.
func (s *Server) view(w http.ResponseWriter, r *http.Request, v view) {
	p, err := s.begin(r, v)
	if err == nil {
		p.Data, err = v.make(r.Context(), p)
	}
	if err != nil {
		s.fail(w, p, err)
		return
	}
	s.render(w, v.file, p)
}

// begin returns a page of a sort, without its data.
func (s *Server) begin(r *http.Request, v view) (*page, error) {
	p := &page{Title: v.title, Path: r.URL.Path, Query: r.URL.Query(), Now: time.Now(), live: v.live}
	m := s.mesh()
	if m == nil {
		return p, errNotOpen
	}
	p.mesh, p.Mesh = m, m.Look(r.Context())
	if err := s.Away(); err != nil {
		p.Stale = err.Error()
	} else if p.Mesh.Err != nil {
		p.Stale = p.Mesh.Err.Error()
	}
	return p, p.moveTo(r.Context(), p.Query.Get("at"))
}

var errNotOpen = errors.New("the console has not reached the log yet: it waits for the bus, and for a builder to begin the log")

// fail serves an error as a page.
func (s *Server) fail(w http.ResponseWriter, p *page, err error) {
	status := http.StatusInternalServerError
	var coded interface{ ExitCode() int }
	var of statusError
	switch {
	case errors.As(err, &of):
		status = of.status
	case errors.As(err, new(*process.UsageError)):
		status = http.StatusBadRequest
	case errors.As(err, &coded) && coded.ExitCode() == 3:
		status = http.StatusNotFound
	case errors.Is(err, errNotOpen), s.Away() != nil:
		status = http.StatusServiceUnavailable
	}
	if status == http.StatusInternalServerError {
		s.Log.Warn("a page cannot be shown", "path", p.Path, "error", err)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	p.Title, p.Failed, p.Data = "Error", true, map[string]any{"Status": status, "Error": err.Error()}
	s.render(w, "error.html", p)
}

// render writes a page, whole or not at all.
func (s *Server) render(w http.ResponseWriter, file string, p *page) {
	var b bytes.Buffer
	if err := s.pages[file].Execute(&b, p); err != nil {
		s.Log.Error("a page cannot be made", "page", file, "error", err)
		http.Error(w, "this page cannot be made; the log says why", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(b.Bytes()) // the client is gone otherwise
}

// Limits of server-sent events.
const (
	eventPause   = time.Second      // between two events of a client
	eventAlive   = 15 * time.Second // without one, a comment keeps the connection
	eventTimeout = 5 * time.Second  // for a slow client to take one
)

// events tells a page that the mesh has changed; the page then loads itself again.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	m := s.mesh()
	if m == nil {
		http.Error(w, errNotOpen.Error(), http.StatusServiceUnavailable)
		return
	}
	changed, end, err := m.Listen()
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer end()
	w.Header().Set("Content-Type", "text/event-stream")
	c := http.NewResponseController(w)
	if err := c.SetReadDeadline(time.Time{}); err != nil { // of a request that has come
		return
	}
	send := func(text string) bool {
		err := c.SetWriteDeadline(time.Now().Add(eventTimeout))
		if err == nil {
			_, err = fmt.Fprint(w, text)
		}
		return err == nil && c.Flush() == nil
	}
	if !send("retry: 3000\n\n") {
		return
	}
	alive := time.NewTicker(eventAlive)
	defer alive.Stop()
	for {
		text := ": alive\n\n"
		select {
		case <-r.Context().Done():
			return
		case <-alive.C:
		case <-changed:
			head := m.Now().Head.Version()
			text = fmt.Sprintf("event: changed\ndata: %s\n\n", head)
		}
		if !send(text) {
			return
		}
		pause := time.NewTimer(eventPause)
		select {
		case <-r.Context().Done():
			pause.Stop()
			return
		case <-pause.C:
		}
	}
}

// moveTo moves a page to the version that an address names; empty: the present.
func (p *page) moveTo(ctx context.Context, at string) error {
	if at == "" {
		p.moment = command.Moment{Version: p.Mesh.Head.Version(), Manifest: p.Mesh.Head.Manifest}
		if p.moment.Manifest != nil {
			return nil
		}
		m, err := command.Head(ctx, p.mesh.Past.Versions)
		p.moment = m
		return err
	}
	m, err := command.FindMoment(ctx, p.mesh.Past, at)
	p.moment, p.At = m, m.Version.String()
	if err == nil && m.Version == (ident.Position{}) {
		err = command.NotFound("version %s: there is none", at)
	}
	return err
}
