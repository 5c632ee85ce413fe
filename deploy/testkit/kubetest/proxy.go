package kubetest

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"

	"k8s.io/client-go/rest"
)

// Proxy stands between one client and the API server, and fails as a network
// or a load balancer on the way would. Its methods may be called from any
// goroutine.
type Proxy struct {
	config *rest.Config
	server *http.Server
	done   chan struct{} // closed once server serves no more

	mu        sync.Mutex
	passes    chan struct{} // closed while bytes pass
	intercept func(http.ResponseWriter, *http.Request) bool
	cut       context.CancelFunc // ends what is under way
	underWay  context.Context    //nolint:containedctx // of all requests between two cuts
}

// Proxy starts a proxy on loopback that talks to the API server as the user
// whose access c is, whoever comes. The caller ends it with Close.
func (s *Server) Proxy(c *rest.Config) (*Proxy, error) {
	upstream, err := rest.TransportFor(c)
	if err != nil {
		return nil, err
	}
	target, err := url.Parse(c.Host)
	if err != nil {
		return nil, err
	}
	own, err := s.ca.server()
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(own.cert, own.key)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		config: &rest.Config{
			Host: "https://" + l.Addr().String(), UserAgent: c.UserAgent, QPS: c.QPS, WarningHandler: c.WarningHandler,
			TLSClientConfig: rest.TLSClientConfig{CAData: s.ca.pem},
		},
		done: make(chan struct{}), passes: make(chan struct{}),
	}
	close(p.passes)
	p.underWay, p.cut = context.WithCancel(context.Background())
	p.server = &http.Server{
		Handler: p.handler(&httputil.ReverseProxy{
			Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
			Transport:     upstream,
			FlushInterval: -1, // each event of a watch at once
			ModifyResponse: func(r *http.Response) error {
				r.Body = &gated{ReadCloser: r.Body, ctx: r.Request.Context(), wait: p.wait}
				return nil
			},
			ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		}),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}},
		ErrorLog:  slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // connections that break are its purpose
	}
	// Ends with Close.
	go func() {
		defer close(p.done)
		_ = p.server.ServeTLS(l, "", "") // until Close
	}()
	return p, nil
}

// Config is the access through the proxy, a copy for the caller.
func (p *Proxy) Config() *rest.Config { return rest.CopyConfig(p.config) }

// Intercept lets f answer requests in the API server's place, from now on: all
// for which it returns true. A nil f intercepts nothing.
func (p *Proxy) Intercept(f func(http.ResponseWriter, *http.Request) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.intercept = f
}

// Hang lets nothing pass any more: connections are taken and stay open,
// requests and watches get not one more byte. It ends with Resume or Cut.
func (p *Proxy) Hang() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.passes:
		p.passes = make(chan struct{})
	default:
	}
}

// Resume ends a Hang. What was held back arrives.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resume()
}

// resume is Resume; p.mu must be held.
func (p *Proxy) resume() {
	select {
	case <-p.passes:
	default:
		close(p.passes)
	}
}

// Cut breaks off all that is under way, what hangs included; new requests pass.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut()
	p.underWay, p.cut = context.WithCancel(context.Background())
	p.resume()
}

// Close ends the proxy and all connections.
func (p *Proxy) Close() {
	p.Cut()
	p.server.Close()
	<-p.done
}

func (p *Proxy) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		underWay, intercept := p.underWay, p.intercept
		p.mu.Unlock()
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(underWay, cancel)()
		r = r.WithContext(ctx)
		if err := p.wait(ctx); err != nil {
			panic(http.ErrAbortHandler)
		}
		if intercept != nil && intercept(w, r) {
			return
		}
		next.ServeHTTP(w, r)
	})
}

// wait returns nil as soon as bytes pass.
func (p *Proxy) wait(ctx context.Context) error {
	p.mu.Lock()
	passes := p.passes
	p.mu.Unlock()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-passes:
		return nil
	}
}

// gated is a response's body that hangs as its proxy does.
type gated struct {
	io.ReadCloser
	ctx  context.Context //nolint:containedctx // of the request that it answers
	wait func(context.Context) error
}

func (g *gated) Read(b []byte) (int, error) {
	n, err := g.ReadCloser.Read(b)
	if waited := g.wait(g.ctx); waited != nil {
		return 0, waited
	}
	return n, err
}
