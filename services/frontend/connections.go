package frontend

import (
	"net"
	"sync"
	"time"

	"meshlog.dev/services/internal/address"
)

// connections accepts connections on all listeners until it is closed.
//
// A gRPC server that stops waits for the connections in their handshake, two
// minutes for each silent client, before it sends GOAWAY on the others. So
// connections keeps them, and close closes them.
//
// An address may have as many connections as streams; further ones are closed.
type connections struct {
	listeners []net.Listener
	peers     *peers
	refused   func(net.Addr) // is told of connections that are closed

	mu          sync.Mutex // protects what follows
	closed      bool
	handshaking map[*acceptedConn]struct{}
}

func newAcceptor(cfg *Config, p *peers, refused func(net.Addr)) *connections {
	a := &connections{peers: p, refused: refused, handshaking: make(map[*acceptedConn]struct{})}
	for _, l := range cfg.Listeners {
		a.listeners = append(a.listeners, listener{Listener: l, acceptor: a})
	}
	for _, l := range cfg.TLSListeners {
		a.listeners = append(a.listeners, listener{Listener: l, acceptor: a, tls: true})
	}
	for _, l := range cfg.SinkListeners {
		a.listeners = append(a.listeners, listener{Listener: l, acceptor: a, tls: cfg.SinkTLS != nil, sinks: true})
	}
	return a
}

// close closes the listeners, and with them the connections that the kernel has
// and no Accept returned, and then the connections in their handshake.
func (a *connections) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for _, l := range a.listeners {
		_ = l.Close()
	}
	for c := range a.handshaking {
		_ = c.Close()
	}
}

func (a *connections) isClosed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.closed
}

func (a *connections) begin(c *acceptedConn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		_ = c.Close() // Accept returned it while close closed the listener
		return
	}
	a.handshaking[c] = struct{}{}
}

func (a *connections) established(c *acceptedConn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.handshaking, c)
}

type listener struct {
	net.Listener
	acceptor *connections
	tls      bool
	sinks    bool // for MCP-over-xDS
}

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		peer, ok := l.acceptor.peers.connect(address.Of(c.RemoteAddr()))
		if !ok {
			_ = c.Close()
			l.acceptor.refused(c.RemoteAddr())
			continue
		}
		accepted := &acceptedConn{Conn: c, acceptor: l.acceptor, tls: l.tls, sinks: l.sinks, peer: peer}
		l.acceptor.begin(accepted)
		return accepted, nil
	}
}

// acceptedConn wraps a connection to detect the end of its handshake. Afterwards
// the transport uses the wrapped connection itself.
type acceptedConn struct {
	net.Conn
	acceptor *connections
	tls      bool // begins with a TLS handshake
	sinks    bool // is for MCP-over-xDS
	peer     *holder
	leaving  sync.Once
}

// release stops counting the connection, once.
func (c *acceptedConn) release() { c.leaving.Do(c.peer.disconnect) }

// Close implements net.Conn.
func (c *acceptedConn) Close() error {
	c.release()
	return c.Conn.Close()
}

// SetDeadline implements net.Conn. The gRPC server sets a deadline for the
// handshake, and removes it when the handshake succeeded or failed.
func (c *acceptedConn) SetDeadline(t time.Time) error {
	if t.IsZero() {
		c.acceptor.established(c)
	}
	return c.Conn.SetDeadline(t)
}
