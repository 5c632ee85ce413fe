package command

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
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

// What a process answers under a builder's name does not end a wait (BUS-7): the
// leader's ticks do.
func TestWaitBelievesTicks(t *testing.T) {
	nc := connect(t)
	quiet := slog.New(slog.DiscardHandler)
	fleet := bus.NewFleet(nc, "mesh", quiet)
	answer, err := proto.Marshal(&reportv1.BuilderReport{
		Builder: "b", Leader: true, Head: &snapshotv1.Version{Epoch: 9, Seq: 900}, Position: &snapshotv1.Version{Epoch: 9, Seq: 900},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Subscribe("meshlog.fleet.mesh.ask.builder", func(question *nats.Msg) {
		m := &nats.Msg{Subject: question.Reply, Header: nats.Header{"Meshlog-Name": {"builder.b"}}, Data: answer}
		if err := nc.PublishMsg(m); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	w := Wait{Fleet: fleet, Position: ident.Position{Epoch: 2, Seq: 3}, Newest: ident.Position{Epoch: 1, Seq: 100}}
	heard := 0
	w.Each = func() {
		if heard++; heard == 1 {
			return // nothing has been heard
		}
		head := &snapshotv1.Version{Epoch: 2, Seq: 4}
		if err := fleet.Tick(t.Context(), &reportv1.Tick{Leader: "b", Head: head, Position: head}); err != nil {
			t.Error(err)
		}
	}
	if err := w.Run(t.Context()); err != nil || w.Head != (ident.Position{Epoch: 2, Seq: 4}) {
		t.Errorf("the wait ended with version %s (%v), want 2.4, of the tick", w.Head, err)
	}
}
