package frontend

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

const (
	// requestMemory is how many bytes all requests that are being received and
	// decoded may take. gRPC gathers the pieces of a request and then joins
	// them, so a request takes twice its size.
	requestMemory = 256 << 20
	requestCopies = 2
	// addressShare is the part of it that the clients behind one address may take.
	addressShare = 8
	// smallRequests is what a connection may have under way even if the budget is
	// used up, and tinyRequests if the share of its address is: most requests never
	// wait.
	smallRequests = 64 << 10
	tinyRequests  = 16 << 10
	// tinyRead is how much is read at once of a connection that has used the budget
	// up and is not within a request: answers to pings, for example.
	tinyRead = 4 << 10
	// largeRequest is from how many bytes on Go's collector is frugal in the turn of a
	// connection, and nobody gets a turn until what a connection has left is collected.
	largeRequest = 1 << 20
	// requestTurn is how long one connection at a time may take to complete its
	// requests once the budget is used up, requestStall how long it may send nothing
	// of them, and requestWait how long others wait for their turn.
	requestTurn  = 5 * time.Second
	requestStall = time.Second
	requestWait  = 20 * time.Second
	// requestAge is how long a connection may have much under way while others
	// wait.
	requestAge = 30 * time.Second
)

// budget limits the memory that requests take from their first byte on. gRPC
// gathers a request before this package sees any of it, and lets a client send 64
// MiB on each of its streams, so the connections are counted.
//
// Once the budget is used up, or the share of an address, a connection that has
// much of it and is within a request is not read any more: one connection at a time
// goes on, until it has completed its requests or its turn is over. A connection
// that waits for too long, does not complete its requests in its turn, or has had
// much under way for long while others wait, loses its streams. Connections with
// little under way are read as ever.
//
// What is under way of a connection may be less than what was counted: gRPC drops
// data of streams that have ended or never began. So an address counts for no more
// than its share, and a client that sends such data takes nothing from others.
//
// In the turn of a large request Go's collector is frugal. The turn ends when its memory
// is free again: when a refused connection is closed, and collected.
type budget struct {
	most, share int64 // bytes of all connections, of those of an address
	small, tiny int64 // bytes of a connection

	mu      sync.Mutex
	used    int64
	turn    *meteredConn // may go on; nil: none
	collect bool         // the memory of closed connections is being collected
	frugal  bool         // the collector was told that the turn is one of a large request
	waiting []*meteredConn
	// large holds the connections that have more than small under way, and since
	// when.
	large map[*meteredConn]time.Time
}

func newBudget() *budget {
	return &budget{most: requestMemory / requestCopies, share: requestMemory / requestCopies / addressShare, small: smallRequests, tiny: tinyRequests, large: make(map[*meteredConn]time.Time)}
}

// add changes what a connection has under way; mu is held.
func (b *budget) add(c *meteredConn, bytes int64) {
	// A connection's streams may have ended since it was charged.
	bytes = max(bytes, -c.underWay)
	peer, share := c.accepted.peer, b.share
	b.used -= min(peer.underWay, share)
	c.underWay += bytes
	peer.underWay += bytes
	b.used += min(peer.underWay, share)
	if _, known := b.large[c]; c.underWay <= b.small {
		delete(b.large, c)
	} else if !known {
		b.large[c] = time.Now()
	}
	if c == b.turn && b.fits(c) {
		b.endTurn()
	}
	if bytes < 0 {
		b.next()
	}
}

// fits reports whether there is room for more of a connection; mu is held.
func (b *budget) fits(c *meteredConn) bool {
	switch {
	case c.accepted.peer.underWay > b.share:
		return c.underWay <= b.tiny
	case b.used > b.most:
		return c.underWay <= b.small
	}
	return true
}

// next lets connections go on that may, and gives the turn to one of the address
// that has the least under way, to the one with the least; mu is held.
func (b *budget) next() {
	proceeds := func(c *meteredConn) bool {
		if !b.fits(c) && b.turn != c {
			return false
		}
		close(c.proceed)
		return true
	}
	b.waiting = slices.DeleteFunc(b.waiting, proceeds)
	if b.turn != nil || b.collect || len(b.waiting) == 0 {
		return
	}
	b.turn = slices.MinFunc(b.waiting, func(x, y *meteredConn) int {
		return cmp.Or(cmp.Compare(x.accepted.peer.underWay, y.accepted.peer.underWay), cmp.Compare(x.underWay, y.underWay))
	})
	b.turn.turnBegan = time.Now()
	b.turn.turnEnds.Reset(requestStall)
	b.waiting = slices.DeleteFunc(b.waiting, proceeds)
}

