package frontend_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv1 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/meshtest"
)

// sinkOnly is a ServiceEntry that no proxy sees.
func sinkOnly(i int, port uint32) meshtest.Change {
	name := fmt.Sprint("e", i)
	return meshtest.Object("ServiceEntry", "shop", name, &networking.ServiceEntry{
		Hosts: []string{name + ".example"}, ExportTo: []string{"~"}, Resolution: networking.ServiceEntry_STATIC,
		Ports: []*networking.ServicePort{{Number: port, Name: "http", Protocol: "HTTP"}},
		Endpoints: []*networking.WorkloadEntry{{
			Address: fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250), Labels: map[string]string{"note": strings.Repeat("x", 60)},
		}},
	})
}

// sinkRequest is a request of a client that the mesh's policy lets in.
func sinkRequest(t testing.TB, typeURL string, change func(*discoveryv3.DiscoveryRequest)) []byte {
	r := &discoveryv3.DiscoveryRequest{Node: apiNode("istio-system"), TypeUrl: typeURL}
	if change != nil {
		change(r)
	}
	return marshal(t, r)
}

// deaf sends requests and reads nothing until the attack ends.
func (a *attacker) deaf(request func(n int) []byte) {
	s, leave := a.stream(0)
	if leave == nil {
		return
	}
	defer leave()
	for n := 0; a.ctx.Err() == nil && s.send(request(n)); n++ {
	}
	<-a.ctx.Done()
}

// nackStorm rejects each response over and over, with a long reason.
func (a *attacker) nackStorm(typeURL, reason string) {
	conn, err := grpc.NewClient("passthrough:///"+a.address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		a.Error(err)
		return
	}
	defer conn.Close()
	for a.ctx.Err() == nil {
		s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(a.ctx)
		if err != nil {
			return
		}
		_ = s.Send(&discoveryv3.DiscoveryRequest{Node: apiNode("istio-system"), TypeUrl: typeURL})
		r, err := s.Recv()
		for err == nil { // the first NACK is the answer, the others are of an old nonce
			err = s.Send(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResponseNonce: r.GetNonce(), ErrorDetail: &statusv1.Status{Code: 3, Message: reason}})
		}
	}
}

func sinkAttacks(t *testing.T) []attack {
	entries := sinkRequest(t, entriesType, nil)
	more := func(n int) []byte {
		if n == 0 {
			return entries
		}
		return marshal(t, &discoveryv3.DiscoveryRequest{TypeUrl: entriesType, ResponseNonce: fmt.Sprint("none-", n)})
	}
	named := sinkRequest(t, entriesType, func(r *discoveryv3.DiscoveryRequest) {
		r.ResourceNames = strings.Fields(strings.Repeat("c0000 ", 12<<20/7))
	})
	node := sinkRequest(t, entriesType, func(r *discoveryv3.DiscoveryRequest) {
		r.Node.Metadata.Fields["TEXT"] = texts(5_750_000).GetFields()["TEXT"]
	})
	large := field(entries[:len(entries):len(entries)], 9, make([]byte, 63<<20))
	reason := strings.Repeat("x", 1<<20)
	return []attack{
		{"streams that ask for all entries", 1000, func(a *attacker, _ int) { a.hold(entries, 0) }, 2 * time.Second},
		{"new streams without end", 16, func(a *attacker, _ int) { a.again(func(int) []byte { return entries }) }, 2 * time.Second},
		{"clients that send requests without end and never read", 40, func(a *attacker, _ int) { a.deaf(more) }, 2 * time.Second},
		{"types that do not exist, with names of 60 KB", 40, func(a *attacker, client int) {
			a.deaf(func(n int) []byte {
				return sinkRequest(t, fmt.Sprintf("t%d/%d/%s", client, n, strings.Repeat("x", 60<<10)), nil)
			})
		}, 2 * time.Second},
		{"NACKs without end, with reasons of 1 MiB", 20, func(a *attacker, _ int) { a.nackStorm(entriesType, reason) }, 2 * time.Second},
		{"1.8 million names in 12 MiB", 8, func(a *attacker, _ int) { a.again(func(int) []byte { return named }) }, 2 * time.Second},
		{"a node of 5.75 MB", 8, func(a *attacker, _ int) { a.again(func(int) []byte { return node }) }, 2 * time.Second},
		{"requests of 64 MiB that stop before their end", 20, func(a *attacker, _ int) {
			a.hold(large, 60<<20)
		}, 4 * time.Second},
		{"streams without a request", 3000, func(a *attacker, _ int) { a.hold(nil, 0) }, 4 * time.Second},
	}
}

// While clients attack the port for sinks, a frontend takes less than twice the memory that
// it takes for its proxies and sinks, and serves both (MCP-6, XDS-1 to XDS-3).
func TestSinkMemoryUnderAttack(t *testing.T) {
	c := startChild(t, childTask{Services: 1000, Entries: 5000, DefaultLimits: true})
	var names []string
	for i := range 1000 {
		names = append(names, fmt.Sprint("c", i))
	}
	var proxies []*envoy
	for i := range 500 {
		e := c.connect(node(fmt.Sprint("web-", i), "web"))
		e.ask(ident.CDS)
		e.ack(e.receive())
		e.ask(ident.EDS, names...)
		e.ack(e.receive())
		proxies = append(proxies, e)
	}
	var sinks []*adsc
	for range 4 {
		conn, err := grpc.NewClient("passthrough:///"+c.sinks, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		s := newADSC(t, conn, apiNode("istio-system"), entriesType)
		if r := s.ack(s.receive()); len(r.GetResources()) != 5000 {
			t.Fatalf("a sink gets %d entries", len(r.GetResources()))
		}
		sinks = append(sinks, s)
	}
	// change returns how long a change took to reach a proxy and all sinks.
	change := func() time.Duration {
		began := time.Now()
		c.do("change")
		proxies[0].ack(proxies[0].receive())
		for _, s := range sinks {
			s.ack(s.receive())
		}
		took := time.Since(began)
		for _, e := range proxies[1:] {
			e.ack(e.receive())
		}
		return took
	}
	c.do("settle")
	for range 20 {
		change()
	}
	normal := c.do("peak").RSS
	if normal == 0 {
		t.Fatal("this system does not tell the memory of a process: run the test on Linux")
	}
	t.Logf("normal, with %d proxies and %d sinks: %d MiB at most, %d MiB of it in use", len(proxies), len(sinks), normal>>20, c.do("settle").RSS>>20)
	for _, attack := range sinkAttacks(t) {
		t.Run(attack.name, func(t *testing.T) {
			c.do("settle")
			ctx, cancel := context.WithTimeout(t.Context(), attack.last)
			defer cancel()
			var clients sync.WaitGroup
			for i := range attack.clients {
				clients.Go(func() { attack.does(&attacker{t, ctx, c.sinks}, i) })
			}
			var worst time.Duration
			for ctx.Err() == nil {
				worst = max(worst, change())
			}
			clients.Wait()
			peak := c.do("peak").RSS
			after := c.do("settle").RSS
			t.Logf("peak %d MiB, afterwards %d MiB, normal %d MiB; a change reaches a proxy and all sinks within %s", peak>>20, after>>20, normal>>20, worst.Round(time.Millisecond))
			if peak >= 2*normal {
				t.Errorf("the frontend takes %d MiB, twice the normal %d MiB", peak>>20, normal>>20)
			}
			if worst > 10*time.Second {
				t.Errorf("a change reached a client after %s", worst)
			}
		})
	}
}
