package rig

import (
	"errors"
	"fmt"
	"net"
	"os"
)

const (
	// isolated is set once this program has a network of its own. Its value is how
	// nsenter enters that network.
	isolated = "RIG_ISOLATED"
	// ownAddress is in the range reserved for benchmarks (RFC 2544).
	ownAddress = "198.18.0.1"
)

// OwnAddress returns an address that is not loopback and that no other machine
// can reach. The program must have called Isolate.
func OwnAddress() (string, error) {
	switch n, err := findNetwork(); {
	case err != nil:
		return "", err
	case n.others:
		return "", errors.New("this program is on the network of the machine: call rig.Isolate before anything else, in a test in TestMain")
	case !n.own:
		return "", fmt.Errorf("this program has no address %s: call rig.Isolate before anything else, in a test in TestMain", ownAddress)
	}
	return ownAddress, nil
}

// Enter returns a command that opens a shell on the network that Isolate made,
// while this process runs.
func Enter() string { return fmt.Sprintf("nsenter --target %d %s", os.Getpid(), os.Getenv(isolated)) }

// network describes which addresses exist besides loopback.
type network struct{ own, others bool }

func findNetwork() (n network, err error) {
	addrs, err := net.InterfaceAddrs()
	for _, a := range addrs {
		switch ip, _, err := net.ParseCIDR(a.String()); {
		case err == nil && ip.IsLoopback():
		case err == nil && ip.Equal(net.ParseIP(ownAddress)):
			n.own = true
		default:
			n.others = true
		}
	}
	return n, err
}