// endTurn takes the turn from the connection that has it; mu is held.
func (b *budget) endTurn() {
	b.turn = nil
	if b.frugal {
		b.frugal = false
		go frugal(false)
	}
}

// wait returns when a connection may be read that is within a request: at once
// unless the budget is used up and the connection has much of it. It reports false
// if the connection has waited for too long, takes more than one request in its turn,
// or is closed.
func (b *budget) wait(c *meteredConn) bool {
	b.mu.Lock()
	if fits, turn := b.fits(c), b.turn == c; fits || turn {
		b.mu.Unlock()
		return fits || c.underWay <= maxRequest+b.small
	}
	c.proceed = make(chan struct{})
	b.waiting = append(b.waiting, c)
	b.next()
	var old []*meteredConn
	for other, since := range b.large {
		if other != c && time.Since(since) > requestAge {
			old = append(old, other)
		}
	}
	b.mu.Unlock()
	for _, other := range old {
		other.refuse()
	}
	timer := time.NewTimer(requestWait)
	defer timer.Stop()
	select {
	case <-c.proceed:
		return true
	case <-c.closed:
	case <-timer.C:
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.waiting, c)
	if i < 0 {
		return true // its turn came meanwhile
	}
	b.waiting = slices.Delete(b.waiting, i, i+1)
	return false
}

// has reports whether there is room for more of a connection, or it has the turn.
func (b *budget) has(c *meteredConn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fits(c) || b.turn == c
}

// leave forgets what a connection has under way.
func (b *budget) leave(c *meteredConn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.underWay >= largeRequest && !b.collect {
		b.collect = true
		go b.collected()
	}
	b.add(c, -c.underWay)
}

// collected collects what connections have left.
func (b *budget) collected() {
	runtime.GC()
	runtime.GC() // gRPC's pools keep buffers over one collection
	b.mu.Lock()
	defer b.mu.Unlock()
	b.collect = false
	b.next()
}

// inUse returns the bytes under way and how many connections wait.
func (b *budget) inUse() (bytes int64, waiting int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used * requestCopies, len(b.waiting)
}

func (b *budget) refusal() error {
	return status.Error(codes.ResourceExhausted, fmt.Sprintf(
		"the requests that this frontend receives take more than the %d MiB that it has for them, or than the %d MiB for one address, and those of this connection take much of it: send smaller requests, or later",
		b.most*requestCopies>>20, b.share*requestCopies>>20))
}

// meteredConn is a connection whose requests are charged to the budget. The
// transport reads it in one goroutine.
type meteredConn struct {
	net.Conn // after the handshake
	accepted *acceptedConn
	budget   *budget
	refused  func(*meteredConn, error) // ends its streams
	unused   func()                    // is told if it ends without a stream; nil: nothing is

	ready    *readyReader // nil: only Read can read
	closing  sync.Once
	closed   chan struct{} // closed with the connection
	turnEnds *time.Timer
	expires  *time.Timer // closes the connection when the client's certificate ends; nil: nothing does
	began    time.Time   // when its handshake was complete
	over     atomic.Bool // it was refused, and is read no more

	// guarded by budget.mu
	proceed   chan struct{}
	underWay  int64
	turnBegan time.Time

	mu      sync.Mutex // protects what follows
	frames  frameScanner
	streams map[*conn]struct{}
	used    bool // it had a stream
}

func newMeteredConn(c net.Conn, accepted *acceptedConn, b *budget, refused func(*meteredConn, error)) *meteredConn {
	m := &meteredConn{
		Conn: c, accepted: accepted, budget: b, refused: refused, ready: newReadyReader(c),
		closed: make(chan struct{}), frames: newFrameScanner(), streams: make(map[*conn]struct{}), began: time.Now(),
	}
	m.turnEnds = stopped(m.endTurn)
	return m
}

