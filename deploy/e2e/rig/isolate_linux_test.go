package rig

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"meshlog.dev/deploy/testkit/program"
)

// inside is the report of a program that has called Isolate.
type inside struct {
	PID       int
	Args      []string
	Addresses []string
	Own       string
	Answered  int    // requests to a server on that address
	Outside   string // result of connecting to a server outside
	Errors    []string
	Joined    []string // result of joining with other addresses present
}

// beInside is the program that calls Isolate. It prints its report, and ends with
// code 5 on SIGTERM.
func beInside(server string) int {
	if err := Isolate(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	if err := json.NewEncoder(os.Stdout).Encode(look(server)); err != nil {
		return 1
	}
	<-term
	return 5
}

func look(server string) inside {
	saw := inside{PID: os.Getpid(), Args: os.Args[1:], Outside: fmt.Sprint(dial(context.Background(), server))}
	var err error
	note := func(err error) {
		if err != nil {
			saw.Errors = append(saw.Errors, err.Error())
		}
	}
	note(Isolate()) // a second call has no effect
	saw.Addresses, err = addresses()
	note(err)
	saw.Own, err = OwnAddress()
	note(err)
	for _, at := range []string{saw.Own, "127.0.0.1"} {
		b, err := StartBackendAt(at, "pod")
		note(err)
		if err != nil {
			continue
		}
		defer b.Stop()
		t := Send(context.Background(), "http://"+b.Addr, 3)
		note(t.Err())
		saw.Answered += t.Sent
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	note(err)
	defer unix.Close(fd)
	note(addAddress(fd, "lo:2", "203.0.113.1"))
	_, err = OwnAddress()
	saw.Joined = []string{fmt.Sprint(err), fmt.Sprint(Isolate())}
	return saw
}

func addresses() (all []string, err error) {
	addrs, err := net.InterfaceAddrs()
	for _, a := range addrs {
		ip, _, _ := strings.Cut(a.String(), "/")
		all = append(all, ip)
	}
	return all, err
}

// The test binary is also the program that the test starts.
func TestIsolate(t *testing.T) {
	if server := os.Getenv("RIG_SERVER"); server != "" {
		os.Exit(beInside(server))
	}
	before, err := addresses()
	if err != nil {
		t.Fatal(err)
	}
	server, err := StartBackend("outside")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-test.run=^TestIsolate$", "an argument"}
	p, err := program.Start("child", t.TempDir(), append([]string{self}, args...), "RIG_SERVER="+server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	var saw inside
	if err := p.UntilAlive(t.Context(), "a report", func(context.Context) error {
		return json.Unmarshal([]byte(p.Tail(1)), &saw)
	}); err != nil {
		t.Fatal(err)
	}
	want := inside{
		PID: p.PID(), Args: args, Addresses: []string{"127.0.0.1", ownAddress},
		Own: ownAddress, Answered: 6, Outside: "dial tcp " + server.Addr + ": connect: connection refused",
		Joined: []string{
			"this program is on the network of the machine: call rig.Isolate before anything else, in a test in TestMain",
			"RIG_ISOLATED is set, and this is no network of its own: unset it",
		},
	}
	// The machine may lack this address family.
	saw.Addresses = slices.DeleteFunc(saw.Addresses, func(a string) bool { return a == "::1" })
	if diff := cmp.Diff(want, saw); diff != "" {
		t.Errorf("inside (-want +got):\n%s", diff)
	}
	theirs, err := os.Readlink(filepath.Join("/proc", fmt.Sprint(p.PID()), "ns/net"))
	if err != nil {
		t.Error(err)
	}
	if ours, err := os.Readlink("/proc/self/ns/net"); err != nil || ours == theirs {
		t.Errorf("our network is %s, the child's %s, %v", ours, theirs, err)
	}
	if err := p.Stop(); err == nil || !strings.Contains(err.Error(), "exit status 5") {
		t.Errorf("SIGTERM to a process that ends with code 5: %v", err)
	}
	if after, err := addresses(); err != nil || !cmp.Equal(before, after) {
		t.Errorf("this machine had the addresses %v, and has %v, %v", before, after, err)
	}
}

// A program that did not call Isolate gets no address.
func TestNotIsolated(t *testing.T) {
	if a, err := OwnAddress(); err == nil || !strings.Contains(err.Error(), "rig.Isolate") {
		t.Errorf("OwnAddress without Isolate: %q, %v", a, err)
	}
}
