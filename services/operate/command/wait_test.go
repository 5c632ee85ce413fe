package command

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/nats-io/nats.go"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
)

// A request for reports that fails ends the wait with its error.
func TestWaitWithoutReports(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	server, err := bus.StartServer(bus.ServerOptions{Dir: t.TempDir(), Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	nc, err := bus.Connect(bus.ConnectOptions{Server: server, Name: "test", Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	_, err = nc.Subscribe("meshlog.fleet.mesh.ask", func(*nats.Msg) { nc.Close() })
	if err != nil {
		t.Fatal(err)
	}
	w := Wait{Fleet: bus.NewFleet(nc, "mesh", quiet), Position: ident.Position{Epoch: 1, Seq: 1}}
	if err := w.Run(t.Context()); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("Run = %v, want the error of the connection", err)
	}
}

// A wait for what is reached already ends at once.
func TestWaitReached(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	server, err := bus.StartServer(bus.ServerOptions{Dir: t.TempDir(), Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	nc, err := bus.Connect(bus.ConnectOptions{Server: server, Name: "test", Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	at := ident.Position{Epoch: 1, Seq: 1}
	w := Wait{Fleet: bus.NewFleet(nc, "mesh", quiet), Position: at, Published: at}
	if err := w.Run(t.Context()); err != nil {
		t.Errorf("Run = %v", err)
	}
}