// endAt closes the connection at a time, unless that is zero: its streams have the
// identity of the handshake, and none after its certificate (CA-14). The client connects
// again, with the certificate that it has then.
func (c *meteredConn) endAt(at time.Time) {
	if !at.IsZero() {
		c.expires = stopped(func() { _ = c.Close() })
		c.expires.Reset(time.Until(at))
	}
}

// endTurn refuses a connection that has not completed its requests in its turn. One
// that has, and waits in line to begin (admission), gives the turn on; but an address
// has no more than one request of the largest size above its share like this.
func (c *meteredConn) endTurn() {
	b, complete := c.budget, !c.withinRequest()
	b.mu.Lock()
	late := b.turn == c
	if late && complete && c.accepted.peer.underWay <= b.share+maxRequest {
		b.endTurn()
		b.next()
		late = false
	}
	b.mu.Unlock()
	if late {
		c.refuse()
	}
}

// refuse ends the streams of the connection with the reason, and then the
// connection, which is read no more. What it has under way counts until then: gRPC
// drops it when the streams have ended.
func (c *meteredConn) refuse() {
	if c.over.Swap(true) {
		return
	}
	c.refused(c, c.budget.refusal())
	time.AfterFunc(stopTimeout, func() { _ = c.Close() }) // after the reason was sent
}

// Read implements net.Conn.
func (c *meteredConn) Read(p []byte) (int, error) {
	most, err := c.await()
	if err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(p[:min(len(p), most)])
	c.charge(p[:n])
	return n, err
}

// ReadOnReady is what gRPC's transport calls instead of Read, if it is there. It
// returns a buffer of the pool only if something was read.
func (c *meteredConn) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	if c.ready == nil {
		buf := pool.Get(size)
		n, err := c.Read(*buf)
		if n == 0 {
			pool.Put(buf)
			buf = nil
		}
		return buf, n, err
	}
	most, err := c.await()
	if err != nil {
		return nil, 0, err
	}
	buf, n, err := c.ready.read(size, most, pool)
	if buf != nil {
		c.charge((*buf)[:n])
	}
	return buf, n, err
}

// await returns when the connection may be read, and how many bytes of it at most;
// or an error if the connection is closed.
func (c *meteredConn) await() (most int, err error) {
	if c.over.Load() {
		<-c.closed
	}
	if c.withinRequest() && !c.budget.wait(c) && !c.isClosed() {
		c.refuse()
		<-c.closed
	}
	switch {
	case c.isClosed():
		return 0, net.ErrClosed
	case c.budget.has(c):
		return math.MaxInt, nil
	}
	return tinyRead, nil
}

// withinRequest reports whether a part of a request was read whose end was not.
func (c *meteredConn) withinRequest() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.frames.begun) > 0
}

// charge counts the requests in what was read.
func (c *meteredConn) charge(read []byte) {
	c.mu.Lock()
	data := c.frames.scan(read)
	c.mu.Unlock()
	if data == 0 {
		return
	}
	c.budget.mu.Lock()
	defer c.budget.mu.Unlock()
	if c.isClosed() { // nothing would take it off again
		return
	}
	if c.budget.add(c, int64(data)); c.budget.turn == c {
		c.turnEnds.Reset(min(requestStall, max(0, requestTurn-time.Since(c.turnBegan))))
		if c.underWay >= largeRequest && !c.budget.frugal {
			c.budget.frugal = true
			go frugal(true) // it stops the world, and small requests have turns too
		}
	}
}

func (c *meteredConn) isClosed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

// Close implements net.Conn.
func (c *meteredConn) Close() error {
	c.closing.Do(func() {
		close(c.closed)
		c.turnEnds.Stop()
		if c.expires != nil {
			c.expires.Stop()
		}
		c.budget.leave(c)
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.used && c.unused != nil {
			c.unused()
		}
	})
	err := c.Conn.Close()
	c.accepted.release()
	return err
}

// decoded takes a request of that many bytes from what is under way.
func (c *meteredConn) decoded(bytes int) {
	c.budget.mu.Lock()
	defer c.budget.mu.Unlock()
	c.budget.add(c, -int64(bytes))
}

// join adds a stream of the connection; leave removes it. With the last stream
// goes what it left unread.
func (c *meteredConn) join(s *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.streams[s], c.used = struct{}{}, true
}

