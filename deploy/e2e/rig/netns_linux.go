package rig

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Network is a virtual switch on this machine. Each process that joins gets a
// network namespace, an address and a cable of its own. The traffic between any
// two can be cut. It needs root, and the programs ip and iptables.
type Network struct {
	name   string // this machine's own cable; all other names begin with it
	prefix string // prefix of all addresses, with the last dot
	places map[string]Place
	cuts   []cut
}

// cut holds the iptables rules of a namespace that Heal removes.
type cut struct {
	namespace string
	rules     [][]string
}

// Here is the place of processes that joined no network, such as this process.
const Here = "here"

// NewNetwork creates a switch and connects this machine to it. It removes
// networks that an earlier process left behind. The caller closes it.
func NewNetwork() (*Network, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("network namespaces take root: run this as root, or with sudo")
	}
	for _, program := range []string{"ip", "iptables"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("%w: install it (Debian: apt-get install iproute2 iptables)", err)
		}
	}
	if err := removeStale(); err != nil {
		return nil, err
	}
	n := &Network{name: fmt.Sprintf("ml%d", os.Getpid()), places: map[string]Place{}}
	var err error
	if n.prefix, err = freeNet(); err != nil {
		return nil, err
	}
	n.places[Here] = Place{Host: n.prefix + "1"}
	// The switch has its own namespace, so that this machine's firewall rules for
	// bridges do not apply.
	own := n.namespace("switch")
	for _, args := range [][]string{
		{"netns", "add", own},
		{"-n", own, "link", "add", "br0", "type", "bridge"},
		{"-n", own, "link", "set", "br0", "up"},
		{"link", "add", n.name, "type", "veth", "peer", "name", "v1", "netns", own},
		{"-n", own, "link", "set", "v1", "master", "br0", "up"},
		{"addr", "add", n.prefix + "1/24", "dev", n.name},
		{"link", "set", n.name, "up"},
	} {
		if err := run("ip", args...); err != nil {
			return nil, errors.Join(err, n.Close())
		}
	}
	return n, nil
}

// freeNet returns a /24 in the range reserved for benchmarks (RFC 2544) in which
// this machine has no address.
func freeNet() (string, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	for range 100 {
		prefix := fmt.Sprintf("198.18.%d.", rand.IntN(256))
		taken := false
		for _, a := range addrs {
			taken = taken || strings.HasPrefix(a.String(), prefix)
		}
		if !taken {
			return prefix, nil
		}
	}
	return "", errors.New("no free network in 198.18.0.0/16")
}

// removeStale removes the networks of processes that have ended.
func removeStale() error {
	out, err := exec.Command("ip", "-o", "link", "show", "type", "veth").CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip link show: %w: %s", err, out)
	}
	var errs []error
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		name, _, _ := strings.Cut(fields[1], "@")
		pid, err := strconv.Atoi(strings.TrimPrefix(name, "ml"))
		if err != nil || !strings.HasPrefix(name, "ml") || unix.Kill(pid, 0) == nil {
			continue
		}
		errs = append(errs, (&Network{name: name}).Close())
	}
	return errors.Join(errs...)
}

// Join creates a place on the network. The same name returns the same place.
func (n *Network) Join(name string) (Place, error) {
	if p, ok := n.places[name]; ok {
		return p, nil
	}
	number := len(n.places) + 1
	own, ns := n.namespace("switch"), n.namespace(name)
	cable, host := fmt.Sprintf("v%d", number), fmt.Sprintf("%s%d", n.prefix, number)
	for _, args := range [][]string{
		{"netns", "add", ns},
		{"-n", ns, "link", "set", "lo", "up"},
		{"-n", own, "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", ns},
		{"-n", own, "link", "set", cable, "master", "br0", "up"},
		{"-n", ns, "addr", "add", host + "/24", "dev", "eth0"},
		{"-n", ns, "link", "set", "eth0", "up"},
	} {
		if err := run("ip", args...); err != nil {
			return Place{}, err
		}
	}
	p := Place{
		Host: host,
		wrap: func(argv []string) []string { return append([]string{"ip", "netns", "exec", ns}, argv...) },
		dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return dialIn(ctx, filepath.Join("/run/netns", ns), network, addr)
		},
	}
	n.places[name] = p
	return p, nil
}

func (n *Network) namespace(place string) string { return n.name + "-" + place }

// dialIn connects from within a namespace.
func dialIn(ctx context.Context, namespace, network, addr string) (net.Conn, error) {
	home, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return nil, err
	}
	defer home.Close()
	there, err := os.Open(namespace)
	if err != nil {
		return nil, err
	}
	defer there.Close()
	// The namespace belongs to the thread. This thread alone connects, because
	// addr is one address.
	runtime.LockOSThread()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("enter %s: %w", namespace, err)
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, network, addr)
	if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); err != nil {
		// The thread ends with its goroutine, so that no other goroutine runs in
		// this namespace.
		return nil, fmt.Errorf("leave %s: %w", namespace, err)
	}
	runtime.UnlockOSThread()
	return c, err
}

// Cut silently drops all traffic between two places from now on. One of them may
// be Here.
func (n *Network) Cut(a, b string) error {
	if a == Here {
		a, b = b, a
	}
	from, known := n.places[a]
	to, alsoKnown := n.places[b]
	if !known || !alsoKnown {
		return fmt.Errorf("cut %s from %s: both must have joined", a, b)
	}
	c := cut{namespace: n.namespace(a), rules: [][]string{
		{"INPUT", "-s", to.Host, "-j", "DROP"},
		{"OUTPUT", "-d", to.Host, "-j", "DROP"},
	}}
	if from.wrap == nil {
		return errors.New("cut this machine from itself")
	}
	n.cuts = append(n.cuts, c)
	return c.each("-A")
}

// Heal undoes all cuts.
func (n *Network) Heal() error {
	var errs []error
	for _, c := range n.cuts {
		errs = append(errs, c.each("-D"))
	}
	n.cuts = nil
	return errors.Join(errs...)
}

func (c cut) each(how string) error {
	var errs []error
	for _, rule := range c.rules {
		args := append([]string{"netns", "exec", c.namespace, "iptables", "-w", how}, rule...)
		errs = append(errs, run("ip", args...))
	}
	return errors.Join(errs...)
}

// Close removes everything. Processes that are still there lose their network.
func (n *Network) Close() error {
	// This link marks the network for removeStale, so it goes first; it may be
	// gone already.
	_ = run("ip", "link", "del", n.name)
	out, err := exec.Command("ip", "netns", "list").CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip netns list: %w: %s", err, out)
	}
	var errs []error
	for line := range strings.Lines(string(out)) {
		ns, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasPrefix(ns, n.name+"-") {
			errs = append(errs, run("ip", "netns", "del", ns)) // its cable goes with it
		}
	}
	return errors.Join(errs...)
}

func run(program string, args ...string) error {
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
