package rig

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Isolate gives this program a network of its own that has loopback, OwnAddress
// and nothing else, for servers that cannot be on loopback. Processes that the
// program starts are on that network too, and cannot download anything.
//
// Call Isolate before anything else: it executes the program again in a network
// namespace, with the same process id, arguments, environment and files. It needs
// the program unshare, and root or the right to create user namespaces. In a user
// namespace the user appears as root, and has no more rights than before.
func Isolate() error {
	if os.Getenv(isolated) != "" {
		return setUp()
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		return fmt.Errorf("%w: install it (Debian: apt-get install util-linux)", err)
	}
	var errs []error
	for _, way := range []struct{ unshare, enter string }{
		{"--net", "--net"},
		{"--user --map-root-user --net", "--user --preserve-credentials --net"},
	} {
		args := append([]string{unshare}, strings.Fields(way.unshare)...)
		// Exec replaces this process, so any advice must come before it.
		if err := run(unshare, append(args[1:], "true")...); err != nil {
			errs = append(errs, err)
			continue
		}
		args = append(append(args, self), os.Args[1:]...)
		return fmt.Errorf("%s: %w", unshare, syscall.Exec(unshare, args, append(os.Environ(), isolated+"="+way.enter)))
	}
	return fmt.Errorf("cannot create a network for this program: %w: %s", errors.Join(errs...), permit)
}

// permit is the advice if namespaces are forbidden.
const permit = "run it as root; or let users make namespaces, which these settings forbid where a system has them: " +
	"user.max_user_namespaces=0, kernel.unprivileged_userns_clone=0, kernel.apparmor_restrict_unprivileged_userns=1 (sysctl -w); " +
	"or, in a container, give it CAP_SYS_ADMIN"

// setUp configures loopback and the address, in a namespace that has neither.
func setUp() error {
	switch n, err := findNetwork(); {
	case err != nil:
		return err
	case n.others:
		return fmt.Errorf("%s is set, and this is no network of its own: unset it", isolated)
	case n.own: // set up by the program that started this one
		return nil
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("set lo up: %w: %s", err, permit)
	}
	// The address goes to another interface: lo would lose 127.0.0.1.
	return addAddress(fd, "lo:1", ownAddress)
}

// addAddress gives an interface an address; any socket serves for the ioctl.
func addAddress(socket int, name, address string) error {
	i, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := i.SetInet4Addr(net.ParseIP(address).To4()); err != nil {
		return err
	}
	if err := unix.IoctlIfreq(socket, unix.SIOCSIFADDR, i); err != nil {
		return fmt.Errorf("give %s the address %s: %w: %s", name, address, err, permit)
	}
	return nil
}
