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

// Proxy forwards one client's requests to the API server and simulates failures
// of the network or of a load balancer. Its methods may be called concurrently.
type Proxy struct {
	config *rest.Config
	server *http.Server
	done   chan struct{} // closed when server has ended

	mu        sync.Mutex
	passes    chan struct{} // closed while the proxy forwards; open during Hang
	intercept func(http.ResponseWriter, *http.Request) bool
	cut       context.CancelFunc // ends the requests in flight
	inFlight  context.Context    //nolint:containedctx // of all requests between two calls of Cut
}

// Proxy starts a proxy on loopback that sends every request to the API server with
// the credentials of c. The caller ends it with Close.
func (s *Server) Proxy(c *rest.Config) (*Proxy, error) {
	upstream, err := rest.TransportFor(c)
	if err != nil {
		return nil, err
	}
	target, err := url.Parse(c.Host)
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
			TLSClientConfig: rest.TLSClientConfig{CAData: s.ca.PEM()},
		},
		done: make(chan struct{}), passes: make(chan struct{}),
	}
	close(p.passes)
	p.inFlight, p.cut = context.WithCancel(context.Background())
	p.server = &http.Server{
		Handler: p.handler(&httputil.ReverseProxy{
			Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
			Transport:     upstream,
			FlushInterval: -1, // forward each watch event immediately
			ModifyResponse: func(r *http.Response) error {
				r.Body = &gated{ReadCloser: r.Body, ctx: r.Request.Context(), wait: p.wait}
				return nil
			},
			ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		}),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{s.serverCertificate().TLS()}},
		ErrorLog:  slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // broken connections are intended
	}
	go func() {
		defer close(p.done)
		_ = p.server.ServeTLS(l, "", "") // returns after Close
	}()
	return p, nil
}

// Config returns a copy of the configuration for clients of the proxy.
func (p *Proxy) Config() *rest.Config { return rest.CopyConfig(p.config) }

// Intercept makes the proxy call f for every later request. If f returns true, it
// has answered the request, which the proxy then does not forward. A nil f
// intercepts nothing.
func (p *Proxy) Intercept(f func(http.ResponseWriter, *http.Request) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.intercept = f
}

// Hang makes the proxy forward nothing until Resume or Cut: it accepts
// connections and keeps them open, but requests and watches get no more bytes.
func (p *Proxy) Hang() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.passes:
		p.passes = make(chan struct{})
	default:
	}
}

// Resume ends Hang and forwards the bytes that the proxy held back.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resume()
}

// resume is Resume for callers that hold p.mu.
func (p *Proxy) resume() {
	select {
	case <-p.passes:
	default:
		close(p.passes)
	}
}

// Cut breaks all requests in flight and ends Hang; the proxy forwards new
// requests.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut()
	p.inFlight, p.cut = context.WithCancel(context.Background())
	p.resume()
}

// Close ends the proxy and closes all connections.
func (p *Proxy) Close() {
	p.Cut()
	p.server.Close()
	<-p.done
}

func (p *Proxy) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		inFlight, intercept := p.inFlight, p.intercept
		p.mu.Unlock()
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(inFlight, cancel)()
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

// wait returns nil when the proxy does not hang.
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

// gated is a response's body that hangs when its proxy does.
type gated struct {
	io.ReadCloser
	ctx  context.Context //nolint:containedctx // of its request
	wait func(context.Context) error
}

func (g *gated) Read(b []byte) (int, error) {
	n, err := g.ReadCloser.Read(b)
	if waited := g.wait(g.ctx); waited != nil {
		return 0, waited
	}
	return n, err
}
