package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"

	"meshlog.dev/deploy/e2e/rig"
)

// Two frontends share one address. Although an Envoy keeps its connections, it
// reaches the other frontend whenever its stream has aged. Envoy logs nothing
// about that, and no request fails (E40, E41).
func TestStreamsAge(t *testing.T) {
	t.Setenv("MESHLOG_MAX_STREAM_AGE", "1s")
	for name, delta := range modes {
		t.Run(name, func(t *testing.T) {
			behindOne := func(ctx context.Context, dir, config string) (*rig.Mesh, error) {
				m, err := rig.Apart(ctx, dir, config, 1, 2)
				if err != nil {
					return nil, err
				}
				port := inTurn(t, m.Frontends[0].XDS, m.Frontends[1].XDS)
				for _, f := range m.Frontends {
					f.XDS = port // the port that Envoy knows
				}
				return m, nil
			}
			f := startWith(t, behindOne, rig.EnvoyConfig{Node: node, Cluster: "demo", Delta: delta})
			f.during("streams age", func() {
				for i := range 4 {
					f.must(at(f.ctx, f.mesh.Frontends[i%2]))
				}
				f.shift(50, 50)
			})
			log, err := os.ReadFile(f.envoy.LogPath)
			f.must(err)
			if strings.Contains(string(log), "config stream") {
				t.Errorf("Envoy logs about its streams:\n%s", log)
			}
		})
	}
}

// at waits until Envoy has a stream to a frontend.
func at(ctx context.Context, s *rig.Server) error {
	return s.UntilAlive(ctx, node+" to connect to "+s.Name, func(ctx context.Context) error {
		var r rig.FrontendReport
		if err := s.Debug(ctx, "frontend", &r); err != nil {
			return err
		}
		for _, p := range r.Proxies {
			if p.ID == node {
				return nil
			}
		}
		return fmt.Errorf("it has %d proxies, not this one", len(r.Proxies))
	})
}

// inTurn accepts connections on a port until the test ends, and forwards each to
// the next of other ports.
func inTurn(t *testing.T, ports ...int) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		l.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for i := 0; ; i++ {
			client, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				t.Errorf("accept: %v", err)
				return
			}
			wg.Go(func() { pass(ctx, client, ports[i%len(ports)]) })
		}
	})
	return l.Addr().(*net.TCPAddr).Port
}

// pass copies bytes between a connection and a new one to a port until either
// ends.
func pass(ctx context.Context, client net.Conn, port int) {
	defer client.Close()
	server, err := new(net.Dialer).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return // the client tries again
	}
	defer server.Close()
	end := func() { client.Close(); server.Close() }
	defer context.AfterFunc(ctx, end)()
	var wg sync.WaitGroup
	for _, way := range [][2]net.Conn{{server, client}, {client, server}} {
		wg.Go(func() {
			defer end()
			_, _ = io.Copy(way[0], way[1]) // the client and the frontend notice the end
		})
	}
	wg.Wait()
}
