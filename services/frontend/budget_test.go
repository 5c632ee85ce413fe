package frontend

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// frame appends a frame of a stream.
func frame(b []byte, kind, flags byte, stream int, payload []byte) []byte {
	n := len(payload)
	b = append(b, byte(n>>16), byte(n>>8), byte(n), kind, flags, 0, 0, byte(stream>>8), byte(stream))
	return append(b, payload...)
}

// requestFrames appends the first bytes of a request of a size, in frames of 1000 bytes
// between others.
func requestFrames(b []byte, stream, size, sent int) []byte {
	message := make([]byte, messageHead+size)
	binary.BigEndian.PutUint32(message[1:], uint32(size))
	for rest := message[:sent]; len(rest) > 0; {
		n := min(len(rest), 1000)
		b = frame(b, headersFrame, 0, 1, make([]byte, 40))
		b = frame(b, dataFrame, 0, stream, rest[:n])
		b = frame(b, 6, 0, 0, make([]byte, 8)) // PING
		rest = rest[n:]
	}
	return b
}

// The scanner finds requests, however frames and reads cut them (XDS-1).
func TestFrameScanner(t *testing.T) {
	b := []byte(clientPreface)
	b = requestFrames(b, 3, 2500, 2505)
	b = requestFrames(b, 5, 0, 5)
	b = requestFrames(b, 7, 100_000, 3000) // within a request
	b = requestFrames(b, 9, 5000, 4)       // within its size
	b = requestFrames(b, 11, 5000, 1000)
	b = frame(b, resetFrame, 0, 11, make([]byte, 4))
	b = requestFrames(b, 13, 5000, 1000)
	b = frame(b, dataFrame, endStream, 13, nil)
	// Padding is no data, and the first bit of a stream's number is none: else a client
	// could hide a request, here of 500 bytes, behind others.
	b = frame(b, dataFrame, paddedData, 15, append([]byte{100}, append([]byte{0, 0, 0, 1, 244}, make([]byte, 400+100)...)...))
	b[len(b)-frameHead-506+5] |= 1 << 7
	b = frame(b, dataFrame, paddedData, 15, append([]byte{255}, make([]byte, 255)...))
	b = frame(b, dataFrame, paddedData, 15, append([]byte{3}, make([]byte, 99+3)...))
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0))
		s, got := newFrameScanner(), 0
		for rest := b; len(rest) > 0; {
			n := min(len(rest), 1+random.IntN(1+random.IntN(5000)))
			got += s.scan(rest[:n])
			rest = rest[n:]
		}
		want := []uint32{7, 9, 15}
		if begun := slices.Sorted(maps.Keys(s.begun)); got != 2505+5+3000+4+1000+1000+504+len(want)*costOfMessage || !slices.Equal(begun, want) {
			t.Fatalf("seed %d: %d bytes of data, within requests on %v; want %v", seed, got, begun, want)
		}
	}
}

// sender is a connection that a test fills.
type sender struct {
	t      *testing.T
	conn   *meteredConn
	client net.Conn
	ended  error // with which its streams ended
}

