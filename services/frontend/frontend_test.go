package frontend_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

// shop is a mesh with one listener, whose routes send everything to v1.
func shop(t testing.TB) *mesh {
	m := newMesh(t)
	m.Publish(
		Put("v1", Cluster("v1", 1)), Put("v1-endpoints", Endpoints("v1", 8001)),
		Put("listener", Listener("http", 10000, "routes")),
		Put("routes", Routes("routes", To("v1", 100))),
	)
	return m
}

func bootShop(e *envoy) { e.boot([]string{"v1"}, []string{"v1"}, "http", "routes") }

func TestCanary(t *testing.T) {
	mesh := shop(t)
	f := start(t, "f1", mesh)
	e := f.connect(node("web-1", "web"))
	bootShop(e)

	// A new cluster comes with its endpoints before the route that names it.
	mesh.Publish(
		Put("v2", Cluster("v2", 1)), Put("v2-endpoints", Endpoints("v2", 8002)),
		Put("routes", Routes("routes", To("v1", 90), To("v2", 10))),
	)
	e.ack(e.expect(ident.CDS, "v1", "v2"))
	e.ack(e.expect(ident.EDS, "v2"), "v1", "v2")
	e.ack(e.expect(ident.RDS, "routes"))

	// A shift of weights is one response.
	v := mesh.Publish(Put("routes", Routes("routes", To("v1", 0), To("v2", 100))))
	r := e.expect(ident.RDS, "routes")
	if got := weights(t, r); got != "v1=0 v2=100" {
		t.Errorf("weights %s", got)
	}
	e.ack(r)

	report := f.until("all is acknowledged", func(r *reportv1.FrontendReport) bool {
		if len(r.GetProxies()) != 1 || len(r.GetProxies()[0].GetTypes()) != 4 {
			return false
		}
		for _, t := range r.GetProxies()[0].GetTypes() {
			if store.VersionOf(t.GetAcked()) != v {
				return false
			}
		}
		return true
	})
	p := report.GetProxies()[0]
	if got := []string{p.GetId(), p.GetCluster(), p.GetType(), p.GetNamespace()}; !cmp.Equal(got, []string{"web-1", "web", "router", "default"}) {
		t.Errorf("proxy %v", got)
	}
	if !strings.Contains(p.GetGroup(), "*") {
		t.Errorf("group %q, want one with the selector that matched, *", p.GetGroup())
	}
}

func weights(t *testing.T, r *discoveryv3.DiscoveryResponse) string {
	t.Helper()
	var rc routev3.RouteConfiguration
	if err := r.GetResources()[0].UnmarshalTo(&rc); err != nil {
		t.Fatal(err)
	}
	var shares []string
	for _, c := range rc.GetVirtualHosts()[0].GetRoutes()[0].GetRoute().GetWeightedClusters().GetClusters() {
		shares = append(shares, fmt.Sprintf("%s=%d", c.GetName(), c.GetWeight().GetValue()))
	}
	return strings.Join(shares, " ")
}

// A removed cluster leaves after the routes that dropped it are applied, and
// after it has lingered.
func TestRemoval(t *testing.T) {
	mesh := shop(t)
	f := start(t, "f1", mesh, withLinger(time.Millisecond))
	e := f.connect(node("web-1", "web"))
	bootShop(e)
	mesh.Publish(
		Remove("v1"), Remove("v1-endpoints"), Put("v2", Cluster("v2", 1)), Put("v2-endpoints", Endpoints("v2", 8002)),
		Put("routes", Routes("routes", To("v2", 100))),
	)
	e.ack(e.expect(ident.CDS, "v1", "v2"))
	e.ack(e.expect(ident.EDS, "v2"), "v1", "v2")
	e.ack(e.expect(ident.RDS, "routes"))
	e.ack(e.expect(ident.CDS, "v2"))
}

