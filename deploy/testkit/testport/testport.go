// Package testport gives ports to servers in tests that must know their own,
// or that of each other, before they start. Whoever can listen on port 0 does
// so and needs none of this.
package testport

import (
	"errors"
	"math/rand/v2"
	"net"
	"sync"
)

// Ports that are handed out: below those that systems give to whoever does not
// care, so that no connection has one by chance when its owner comes to listen.
const first, last = 12000, 32000

// A port is claimed by the UDP port of the same number: every process of the
// machine sees the claim, and it goes with the process that made it. The
// sockets are kept here because one that nobody holds is closed.
var (
	mu     sync.Mutex
	claims []net.PacketConn
)

// TCP is a TCP port on loopback that nobody listens on and that no other call
// returns, in this process or another one, for as long as this process runs.
func TCP() (int, error) {
	var refused error
	for range 100 {
		ip := net.IPv4(127, 0, 0, 1)
		port := first + rand.IntN(last-first)
		claim, err := net.ListenUDP("udp4", &net.UDPAddr{IP: ip, Port: port})
		if err != nil {
			refused = err
			continue
		}
		l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: ip, Port: port})
		if err != nil {
			refused = errors.Join(err, claim.Close())
			continue
		}
		mu.Lock()
		claims = append(claims, claim)
		mu.Unlock()
		return port, l.Close()
	}
	return 0, refused
}
