package frontend_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/anypb"

	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/frontend"
	"meshlog.dev/services/frontend/frontendtest"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

// Benchmarks, and tests of memory, measure a server in a process of its own, so that the figures exclude
// the clients. The process is this test program with childEnv set.
const childEnv = "MESHLOG_FRONTEND_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "" {
		os.Exit(m.Run())
	}
	if err := serveChild(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// childTask is the first line that a child reads.
type childTask struct {
	Services int
	// Floor selects a server that uses nothing but grpc and writes each change
	// unchanged to all streams.
	Floor bool
	// DefaultLimits limits the frontend as usual; else new streams are not limited.
	DefaultLimits bool
	// Entries is the number of ServiceEntries, which only sinks see; 0: no port for sinks.
	Entries int
	sinks   net.Listener
}

// childStats is the JSON that a child prints once it listens, and after each line
// that it reads from standard input.
type childStats struct {
	Address     string
	SinkAddress string        // of the port for sinks
	CPU         time.Duration // so far
	RSS         uint64        // RSS and the fields below are set only after "settle"; RSS after "peak", too
	Heap, Stack uint64
	Goroutines  int
}

func serveChild(in io.Reader, out io.Writer) error {
	lines, answers := bufio.NewScanner(in), json.NewEncoder(out)
	var task childTask
	if !lines.Scan() {
		return lines.Err()
	}
	if err := json.Unmarshal(lines.Bytes(), &task); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	serve := serveFrontend
	if task.Floor {
		serve = serveFloor
	}
	s := childStats{Address: l.Addr().String()}
	if task.Entries > 0 {
		if task.sinks, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return err
		}
		s.SinkAddress = task.sinks.Addr().String()
	}
	change, err := serve(l, task)
	if err != nil {
		return err
	}
	for {
		s.CPU = cpuTime()
		if err := answers.Encode(s); err != nil || !lines.Scan() {
			return err
		}
		s = childStats{}
		switch lines.Text() {
		case "change":
			change()
		case "settle":
			runtime.GC()
			debug.FreeOSMemory()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			s.Heap, s.Stack, s.Goroutines, s.RSS = m.HeapAlloc, m.StackInuse, runtime.NumGoroutine(), residentBytes()
			resetPeak()
		case "peak":
			s.RSS = peakBytes()
		}
	}
}

// fatal is a testing.TB outside of a test: errors end the process.
type fatal struct{ testing.TB }

func (fatal) Helper() {}

func (fatal) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// serveFrontend serves a mesh with the given number of services on one listener
// until the process ends. Each change is to the endpoints of the first service, and to the
// first ServiceEntry if there is one.
func serveFrontend(l net.Listener, task childTask) (change func(), err error) {
	chain := memstore.NewChain()
	mesh := frontendtest.NewMesh(fatal{}, chain)
	changes := []Change{Put("listener", Listener("http", 10000, "routes")), Put("routes", Routes("routes", To("c0", 1)))}
	for i := range task.Services {
		name := fmt.Sprint("c", i)
		changes = append(changes, Put(name, Cluster(name, 1)), Put(name+"-endpoints", Endpoints(name, 1)))
	}
	for i := range task.Entries {
		changes = append(changes, sinkOnly(i, 80))
	}
	if task.Entries > 0 {
		changes = append(changes, sinkPolicy(&configv1.McpSink{NodeNamespace: "istio-system"}))
	}
	mesh.Publish(changes...)
	var sinks []net.Listener
	if task.sinks != nil {
		sinks = append(sinks, task.sinks)
	}
	limits := frontend.DefaultLimits()
	if !task.DefaultLimits {
		limits.StreamsPerSecond, limits.FirstAnswers = 1e6, 1e6
	}
	serving := make(chan struct{}, 1)
	s, err := frontend.New(frontend.Config{
		ID: "f1", Build: "bench", Listeners: []net.Listener{l}, SinkListeners: sinks, Logger: slog.New(slog.DiscardHandler),
		Store: memstore.Open(&memstore.File{}, store.Retention{}), Chain: chain, Head: chain.Head,
		Limits: limits,
		OnChange: func(bool) {
			select {
			case serving <- struct{}{}:
			default:
			}
		},
	})
	if err != nil {
		return nil, err
	}
	go func() { panic(s.Run(context.Background())) }()
	for s.Ready() != nil {
		<-serving
	}
	port := uint32(1)
	return func() {
		port = 1 + port%60000
		changes := []Change{Put("c0-endpoints", Endpoints("c0", port, port+1))}
		if task.Entries > 0 {
			changes = append(changes, sinkOnly(0, port))
		}
		mesh.Publish(changes...)
	}, nil
}

