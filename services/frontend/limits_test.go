package frontend_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/frontend"
	"meshlog.dev/services/internal/model"
	. "meshlog.dev/services/internal/model/modeltest"
)

// A frontend that serves nothing yet gives no first answer (G13).
func TestNotReady(t *testing.T) {
	mesh := newMesh(t)
	f := start(t, "f1", mesh)
	if err := f.server.Ready(); err == nil {
		t.Error("ready without a version")
	}
	e := f.connect(node("web-1", "web"))
	if _, err := e.stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v, want UNAVAILABLE", err)
	}
	mesh.Publish(Put("a", Cluster("a", 1)))
	f.until("ready", func(*reportv1.FrontendReport) bool { return f.server.Ready() == nil })
	e = e.reconnect(f)
	e.ask(model.CDS)
	e.ack(e.expect(model.CDS, "a"))
}

func TestStreamLimit(t *testing.T) {
	f := start(t, "f1", shop(t), func(c *frontend.Config) { c.Limits.StreamsPerSecond = 1 })
	for i := range 100 {
		e := f.connect(node(fmt.Sprint("web-", i), "web"))
		e.ask(model.CDS)
		_, err := e.stream.Recv()
		if err == nil {
			continue // the first one, and one more for every second that this takes
		}
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "another frontend") {
			t.Errorf("got %v, want UNAVAILABLE and what to do", err)
		}
		return
	}
	t.Error("100 streams at once are taken")
}

// A client that does not take what it is sent loses its stream, and harms
// nobody.
func TestSlowClient(t *testing.T) {
	mesh := newMesh(t)
	big := Cluster("big", 1)
	big.AltStatName = strings.Repeat("x", 1<<20)
	mesh.Publish(Put("big", big), Put("e", Endpoints("big", 1)))
	f := start(t, "f1", mesh, func(c *frontend.Config) { c.Limits.SendTimeout = 50 * time.Millisecond })
	slow, other := f.connect(node("slow", "web")), f.connect(node("other", "web"))
	slow.ask(model.CDS)
	slow.ask(model.EDS, "big") // the second response does not fit the transport's window
	f.until("one stream", func(r *reportv1.FrontendReport) bool { return len(r.GetProxies()) == 0 })
	other.ask(model.CDS)
	other.ack(other.expect(model.CDS, "big"))
}

// BenchmarkPush is the change of one cluster's endpoints, from the chain to
// 1000 streams that all watch it.
func BenchmarkPush(b *testing.B) {
	const streams = 1000
	mesh := newMesh(b)
	var changes []Change
	for i := range 100 {
		name := fmt.Sprint("c", i)
		changes = append(changes, Put(name, Cluster(name, 1)), Put(name+"-endpoints", Endpoints(name, 1)))
	}
	mesh.Publish(changes...)
	f := start(b, "f1", mesh, func(c *frontend.Config) { c.Limits.StreamsPerSecond = 10 * streams })
	clients := make([]*envoy, streams)
	for i := range clients {
		clients[i] = f.connect(node(fmt.Sprint("web-", i), "web"))
		clients[i].ask(model.CDS)
		clients[i].ack(clients[i].receive())
		clients[i].ask(model.EDS, "c7")
		clients[i].ack(clients[i].receive())
	}
	port := uint32(1)
	for b.Loop() {
		port = 1 + port%60000
		mesh.Publish(Put("c7-endpoints", Endpoints("c7", port, port+1)))
		for _, e := range clients {
			e.ack(e.receive())
		}
	}
}