func TestReject(t *testing.T) {
	mesh := shop(t)
	f := start(t, "f1", mesh)
	e := f.connect(node("web-1", "web"))
	bootShop(e)
	good := e.versions[ident.CDS]

	mesh.Publish(
		Put("v1", Cluster("v1", 2)), Put("v2", Cluster("v2", 1)), Put("v2-endpoints", Endpoints("v2", 8002)),
	)
	r := e.expect(ident.CDS, "v1", "v2")
	e.expect(ident.EDS, "v1", "v2")
	e.nack(r, "Error adding/updating cluster(s) v1: it is bad")
	// The frontend sends the accepted v2, and v1 as it was before.
	r = e.expect(ident.CDS, "v1", "v2")
	if r.GetVersionInfo()[:5] != "nack-" {
		t.Errorf("version %s", r.GetVersionInfo())
	}
	report := f.until("a NACK", func(r *reportv1.FrontendReport) bool { return nackOf(r) != nil })
	if got := nackOf(report); !cmp.Equal(got.GetResources(), []string{"v1"}) || got.GetMessage() == "" {
		t.Errorf("NACK %v", got)
	}
	e.expect(ident.EDS, "v1")
	e.ack(r)
	if e.versions[ident.CDS] == good {
		t.Error("the version did not change")
	}

	// New content ends the rejection.
	mesh.Publish(Put("v1", Cluster("v1", 3)))
	e.ack(e.expect(ident.CDS, "v1", "v2"))
	f.until("no NACK", func(r *reportv1.FrontendReport) bool { return nackOf(r) == nil })
}

func nackOf(r *reportv1.FrontendReport) *reportv1.Nack {
	for _, p := range r.GetProxies() {
		for _, t := range p.GetTypes() {
			if t.GetNack() != nil {
				return t.GetNack()
			}
		}
	}
	return nil
}

// Any two frontends, and a frontend before and after a restart, give the same
// content the same version. So a client that reconnects is sent only a response
// without content (E29).
func TestReconnect(t *testing.T) {
	mesh := shop(t)
	file := &memstore.File{}
	f1 := start(t, "f1", mesh, withStore(file))
	e := f1.connect(node("web-1", "web"))
	bootShop(e)
	f1.persisted()
	f1.end()

	for name, again := range map[string]*rig{
		"another":                start(t, "f2", mesh),
		"restart, all else dead": start(t, "f1", mesh, withStore(file), withoutChain),
	} {
		again.until(name, func(r *reportv1.FrontendReport) bool { return r.GetServing() != nil })
		e = e.reconnect(again)
		e.ask(ident.CDS)
		e.ask(ident.EDS, "v1")
		e.ask(ident.LDS)
		e.ask(ident.RDS, "routes")
		e.ack(e.expect(ident.EDS))
	}
	// Nothing else is sent: the next response is for the next change.
	last := start(t, "f3", mesh)
	last.serves(mesh.Last().Version())
	e = e.reconnect(last)
	e.ask(ident.CDS)
	e.ask(ident.EDS, "v1")
	e.ask(ident.LDS)
	e.ask(ident.RDS, "routes")
	e.ack(e.expect(ident.EDS))
	mesh.Publish(Put("v1-endpoints", Endpoints("v1", 8001, 8003)))
	e.ack(e.expect(ident.EDS, "v1"))
}

// A client with a newer version than a frontend is answered when the frontend has
// caught up, and never with an older version.
func TestNeverOlderAfterNewer(t *testing.T) {
	mesh := shop(t)
	behind := newMesh(t) // a chain that lacks the last version of the other
	behind.Publish(
		Put("v1", Cluster("v1", 1)), Put("v1-endpoints", Endpoints("v1", 8001)),
		Put("listener", Listener("http", 10000, "routes")),
		Put("routes", Routes("routes", To("v1", 100))),
	)
	ahead := start(t, "f1", mesh)
	e := ahead.connect(node("web-1", "web"))
	bootShop(e)
	change := Put("v1", Cluster("v1", 7))
	mesh.Publish(change)
	e.ack(e.expect(ident.CDS, "v1"))
	e.ack(e.expect(ident.EDS, "v1"))

	late := start(t, "f2", behind, withHead(mesh))
	late.serves(behind.Last().Version())
	e = e.reconnect(late)
	e.ask(ident.CDS)
	behind.Publish(change) // the frontend learns of it only now
	e.ask(ident.EDS, "v1")
	e.ack(e.expect(ident.EDS))
}