func newSender(t *testing.T, b *budget, p *peers, address string) *sender {
	s := &sender{t: t}
	client, server := net.Pipe()
	peer, _ := p.connect(address)
	s.client = client
	s.conn = newMeteredConn(server, &acceptedConn{Conn: server, peer: peer}, b, func(_ *meteredConn, reason error) { s.ended = reason })
	go func() {
		for p := make([]byte, 4096); ; {
			if _, err := s.conn.Read(p); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { _ = client.Close() })
	return s
}

// sends sends frames without waiting.
func (s *sender) sends(b []byte) {
	go func() {
		if _, err := s.client.Write(b); err != nil && !errors.Is(err, io.ErrClosedPipe) {
			s.t.Error(err)
		}
	}()
	synctest.Wait()
}

// A connection that has much of a budget that is used up waits; one with little under
// way never does. One at a time goes on, for a limited time (XDS-1).
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, p := &budget{most: 100_000, share: 25_000, small: 10_000, tiny: 5000, large: make(map[*meteredConn]time.Time)}, newPeers(Limits{})
		use := func() int64 { bytes, _ := b.inUse(); return bytes / requestCopies }
		var all []*sender
		for i := range 8 {
			s := newSender(t, b, p, fmt.Sprint("address", i))
			s.sends([]byte(clientPreface))
			all = append(all, s)
		}
		// Requests of 50,000 bytes, of which 24,000 come: those of four connections fit.
		for _, s := range all[:5] {
			s.sends(requestFrames(nil, 1, 50_000, 24_000))
		}
		if use() < 100_000 || use() > 125_000 {
			t.Errorf("%d bytes are under way", use())
		}
		// The first one that waits goes on, and nothing else.
		turn := slices.IndexFunc(all, func(s *sender) bool { return s.conn == b.turn })
		if turn < 0 {
			t.Fatal("no connection has its turn")
		}
		first := all[turn]
		small := all[5]
		small.sends(requestFrames(nil, 1, 50_000, 9000))
		if small.conn.underWay != 9000+costOfMessage {
			t.Errorf("of a connection with little under way %d bytes are read, want 9000", small.conn.underWay-costOfMessage)
		}
		// A connection whose requests are complete does not wait.
		idle := all[6]
		idle.sends(requestFrames(nil, 1, 9000, 9005))
		if idle.conn.withinRequest() || idle.conn.underWay != 9005 || idle.ended != nil {
			t.Errorf("a complete request: %d bytes, %v", idle.conn.underWay, idle.ended)
		}
		// Its request is never completed, so it loses its streams at the end of its turn.
		<-time.After(time.Minute)
		synctest.Wait()
		if status.Code(first.ended) != codes.ResourceExhausted {
			t.Errorf("after its turn, a connection that does not complete its request: %v", first.ended)
		}
		// The other requests are never completed either. Once another connection waits,
		// they have taken the budget for long enough.
		late := all[7]
		late.sends(requestFrames(nil, 1, 20_000, 20_005))
		if late.ended != nil || late.conn.underWay != 20_005 {
			t.Errorf("a later request is not received: %d bytes, %v", late.conn.underWay, late.ended)
		}
		for i, s := range all[:5] {
			if status.Code(s.ended) != codes.ResourceExhausted {
				t.Errorf("connection %d ended with %v", i, s.ended)
			}
		}
		if small.ended != nil || idle.ended != nil {
			t.Errorf("small connections ended with %v and %v", small.ended, idle.ended)
		}
		late.conn.decoded(20_005)
		synctest.Wait()
		if late.conn.underWay != 0 {
			t.Errorf("after a request was decoded, %d bytes are under way", late.conn.underWay)
		}
		for _, s := range all {
			_ = s.conn.Close()
			synctest.Wait()
		}
		if use() != 0 || len(p.addresses) != 0 {
			t.Errorf("after all connections have closed, %d bytes are under way, and %d addresses are known", use(), len(p.addresses))
		}
	})
}

