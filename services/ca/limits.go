package ca

import (
	"net"
	"sync"

	"golang.org/x/time/rate"

	"meshlog.dev/services/internal/address"
)

// burst is how many seconds' worth of PerSecond may begin at once.
const burst = 5

// callers counts what the clients of each address do.
type callers struct {
	limits Limits

	mu        sync.Mutex
	addresses map[string]*caller
	atOnce    int
	sweepAt   int // at how many addresses idle ones are forgotten
}

// caller is an address; guarded by callers.mu.
type caller struct {
	rate                *rate.Limiter
	connections, atOnce int
}

// firstSweep is at how many addresses idle ones are forgotten for the first time.
const firstSweep = 1024

func newCallers(l Limits) *callers {
	return &callers{limits: l, addresses: map[string]*caller{}, sweepAt: firstSweep}
}

// of returns the caller of an address; mu is held.
func (c *callers) of(addr string) *caller {
	known := c.addresses[addr]
	if known == nil {
		if len(c.addresses) >= c.sweepAt {
			c.sweep()
		}
		known = &caller{rate: rate.NewLimiter(rate.Limit(c.limits.PerSecond), burst*c.limits.PerSecond)}
		c.addresses[addr] = known
	}
	return known
}

// sweep forgets the addresses that a new entry would describe as well; mu is held.
func (c *callers) sweep() {
	for addr, known := range c.addresses {
		if known.connections == 0 && known.atOnce == 0 && known.rate.Tokens() >= float64(known.rate.Burst()) {
			delete(c.addresses, addr)
		}
	}
	c.sweepAt = max(firstSweep, 2*len(c.addresses))
}

// connect counts a connection, or reports that its address may not have it.
func (c *callers) connect(addr string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	from := c.of(addr)
	if from.connections >= c.limits.Connections || !from.rate.Allow() {
		return false
	}
	from.connections++
	return true
}

func (c *callers) disconnect(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addresses[addr].connections--
}

// enter counts a request, or reports that its address may not make it now. The
// request must leave.
func (c *callers) enter(addr string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	from := c.of(addr)
	if from.atOnce >= c.limits.PerAddress || c.atOnce >= c.limits.AtOnce || !from.rate.Allow() {
		return false
	}
	from.atOnce++
	c.atOnce++
	return true
}

func (c *callers) leave(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addresses[addr].atOnce--
	c.atOnce--
}

// listener closes connections that their address may not have, before they cost a
// handshake.
type listener struct {
	net.Listener
	callers *callers
	refused func()
}

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		addr := address.Of(conn.RemoteAddr())
		if l.callers.connect(addr) {
			return &countedConn{Conn: conn, gone: func() { l.callers.disconnect(addr) }}, nil
		}
		l.refused()
		_ = conn.Close()
	}
}

// countedConn is a connection that counts until it is closed.
type countedConn struct {
	net.Conn
	gone func()
	once sync.Once
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	c.once.Do(c.gone)
	return c.Conn.Close()
}