func (c *meteredConn) leave(s *conn) {
	c.mu.Lock()
	delete(c.streams, s)
	last := len(c.streams) == 0
	if last {
		clear(c.frames.begun)
	}
	c.mu.Unlock()
	if last && !c.over.Load() {
		c.budget.leave(c)
	}
}

// forgetRefused takes off what streams have left that were refused before they
// joined: their requests come although nothing reads them. A client that is refused
// comes back on the same connection, each time with a request.
func (c *meteredConn) forgetRefused() {
	c.mu.Lock()
	unused, begun := len(c.streams) == 0, costOfMessage*int64(len(c.frames.begun))
	c.mu.Unlock()
	if unused {
		c.budget.mu.Lock()
		defer c.budget.mu.Unlock()
		c.budget.add(c, min(0, begun-c.underWay))
	}
}

// clientPreface begins a connection of HTTP/2.
const clientPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// frameScanner follows the requests in what is read of a connection of HTTP/2. They
// are in DATA frames, each after 5 bytes with its size.
type frameScanner struct {
	skip   int // bytes left of the current frame, or of the preface
	pad    int // of which so many at its end are padding
	head   [frameHead]byte
	known  int // bytes of head
	stream uint32
	kind   byte
	padded bool // the size of the padding comes next
	ends   bool // the stream, with this frame
	// begun holds the streams that are within a request.
	begun map[uint32]message
}

// message is a request that has begun.
type message struct {
	head  [messageHead]byte
	known int // bytes of head
	left  int // if all are known
}

func newFrameScanner() frameScanner {
	return frameScanner{skip: len(clientPreface), kind: headersFrame, begun: make(map[uint32]message)}
}

// A frame begins with its length in 3 bytes, its type, its flags and its stream.
const (
	frameHead = 9

	dataFrame, headersFrame, resetFrame = 0, 1, 3

	endStream, paddedData = 1, 8 // flags

	streamBits = 1<<31 - 1 // of the stream; gRPC ignores the other one
)

// costOfMessage is what a request that has begun takes here. A client can begin one
// with a byte, on streams that do not exist.
const costOfMessage = 64

// scan returns how many of the bytes are data of requests, and adds what the requests
// that they begin or end take here.
func (s *frameScanner) scan(p []byte) (data int) {
	before := len(s.begun)
	defer func() { data += costOfMessage * (len(s.begun) - before) }()
	for len(p) > 0 {
		if s.skip > 0 {
			if s.padded {
				s.padded, s.pad = false, min(int(p[0]), s.skip-1)
				p = p[1:]
				if s.skip--; s.skip == 0 {
					s.end()
				}
				continue
			}
			n := min(s.skip, len(p))
			if s.kind == dataFrame {
				d := min(n, max(s.skip-s.pad, 0))
				data += d
				s.follow(p[:d])
			}
			p = p[n:]
			if s.skip -= n; s.skip == 0 {
				s.end()
			}
			continue
		}
		n := copy(s.head[s.known:], p)
		s.known += n
		p = p[n:]
		if s.known < frameHead {
			break
		}
		s.known = 0
		s.skip = int(binary.BigEndian.Uint32(s.head[:4]) >> 8)
		s.kind, s.stream = s.head[3], binary.BigEndian.Uint32(s.head[5:])&streamBits
		s.pad, s.padded = 0, s.kind == dataFrame && s.head[4]&paddedData != 0
		s.ends = s.kind == resetFrame || s.kind <= headersFrame && s.head[4]&endStream != 0
		if s.skip == 0 {
			s.end()
		}
	}
	return data
}

// end is called at the end of a frame.
func (s *frameScanner) end() {
	if s.ends {
		delete(s.begun, s.stream)
	}
	s.ends = false
}

// follow reads data of the current stream.
func (s *frameScanner) follow(p []byte) {
	m, within := s.begun[s.stream]
	for len(p) > 0 {
		if m.known < messageHead {
			n := copy(m.head[m.known:], p)
			m.known += n
			p, within = p[n:], true
			if m.known < messageHead {
				break
			}
			m.left = int(binary.BigEndian.Uint32(m.head[1:]))
		}
		n := min(m.left, len(p))
		m.left -= n
		p = p[n:]
		if m.left == 0 {
			m, within = message{}, false
		}
	}
	if within {
		s.begun[s.stream] = m
	} else {
		delete(s.begun, s.stream)
	}
}