// The clients behind one address have a share of the budget, and complete one request
// after the other beyond it (XDS-1).
func TestBudgetOfAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, p := &budget{most: 100_000, share: 25_000, small: 1000, tiny: 1000, large: make(map[*meteredConn]time.Time)}, newPeers(Limits{})
		var many []*sender
		for range 6 {
			s := newSender(t, b, p, "many")
			s.sends([]byte(clientPreface))
			s.sends(requestFrames(nil, 1, 20_000, 20_005))
			many = append(many, s)
		}
		use, waiting := b.inUse()
		if use /= requestCopies; use != 25_000 || waiting == 0 || p.addresses["many"].underWay > 65_000 {
			t.Errorf("one address counts for %d bytes of %d under way, and %d connections wait; its share is 25,000",
				use, p.addresses["many"].underWay, waiting)
		}
		other := newSender(t, b, p, "other")
		other.sends([]byte(clientPreface))
		other.sends(requestFrames(nil, 1, 24_000, 24_005))
		if other.conn.underWay != 24_005 {
			t.Errorf("of another address %d bytes are read", other.conn.underWay)
		}
		done := 0
		for range 20 { // each request is decoded when it is complete
			for _, s := range many {
				if s.conn.underWay == 20_005 {
					s.conn.decoded(20_005)
					synctest.Wait()
					done++
				}
			}
			synctest.Wait()
		}
		if done != 6 {
			t.Errorf("%d of 6 requests are received", done)
		}
		for _, s := range append(many, other) {
			if s.ended != nil {
				t.Errorf("a connection ended with %v", s.ended)
			}
			_ = s.conn.Close()
			synctest.Wait()
		}
	})
}

// A client that sends what nothing reads, on streams that do not exist, takes nothing
// from other addresses, and what it sends takes little memory (XDS-1).
func TestBudgetOfUnreadData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, p := &budget{most: 100_000, share: 25_000, small: 1000, tiny: 1000, large: make(map[*meteredConn]time.Time)}, newPeers(Limits{})
		flood := newSender(t, b, p, "attacker")
		flood.sends([]byte(clientPreface))
		for range 300 { // complete requests
			flood.sends(requestFrames(nil, 999, 995, 1000))
		}
		var all []*sender
		for range 3 {
			s := newSender(t, b, p, "attacker")
			s.sends([]byte(clientPreface))
			s.sends(requestFrames(nil, 1, 50_000, 5000))
			all = append(all, s)
		}
		if use, waiting := b.inUse(); use/requestCopies != 25_000 || waiting == 0 {
			t.Errorf("the attacker counts for %d bytes, its share is 25,000, and %d of its connections wait", use/requestCopies, waiting)
		}
		other := newSender(t, b, p, "other")
		other.sends([]byte(clientPreface))
		other.sends(requestFrames(nil, 1, 24_000, 24_005))
		if other.conn.underWay != 24_005 {
			t.Errorf("of another address %d bytes are read", other.conn.underWay)
		}
		// Each begun request counts, although it has one byte.
		begins := newSender(t, b, p, "third")
		begins.sends([]byte(clientPreface))
		for stream := range 10_000 {
			begins.conn.charge(frame(nil, dataFrame, 0, stream, []byte{0}))
		}
		if begins.conn.underWay < 10_000*costOfMessage {
			t.Errorf("10,000 requests that have begun count for %d bytes", begins.conn.underWay)
		}
		for _, s := range append(all, flood, other, begins) {
			_ = s.conn.Close()
			synctest.Wait()
			s.conn.charge(frame(nil, dataFrame, 0, 1, make([]byte, 100))) // was read while it closed
		}
		if use, _ := b.inUse(); use != 0 || len(b.large) != 0 {
			t.Errorf("after all connections have closed, %d bytes are under way", use)
		}
	})
}

