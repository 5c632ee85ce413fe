package testport_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"testing"

	"meshlog.dev/deploy/testkit/testport"
)

// takers is the variable that makes a run of the test binary take this number of
// ports, and keep them until its standard input ends.
const takers = "MESHLOG_TEST_TAKE_PORTS"

func TestMain(m *testing.M) {
	if n, err := strconv.Atoi(os.Getenv(takers)); err == nil {
		os.Exit(take(os.Stdout, n))
	}
	os.Exit(m.Run())
}

func take(out io.Writer, n int) int {
	for range n {
		port, err := testport.TCP()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Fprintln(out, port)
	}
	fmt.Fprintln(out, "done")
	_, _ = os.Stdin.Read(make([]byte, 1))
	return 0
}

func TestPortsAreGivenOnce(t *testing.T) {
	const processes, each = 4, 400 // of 20,000 ports: random choice alone would return about 60 of them twice
	owner := make(map[string]int)
	for p := range processes {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", takers, each))
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			in.Close()
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
		for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "done"; {
			if other, taken := owner[lines.Text()]; taken {
				t.Errorf("port %s was given to process %d and to process %d", lines.Text(), other, p)
			}
			owner[lines.Text()] = p
		}
	}
	if len(owner) != processes*each {
		t.Errorf("%d ports for %d calls", len(owner), processes*each)
	}
}

// A claim survives a garbage collection, and its owner can listen on the port.
func TestTheOwnerListens(t *testing.T) {
	port, err := testport.TCP()
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	if c, err := net.ListenPacket("udp4", addr); err == nil {
		c.Close()
		t.Error("the claim was lost in a garbage collection")
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

// TestBoth checks that TCP and UDP servers can listen on each port, and that no port is
// returned twice.
func TestBoth(t *testing.T) {
	seen := map[int]bool{}
	for range 50 {
		port, err := testport.Both()
		if err != nil {
			t.Fatal(err)
		}
		if seen[port] {
			t.Fatalf("port %d was returned twice", port)
		}
		seen[port] = true
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		tcp, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer tcp.Close()
		udp, err := net.ListenPacket("udp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer udp.Close()
	}
}

func TestPair(t *testing.T) {
	taken := map[int]bool{}
	for range 50 {
		port, err := testport.Pair(1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []int{port, port + 1000} {
			if taken[p] {
				t.Errorf("port %d was given twice", p)
			}
			taken[p] = true
			l, err := net.Listen("tcp4", fmt.Sprint("127.0.0.1:", p))
			if err != nil {
				t.Errorf("port %d is not free: %v", p, err)
				continue
			}
			_ = l.Close()
		}
	}
}
