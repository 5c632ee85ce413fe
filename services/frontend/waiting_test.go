package frontend_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend"
)

// What waits of the requests of an address has a share of memory: names of types that
// are not served, until the client reads the answer (XDS-1).
func TestUnservedNamesOfAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, "f1", shop(t), withLimits(func(l *frontend.Limits) { l.StreamsPerAddress = 4 })) // 128 KiB
		d := open[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse](t.Context(), t, f.dial(nil), deltaADS)
		ask := func(names int) (*discoveryv3.DeltaDiscoveryResponse, error) {
			r := &discoveryv3.DeltaDiscoveryRequest{Node: node("web-1", "web"), TypeUrl: "type.googleapis.com/x.Unserved"}
			for i := range names {
				r.ResourceNamesSubscribe = append(r.ResourceNamesSubscribe, fmt.Sprint(i, strings.Repeat("x", 1<<10)))
			}
			if err := d.Send(r); err != nil {
				t.Fatal(err)
			}
			return d.Recv()
		}
		for range 5 { // what is read makes room
			if r, err := ask(100); err != nil || len(r.GetRemovedResources()) != 100 {
				t.Fatalf("%d names are answered: %v", len(r.GetRemovedResources()), err)
			}
		}
		if _, err := ask(200); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "wait for an answer") {
			t.Errorf("200 KiB of names: %v", err)
		}
	})
}

// So do the versions that clients name, until the head of the chain is known (XDS-1).
func TestWaitingVersionsOfAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, "f1", shop(t), withLimits(func(l *frontend.Limits) { l.StreamsPerAddress = 4 }), // 128 KiB
			func(c *frontend.Config) { c.Head = nil })
		conn := f.dial(nil)
		ask := func(id string) grpc.BidiStreamingClient[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse] {
			d := open[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse](t.Context(), t, conn, deltaADS)
			r := &discoveryv3.DeltaDiscoveryRequest{Node: node(id, "web"), TypeUrl: ident.CDS.URL(), InitialResourceVersions: map[string]string{}}
			for i := range 30 {
				r.InitialResourceVersions[fmt.Sprint(i, strings.Repeat("x", 3500))] = "unknown"
			}
			if err := d.Send(r); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return d
		}
		first := ask("web-1")
		if _, err := ask("web-2").Recv(); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a second client with 100 KiB of versions: %v", err)
		}
		<-time.After(31 * time.Second) // the head stays unknown
		if _, err := first.Recv(); err != nil {
			t.Errorf("the first client: %v", err)
		}
		if _, err := ask("web-3").Recv(); err != nil {
			t.Errorf("a client after the first was answered: %v", err)
		}
	})
}