// floor writes the same response to all streams.
type floor struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	mu      sync.Mutex
	streams map[chan *discoveryv3.DiscoveryResponse]bool
}

func serveFloor(l net.Listener, _ childTask) (change func(), err error) {
	f := &floor{streams: map[chan *discoveryv3.DiscoveryResponse]bool{}}
	s := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, f)
	go func() { panic(s.Serve(l)) }()
	port := uint32(1)
	return func() {
		port = 1 + port%60000
		a, err := anypb.New(Endpoints("c0", port, port+1))
		if err != nil {
			panic(err)
		}
		r := &discoveryv3.DiscoveryResponse{VersionInfo: strings.Repeat("v", 32), TypeUrl: a.TypeUrl, Nonce: fmt.Sprint(port), Resources: []*anypb.Any{a}}
		f.mu.Lock()
		defer f.mu.Unlock()
		for c := range f.streams {
			c <- r
		}
	}, nil
}

// StreamAggregatedResources answers the first request of each type with
// nothing.
func (f *floor) StreamAggregatedResources(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	send := make(chan *discoveryv3.DiscoveryResponse, 16)
	f.mu.Lock()
	f.streams[send] = true
	f.mu.Unlock()
	go func() {
		for {
			r, err := s.Recv()
			if err != nil {
				return
			}
			if r.GetResponseNonce() == "" {
				send <- &discoveryv3.DiscoveryResponse{VersionInfo: "v", Nonce: "n", TypeUrl: r.GetTypeUrl(), Resources: []*anypb.Any{{TypeUrl: r.GetTypeUrl()}}}
			}
		}
	}()
	for {
		select {
		case r := <-send:
			if err := s.Send(r); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// residentBytes returns the memory of the process; 0 if it is unknown.
func residentBytes() uint64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, resident uint64
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		return 0
	}
	return resident * uint64(os.Getpagesize())
}

// peakBytes returns the most memory that the process has had since resetPeak; 0 if it
// is unknown.
func peakBytes() uint64 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	var kib uint64
	for line := range strings.Lines(string(b)) {
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	return 0
}

func resetPeak() { _ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }

// child is a server in a process of its own.
type child struct {
	b testing.TB

	lines   io.Writer
	answers *json.Decoder
	address string
	sinks   string // address of the port for sinks
}

func startChild(b testing.TB, task childTask) *child {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err == nil {
		var out io.Reader
		if out, err = cmd.StdoutPipe(); err == nil {
			c := &child{b: b, lines: in, answers: json.NewDecoder(out)}
			if err = cmd.Start(); err == nil {
				b.Cleanup(func() {
					if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
						b.Error(err)
					}
				})
				line, _ := json.Marshal(task)
				began := c.do(string(line))
				c.address, c.sinks = began.Address, began.SinkAddress
				return c
			}
		}
	}
	b.Fatal(err)
	return nil
}

// connect connects to the child.
func (c *child) connect(n *corev3.Node) *envoy {
	c.b.Helper()
	conn, err := grpc.NewClient(c.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		c.b.Fatal(err)
	}
	c.b.Cleanup(func() { _ = conn.Close() })
	return connect(c.b, conn, n)
}

// do makes the child do something, and returns its stats afterwards.
func (c *child) do(line string) childStats {
	c.b.Helper()
	var s childStats
	if _, err := fmt.Fprintln(c.lines, line); err != nil {
		c.b.Fatal(err)
	}
	if err := c.answers.Decode(&s); err != nil {
		c.b.Fatal(err)
	}
	return s
}