func TestGroups(t *testing.T) {
	mesh := newMesh(t)
	mesh.Publish(
		Put("all", Cluster("all", 1)),
		PutFor("web", Group("web"), Cluster("web", 1)),
		PutFor("api", Group("api"), Cluster("api", 1)),
	)
	f := start(t, "f1", mesh)
	for cluster, want := range map[string][]string{"web": {"all", "web"}, "api": {"all", "api"}, "other": {"all"}} {
		e := f.connect(node(cluster+"-1", cluster))
		e.ask(ident.CDS)
		e.ack(e.expect(ident.CDS, want...))
	}
}

func TestDrain(t *testing.T) {
	mesh := shop(t)
	f := start(t, "f1", mesh)
	e := f.connect(node("web-1", "web"))
	bootShop(e)
	f.stop()
	_, err := e.stream.Recv()
	if status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ends with %v, want UNAVAILABLE", err)
	}
	f.end()
	if f.server.Ready() == nil {
		t.Error("ready after the end")
	}
}

func TestNodeMissing(t *testing.T) {
	f := start(t, "f1", shop(t))
	f.until("serving", func(r *reportv1.FrontendReport) bool { return r.GetServing() != nil })
	e := f.connect(nil)
	e.ask(ident.CDS)
	_, err := e.stream.Recv()
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("got %v", err)
	}
}

// For the same snapshot, all frontends send the same bytes and versions, whatever
// the order of streams and of earlier versions.
func TestSameEverywhere(t *testing.T) {
	mesh := newMesh(t)
	early := start(t, "f1", mesh)
	for i := range 5 {
		c := fmt.Sprint("c", i)
		v := mesh.Publish(
			Put("routes", Routes("routes", To(c, 1))), Put("listener", Listener("http", uint32(10000+i), "routes")),
			Put(c, Cluster(c, i)), Put(c+"-endpoints", Endpoints(c, uint32(i+1))),
			PutFor("web", Group("web"), Cluster("web", i)),
		)
		early.serves(v)
		e := early.connect(node(fmt.Sprint("web-", i), "web"))
		e.ask(ident.EDS, "c0")
		e.receive()
	}
	mesh.Publish(Remove("c4"), Remove("c4-endpoints"), Put("routes", Routes("routes", To("c0", 1))))
	late := start(t, "f2", mesh)
	early.serves(mesh.Last().Version())
	late.serves(mesh.Last().Version())

	subscriptions := map[ident.ResourceType][]string{
		ident.CDS: nil, ident.EDS: {"c0", "c1", "c2", "unknown"}, ident.LDS: nil, ident.RDS: {"routes", "unknown"},
	}
	served := func(r *rig, types ...ident.ResourceType) map[string]string {
		got := map[string]string{}
		e := r.connect(node("other", "web"))
		for _, typ := range types {
			e.ask(typ, subscriptions[typ]...)
			a := e.receive()
			for _, res := range a.GetResources() {
				got[a.GetTypeUrl()] += string(res.GetValue())
			}
			// Capital letters say only whether the stream had CDS when it was sent.
			got[a.GetTypeUrl()+" version"] = strings.ToLower(a.GetVersionInfo())
			e.ack(a)
		}
		return got
	}
	want := served(early, ident.CDS, ident.EDS, ident.LDS, ident.RDS)
	for name, got := range map[string]map[string]string{
		"the other one":               served(late, ident.CDS, ident.EDS, ident.LDS, ident.RDS),
		"the other one, other order":  served(late, ident.RDS, ident.LDS, ident.CDS, ident.EDS),
		"the same one, another order": served(early, ident.LDS, ident.CDS, ident.EDS, ident.RDS),
	} {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
