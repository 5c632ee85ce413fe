// Package testport picks free ports for servers in tests that must know their
// port, or each other's, before they start. A server that can listen on port 0
// does not need it.
package testport

import (
	"errors"
	"math/rand/v2"
	"net"
	"sync"
)

// The range is below the ephemeral ports, so that no outgoing connection takes a
// port before its owner listens on it.
const first, last = 12000, 32000

// A claim on a port is a socket on the UDP port of the same number: it works
// across processes and ends with its process. The sockets are kept here because
// the garbage collector would close them.
var (
	mu     sync.Mutex
	claims []net.PacketConn
)

// TCP returns a free TCP port on loopback. While this process runs, no other call
// returns the same port, in any process.
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
