package redirected_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// namespace is a network namespace. It ends when the test has closed its handle, and no
// socket or process is in it.
type namespace struct {
	*testing.T
	handle netns.NsHandle
}

// newNamespace makes a namespace with nothing but loopback.
func newNamespace(t *testing.T) *namespace {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("only root can make network namespaces: run this test as root, or in a container with CAP_NET_ADMIN and CAP_SYS_ADMIN")
	}
	n := &namespace{T: t, handle: netns.None()}
	n.do("make a network namespace", elsewhere(func() (err error) {
		n.handle, err = netns.New()
		return err
	}))
	t.Cleanup(func() { n.do("close the namespace", n.handle.Close()) })
	h := n.netlink()
	defer h.Close()
	n.do("loopback", up(h, "lo"))
	return n
}

// elsewhere calls f on a thread that f may move to another namespace, and moves it back.
func elsewhere(f func() error) error {
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer func() { _ = before.Close() }() // it was only read
	err = f()
	if back := netns.Set(before); back != nil {
		return errors.Join(err, back) // the thread stays locked, so nothing else runs there
	}
	runtime.UnlockOSThread()
	return err
}

// in calls f in the namespace: the sockets and processes that f makes are there.
func (n *namespace) in(f func() error) error {
	return elsewhere(func() error {
		if err := netns.Set(n.handle); err != nil {
			return err
		}
		return f()
	})
}

// do fails the test if a step has failed.
func (n *namespace) do(what string, err error) {
	n.Helper()
	if err != nil {
		n.Fatalf("%s: %v", what, err)
	}
}

// netlink returns a connection to the kernel about the namespace.
func (n *namespace) netlink() *netlink.Handle {
	n.Helper()
	h, err := netlink.NewHandleAt(n.handle)
	n.do("netlink", err)
	return h
}

func up(h *netlink.Handle, name string) error {
	l, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	return h.LinkSetUp(l)
}

// set writes a setting of the kernel below /proc/sys/net, for the namespace.
func (n *namespace) set(setting, value string) {
	n.Helper()
	n.do(setting, n.in(func() error { return os.WriteFile("/proc/sys/net/"+setting, []byte(value), 0o600) }))
}

// dial connects from the namespace.
func (n *namespace) dial(ctx context.Context, address string) (conn net.Conn, err error) {
	err = n.in(func() (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, "tcp", address)
		return err
	})
	return conn, err
}

// listen listens in the namespace until the test ends.
func (n *namespace) listen(address string) net.Listener {
	n.Helper()
	var l net.Listener
	n.do("listen at "+address, n.in(func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	}))
	n.Cleanup(func() { _ = l.Close() }) // a server may have closed it
	return l
}

// The network of the tests: a bridge that is the node, and pods on it.
const (
	nodeIP   = "10.97.0.1"
	clientIP = "10.97.0.2"
	webIP    = "10.97.0.3"
	network  = "/24"
)

// newNode makes the namespace that the pods are connected to.
func newNode(t *testing.T) *namespace {
	t.Helper()
	n := newNamespace(t)
	h := n.netlink()
	defer h.Close()
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "pods"}}
	n.do("make a bridge", h.LinkAdd(bridge))
	n.do("address of the bridge", address(h, bridge, nodeIP))
	return n
}

// newPod makes a namespace with an address on the node's bridge, which is its gateway.
func newPod(t *testing.T, node *namespace, ip string) *namespace {
	t.Helper()
	pod := newNamespace(t)
	outside, inside := node.netlink(), pod.netlink()
	defer outside.Close()
	defer inside.Close()
	bridge, err := outside.LinkByName("pods")
	pod.do("the bridge", err)
	name := fmt.Sprintf("pod%d", net.ParseIP(ip).To4()[3])
	pod.do("connect the namespace", outside.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name, MasterIndex: bridge.Attrs().Index}, PeerName: "eth0", PeerNamespace: netlink.NsFd(pod.handle),
	}))
	pod.do("connect the namespace", up(outside, name))
	eth0, err := inside.LinkByName("eth0")
	pod.do("the end in the namespace", err)
	pod.do("address", address(inside, eth0, ip))
	pod.do("default route", inside.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: net.ParseIP(nodeIP)}))
	return pod
}

// address gives a link an address and brings it up.
func address(h *netlink.Handle, l netlink.Link, ip string) error {
	a, err := netlink.ParseAddr(ip + network)
	if err != nil {
		return err
	}
	return errors.Join(h.AddrAdd(l, a), h.LinkSetUp(l))
}
