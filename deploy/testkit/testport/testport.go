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

// The ranges are below the ephemeral ports, so that no outgoing connection takes a
// port before its owner listens on it.
const (
	first, last         = 12000, 32000
	firstBoth, lastBoth = 11300, 12000 // for TCP and UDP
	claimBoth           = last         // the UDP ports from here on are the claims of that range
)

// A claim on a port is a socket on the UDP port of the same number, or on one beyond
// the range if the port's owner needs that one: it works across processes and ends with
// its process. The sockets are kept here because the garbage collector would close
// them.
var (
	mu     sync.Mutex
	claims []net.PacketConn
)

// TCP returns a free TCP port on loopback. While this process runs, no other call
// returns the same port, in any process.
func TCP() (int, error) {
	return claim(first, last, func(port int) int { return port }, listenTCP)
}

// Both returns a port on loopback that is free for TCP and UDP, as TCP does. There are
// only some hundred of them.
func Both() (int, error) {
	return claim(firstBoth, lastBoth, func(port int) int { return port - firstBoth + claimBoth }, func(port int) error {
		udp, err := listenUDP(port)
		if err != nil {
			return err
		}
		return errors.Join(udp.Close(), listenTCP(port))
	})
}

// Pair returns a TCP port on loopback. It and the port that is by higher are free and given
// once, as those of TCP: for servers that derive one port from another.
func Pair(by int) (int, error) {
	var second net.PacketConn
	port, err := claim(first, last-by, func(port int) int { return port }, func(port int) error {
		c, err := listenUDP(port + by)
		if err != nil {
			return err
		}
		if err := errors.Join(listenTCP(port), listenTCP(port+by)); err != nil {
			return errors.Join(err, c.Close())
		}
		second = c
		return nil
	})
	if err != nil {
		return 0, err
	}
	mu.Lock()
	defer mu.Unlock()
	claims = append(claims, second)
	return port, nil
}

// claim tries ports between first and last until one can be claimed and is free.
func claim(first, last int, socket func(port int) int, free func(port int) error) (int, error) {
	var refused error
	for range 100 {
		port := first + rand.IntN(last-first)
		claim, err := listenUDP(socket(port))
		if err != nil {
			refused = err
			continue
		}
		if err := free(port); err != nil {
			refused = errors.Join(err, claim.Close())
			continue
		}
		mu.Lock()
		claims = append(claims, claim)
		mu.Unlock()
		return port, nil
	}
	return 0, refused
}

func listenUDP(port int) (net.PacketConn, error) {
	return net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
}

// listenTCP returns nil if a TCP server can listen on the port.
func listenTCP(port int) error {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		return err
	}
	return l.Close()
}
