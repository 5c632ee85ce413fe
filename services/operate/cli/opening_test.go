package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/operatetest"
	"meshlog.dev/services/roles/builder"
)

// cramped is a real NATS server with little room, and a builder of its own.
type cramped struct {
	*testing.T
	dir    string
	port   int
	server *program.Process
	admin  *process.Admin
}

func (c *cramped) url() string { return fmt.Sprintf("nats://127.0.0.1:%d", c.port) }

// serve starts the server with this much room for streams.
func (c *cramped) serve(room string) {
	c.Helper()
	bin, err := program.Tool(c.Context(), "nats-server")
	if err != nil {
		c.Fatal(err)
	}
	config := filepath.Join(c.dir, "nats.conf")
	text := fmt.Sprintf("listen: \"127.0.0.1:%d\"\njetstream { store_dir: %q, max_file_store: %s }\n", c.port, c.dir, room)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		c.Fatal(err)
	}
	if c.server, err = program.Start("nats-server", c.dir, []string{bin, "-c", config}); err != nil {
		c.Fatal(err)
	}
	c.Cleanup(c.server.Kill)
}

// build runs the builder until the test ends.
func (c *cramped) build() {
	c.Helper()
	var err error
	if c.admin, err = process.NewAdmin("127.0.0.1:0"); err != nil {
		c.Fatal(err)
	}
	log, _ := operatetest.NewEvents()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- c.admin.Run(ctx, log) }()
	settings := builder.DefaultSettings()
	settings.LogMiB, settings.AuditMiB = 64, 1
	data := c.TempDir()
	go func() {
		ended <- builder.Run(ctx, builder.Options{
			Domain: "mesh", ID: "b1", Data: data, Replicas: 1, Settings: settings,
			Connect: func(ctx context.Context) (*bus.Conn, error) {
				return bus.ConnectWait(ctx, bus.ConnectOptions{URL: c.url(), Name: "b1", Log: log})
			},
			Process: &process.Process{Build: "test", Log: log, Admin: c.admin},
		})
	}()
	c.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
				c.Error(err)
			}
		}
	})
}

// until waits for an answer of /readyz.
func (c *cramped) until(what string, is func(text string, ready bool) bool) {
	c.Helper()
	if err := c.server.UntilAlive(c.Context(), what, func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.admin.Addr()+"/readyz", nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err == nil && !is(string(text), response.StatusCode == http.StatusOK) {
			err = errors.New(string(text))
		}
		return err
	}); err != nil {
		c.Fatal(err)
	}
}

// A builder for whose streams a real NATS server has no room says so on /readyz and in the
// status, with the advice, and works once there is room.
func TestBuilderWithoutRoom(t *testing.T) {
	port, err := testport.TCP()
	if err != nil {
		t.Fatal(err)
	}
	c := &cramped{T: t, dir: t.TempDir(), port: port}
	c.serve("1MB")
	c.build()
	const advice = "give the NATS servers more room (max_file_store)"
	c.until("the reason on /readyz", func(text string, ready bool) bool {
		return !ready && strings.Contains(text, "cannot make or open the streams of the bus: make stream MESHLOG_EVENTS") && strings.Contains(text, advice)
	})
	out, _, err := meshlogAt(t, "status", "--bus", c.url())
	if exitCode(err) != 1 || !strings.Contains(out, "builder b1: cannot make or open the streams of the bus") || !strings.Contains(out, advice) {
		t.Errorf("status: %v, and prints\n%s", err, out)
	}
	var status struct {
		Unknown string
		Wrong   []string
	}
	out, _, err = meshlogAt(t, "status", "--bus", c.url(), "-o", "json")
	if e := json.Unmarshal([]byte(out), &status); e != nil || exitCode(err) != 1 || status.Unknown == "" || !strings.Contains(strings.Join(status.Wrong, "\n"), advice) {
		t.Errorf("status -o json: %v, %v, and prints\n%s", err, e, out)
	}

	if err := c.server.Stop(); err != nil {
		t.Fatal(err)
	}
	c.serve("1GB")
	c.until("a builder with room", func(_ string, ready bool) bool { return ready })
	if out, _, err := meshlogAt(t, "status", "--bus", c.url()); strings.Contains(out, advice) || !strings.Contains(out, "b1 leads") {
		t.Errorf("with room: %v, and prints\n%s", err, out)
	}
}