// When the budget is used up, a connection takes one request in its turn, and the next
// turn is that of the address that has the least under way (XDS-1).
func TestBudgetTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, p := &budget{most: 100_000, share: 25_000, small: 1000, tiny: 1000, large: make(map[*meteredConn]time.Time)}, newPeers(Limits{})
		var greedy []*sender
		for range 20 {
			for address := range 4 {
				s := newSender(t, b, p, fmt.Sprint("attacker", address))
				s.sends([]byte(clientPreface))
				s.sends(requestFrames(nil, 1, 50_000, 10_000))
				greedy = append(greedy, s)
			}
		}
		honest := newSender(t, b, p, "honest")
		honest.sends([]byte(clientPreface))
		honest.sends(requestFrames(nil, 1, 24_000, 24_005))
		<-time.After(requestTurn + time.Second)
		synctest.Wait()
		if honest.conn.underWay != 24_005 || honest.ended != nil {
			t.Errorf("after one turn of another connection, %d of 24,005 bytes are read, %v", honest.conn.underWay, honest.ended)
		}
		// Its turn ends when its request is decoded. The next connection has two requests
		// of the largest size under way, or so it says.
		honest.conn.decoded(24_005)
		synctest.Wait()
		next := b.turn
		if next == nil {
			t.Fatal("no connection has its turn")
		}
		next.charge(requestFrames(nil, 3, 2*maxRequest, maxRequest+5))
		for _, s := range greedy {
			if s.conn == next {
				s.sends(requestFrames(nil, 5, 50_000, 10_000))
				if status.Code(s.ended) != codes.ResourceExhausted {
					t.Errorf("a connection that takes more than a request in its turn: %v", s.ended)
				}
			}
		}
		for _, s := range append(greedy, honest) {
			_ = s.conn.Close()
			synctest.Wait()
		}
	})
}

// A connection whose request is complete, and waits in line to begin, gives its turn on
// and keeps its streams (XDS-1).
func TestTurnOfCompleteRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, p := &budget{most: 100_000, share: 25_000, small: 1000, tiny: 1000, large: make(map[*meteredConn]time.Time)}, newPeers(Limits{})
		for address := range 4 {
			s := newSender(t, b, p, fmt.Sprint("other", address))
			s.sends([]byte(clientPreface))
			s.sends(requestFrames(nil, 1, 24_000, 24_005))
			defer s.conn.Close()
		}
		var honest []*sender
		for i := range 2 {
			s := newSender(t, b, p, fmt.Sprint("honest", i))
			s.sends([]byte(clientPreface))
			s.sends(requestFrames(nil, 1, 20_000, 20_005))
			defer s.conn.Close()
			honest = append(honest, s)
		}
		<-time.After(3*requestTurn + time.Second)
		synctest.Wait()
		for i, s := range honest {
			if s.ended != nil || s.conn.underWay != 20_005 {
				t.Errorf("connection %d: %d of 20,005 bytes are read, %v", i, s.conn.underWay, s.ended)
			}
		}
	})
}

// In its turn a connection may be slow, but must not stop; of the connections of one
// address that wait, the next is the one with the least under way (XDS-1).
func TestTurnOfSlowRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, p := &budget{most: 100_000, share: 4000, small: 1000, tiny: 1000, large: make(map[*meteredConn]time.Time)}, newPeers(Limits{})
		begin := func(sent int) *sender {
			s := newSender(t, b, p, "address")
			s.sends([]byte(clientPreface))
			s.sends(requestFrames(nil, 1, 50_000, sent))
			return s
		}
		stops, most, least := begin(12_000), begin(3000), begin(2000)
		if b.turn != stops.conn || len(b.waiting) != 2 {
			t.Fatalf("%d connections wait for the turn of the first one, want 2", len(b.waiting))
		}
		<-time.After(requestStall + stopTimeout)
		synctest.Wait()
		if status.Code(stops.ended) != codes.ResourceExhausted || b.turn != least.conn {
			t.Fatalf("a connection that stops ended with %v; the next one is that with the least: %t", stops.ended, b.turn == least.conn)
		}
		for range 4 { // slowly
			<-time.After(requestStall - time.Millisecond)
			least.sends(frame(nil, dataFrame, 0, 1, make([]byte, 1000)))
		}
		if least.ended != nil || b.turn != least.conn {
			t.Errorf("a slow connection lost its turn: %v", least.ended)
		}
		<-time.After(requestStall)
		synctest.Wait()
		if status.Code(least.ended) != codes.ResourceExhausted {
			t.Errorf("after its turn, a connection whose request is not complete: %v", least.ended)
		}
		for _, s := range []*sender{stops, most, least} {
			_ = s.conn.Close()
			synctest.Wait()
		}
	})
}
