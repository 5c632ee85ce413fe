package command

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/nats-io/nats.go"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
)

// connect returns a connection to a new server. Both end with the test.
func connect(t *testing.T) *bus.Conn {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	server, err := bus.StartServer(bus.ServerOptions{Dir: t.TempDir(), Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	nc, err := bus.Connect(bus.ConnectOptions{Server: server, Name: "test", Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// A request for reports that fails ends the wait with its error.
func TestWaitWithoutReports(t *testing.T) {
	nc := connect(t)
	if _, err := nc.Subscribe("meshlog.fleet.mesh.ask.builder", func(*nats.Msg) { nc.Close() }); err != nil {
		t.Fatal(err)
	}
	w := Wait{Fleet: bus.NewFleet(nc, "mesh", slog.New(slog.DiscardHandler)), Position: ident.Position{Epoch: 1, Seq: 1}}
	if err := w.Run(t.Context()); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("Run = %v, want the error of the connection", err)
	}
}

// A wait for a position that is reached already ends at once.
func TestWaitReached(t *testing.T) {
	nc := connect(t)
	at := ident.Position{Epoch: 1, Seq: 1}
	w := Wait{Fleet: bus.NewFleet(nc, "mesh", slog.New(slog.DiscardHandler)), Position: at, Published: at}
	if err := w.Run(t.Context()); err != nil {
		t.Errorf("Run = %v", err)
	}
}
