package redirected_test

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"meshlog.dev/deploy/testkit/certtest"
)

// port is a port of web: its number at the service and at the workload, its protocol as the
// service names it, and what web speaks there.
type port struct {
	name           string
	number, target int
	protocol       string
	speaks         string
}

var ports = []port{
	{"http", 8001, 9001, "HTTP", "http"},
	{"http2", 8002, 9002, "HTTP2", "http"},
	{"tcp", 8003, 9003, "TCP", "echo"},
	{"first", 8004, 9004, "TCP", "greeting"},
	{"tls", 8005, 9005, "TCP", "tls"},
	{"auto", 8006, 9006, "", "http"},
	{"auto-tcp", 8007, 9007, "", "echo"},
	{"auto-first", 8008, 9008, "", "greeting"},
	{"auto-tls", 8009, 9009, "", "tls"},
}

func portOf(name string) port {
	for _, p := range ports {
		if p.name == name {
			return p
		}
	}
	panic("no port " + name)
}

// serviceIP is the virtual IP of web.
const serviceIP = "10.98.0.1"

// webEntry is the ServiceEntry of web.
func webEntry() string {
	var all, targets []string
	for _, p := range ports {
		all = append(all, fmt.Sprintf("{number: %d, name: %s, protocol: %q, targetPort: %d}", p.number, p.name, p.protocol, p.target))
		targets = append(targets, fmt.Sprintf("%s: %d", p.name, p.target))
	}
	return fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.example]
  addresses: [%s]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [%s]
  endpoints: [{address: %s, serviceAccount: web, labels: {app: web}, ports: {%s}}]
---`, serviceIP, strings.Join(all, ", "), webIP, strings.Join(targets, ", "))
}

// serve serves a port of web itself, on all its addresses.
func (r *rig) serve(p port) {
	r.Helper()
	l := r.web.listen(fmt.Sprintf("0.0.0.0:%d", p.target))
	switch p.speaks {
	case "http":
		s := &http.Server{Protocols: new(http.Protocols), ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			host, _, _ := net.SplitHostPort(r.RemoteAddr)
			_, _ = fmt.Fprintf(w, "from %s by %q", host, r.Header.Get("x-forwarded-client-cert")) // the client looks at it
		})}
		s.Protocols.SetHTTP1(true)
		s.Protocols.SetUnencryptedHTTP2(true)
		go func() { _ = s.Serve(l) }() // Close ends it
		r.Cleanup(func() { _ = s.Close() })
		return
	case "tls":
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{certtest.NewCA("application").Server("web", time.Now().Add(time.Hour)).TLS()}, MinVersion: tls.VersionTLS12})
	}
	go accept(l, p.speaks == "greeting")
}

// accept sends a greeting with the address of the caller, or what the caller sends.
func accept(l net.Listener, greets bool) {
	for {
		c, err := l.Accept()
		if err != nil {
			return // it is closed
		}
		go func() {
			defer func() { _ = c.Close() }()
			if greets {
				host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
				_, _ = io.WriteString(c, "hello "+host+"\n") // the client looks at it
			}
			_, _ = io.Copy(c, c)
		}()
	}
}

// way is how a caller calls a port of web.
type way struct {
	name string
	from *namespace
	to   string      // web's address, or the service's
	tls  *tls.Config // nil: none of its own
	h2   bool
	// identity is the one that the caller proves; empty: that of client.
	identity string
}

func (w way) dial(ctx context.Context, p port) (net.Conn, error) {
	number := p.target
	if w.to == serviceIP {
		number = p.number
	}
	c, err := w.from.dial(ctx, fmt.Sprintf("%s:%d", w.to, number))
	if err != nil || w.tls == nil {
		return c, err
	}
	secure := tls.Client(c, w.tls)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return secure, nil
}

// call calls a port and returns what came, or an error.
func (r *rig) call(w way, p port) (string, error) {
	ctx, cancel := context.WithTimeout(r.Context(), 20*time.Second)
	defer cancel()
	if p.speaks == "http" {
		t := w.transport(p)
		defer t.CloseIdleConnections()
		return request(ctx, t, w, p)
	}
	c, err := w.dial(ctx, p)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return "", err
	}
	if p.speaks != "greeting" {
		return echo(c)
	}
	return bufio.NewReader(c).ReadString('\n')
}

func echo(c net.Conn) (string, error) {
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return "", err
	}
	return bufio.NewReader(c).ReadString('\n')
}

// transport makes requests over connections to a port.
func (w way) transport(p port) *http.Transport {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return w.dial(ctx, p) }
	t := &http.Transport{Protocols: new(http.Protocols), DialContext: dial}
	t.Protocols.SetHTTP1(!w.h2)
	t.Protocols.SetUnencryptedHTTP2(w.h2)
	return t
}

func request(ctx context.Context, t *http.Transport, w way, p port) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://web.example:%d/", p.number), nil)
	if err != nil {
		return "", err
	}
	if w.tls == nil { // a peer of the mesh may pass on what it got
		r.Header.Set("x-forwarded-client-cert", "URI=spiffe://cluster.local/ns/forged/sa/forged")
	}
	resp, err := t.RoundTrip(r)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(resp.Body)
	err = errors.Join(err, resp.Body.Close())
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return string(body), err
}

// outcomes of a call.
const (
	closed  = "closed"
	plain   = "plain"     // it arrives, and web does not learn who called
	as      = "as itself" // it arrives, and the caller has proved who it is
	arrives = "arrives"   // it arrives, and is no request, so web cannot learn who called
)

func (r *rig) outcome(w way, p port) string {
	got, err := r.call(w, p)
	return judge(got, err, w, p)
}

func judge(got string, err error, w way, p port) string {
	switch {
	case err != nil:
		return closed
	case p.speaks != "http" && strings.HasPrefix(got, "hello"):
		return arrives
	case p.speaks != "http", strings.Contains(got, "forged"):
		return fmt.Sprintf("%q", got)
	case strings.Contains(got, "URI="+cmp.Or(w.identity, clientIdentity)):
		return as
	}
	return plain
}
