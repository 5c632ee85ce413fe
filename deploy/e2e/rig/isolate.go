package rig

import (
	"errors"
	"fmt"
	"net"
	"os"
)

const (
	// isolated is set once this program has a network of its own; it says how
	// nsenter gets there.
	isolated = "RIG_ISOLATED"
	// ownAddress is of those set aside for benchmarks (RFC 2544).
	ownAddress = "198.18.0.1"
)

// OwnAddress is an address that is not loopback and that nothing outside can
// send to: Isolate must have been called.
func OwnAddress() (string, error) {
	switch n, err := findNetwork(); {
	case err != nil:
		return "", err
	case n.others:
		return "", errors.New("this program is on the network of the machine: have it call rig.Isolate first of all, a test in TestMain")
	case !n.own:
		return "", fmt.Errorf("this program has no address %s: have it call rig.Isolate first of all, a test in TestMain", ownAddress)
	}
	return ownAddress, nil
}

// Enter is a command that gives the user a shell on the network that Isolate
// made, while this process runs.
func Enter() string { return fmt.Sprintf("nsenter --target %d %s", os.Getpid(), os.Getenv(isolated)) }

// network is what addresses there are beside loopback.
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
