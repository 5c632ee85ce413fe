package frontend_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/frontend"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
)

func release(id, version string) *corev3.Node {
	return &corev3.Node{Id: id, UserAgentName: "envoy", UserAgentVersionType: &corev3.Node_UserAgentVersion{UserAgentVersion: version}}
}

// opinionsOf returns the verdicts of a report as short texts.
func opinionsOf(r *reportv1.FrontendReport) (all []string) {
	for _, v := range r.GetVerdicts() {
		t, _ := ident.ResourceTypeOf(v.GetTypeUrl())
		var rejectors []string
		for _, r := range v.GetRejectors() {
			rejectors = append(rejectors, r.GetProxy())
		}
		if len(rejectors) > 2 {
			rejectors = []string{fmt.Sprint(len(rejectors), " of them")}
		}
		all = append(all, fmt.Sprintf("%s %s of %s: rejected %d by %v, applied %d, undecided %d", t, v.GetName(), v.GetClient(),
			v.GetRejected(), rejectors, v.GetApplied(), v.GetUndecided()))
	}
	return all
}

// If some proxies reject a resource, the frontend reports how many proxies of the
// same release rejected, applied or have not answered it, and the content that the
// rejecting proxies have instead.
func TestVerdicts(t *testing.T) {
	m := newMesh(t)
	first := m.Publish(Put("a", Cluster("a", 1)), Put("b", Cluster("b", 1)), Put("x", Endpoints("x", 1)))
	f := start(t, "f", m)
	var clients []*envoy
	for _, n := range []*corev3.Node{release("p1", "1.38.0"), release("p2", "1.38.0"), release("p3", "1.38.0"), release("old", "1.37.0")} {
		e := f.connect(n)
		e.ask(ident.CDS)
		e.ack(e.expect(ident.CDS, "a", "b"))
		clients = append(clients, e)
	}
	says := func(what string, want ...string) []*reportv1.Verdict {
		t.Helper()
		r := f.until(what, func(r *reportv1.FrontendReport) bool { return slices.Equal(opinionsOf(r), want) })
		return r.GetVerdicts()
	}
	f.until("acknowledged", func(r *reportv1.FrontendReport) bool {
		return !slices.ContainsFunc(r.GetProxies(), func(p *reportv1.ProxyReport) bool {
			return len(p.GetTypes()) == 0 || p.GetTypes()[0].GetAckedVersion() == ""
		})
	})
	says("nothing")
	f.serves(m.Publish(Put("x", Endpoints("x", 2)))) // changes no cluster
	m.Publish(Put("b", Cluster("b", 2)))
	for i, e := range clients {
		r := e.expect(ident.CDS, "a", "b")
		switch i {
		case 0:
			e.nack(r, "Error adding/updating cluster(s) b: it is bad")
			says("one rejects it", "CDS b of envoy 1.38.0 (state of the world): rejected 1 by [p1], applied 0, undecided 2")
		case 1:
			e.nack(r, "Error adding/updating cluster(s) b: it is bad")
			says("two reject it", "CDS b of envoy 1.38.0 (state of the world): rejected 2 by [p1 p2], applied 0, undecided 1")
		default:
			e.ack(r)
		}
	}
	v := says("all have answered", "CDS b of envoy 1.38.0 (state of the world): rejected 2 by [p1 p2], applied 1, undecided 0")[0]
	if v.GetMessage() != "Error adding/updating cluster(s) b: it is bad" || len(v.GetSum()) != 16 || len(v.GetGoodSum()) != 16 {
		t.Errorf("verdict %v", v)
	}
	// The previous content was good up to the version before, which changed no
	// cluster.
	if got, want := v.GetGood().GetSeq(), first.Seq+10; got != want {
		t.Errorf("the content that they have instead was served in version %d, want %d", got, want)
	}
	if class, err := index.DecodeClass(v.GetClass()); err != nil || class.CDS.Raw != "*" {
		t.Errorf("class %v, %v", class, err)
	}
	// The leader asks about the resource.
	f.server.Suspects([]*reportv1.Suspect{{TypeUrl: v.GetTypeUrl(), Name: "b", Sum: v.GetSum(), Client: "envoy 1.37.0 (state of the world)"}})
	says("asked",
		"CDS b of envoy 1.37.0 (state of the world): rejected 0 by [], applied 1, undecided 0",
		"CDS b of envoy 1.38.0 (state of the world): rejected 2 by [p1 p2], applied 1, undecided 0")
	f.server.Suspects(nil)
	clients[0].cancel()
	says("one leaves", "CDS b of envoy 1.38.0 (state of the world): rejected 1 by [p2], applied 1, undecided 0")
	m.Publish(Put("b", Cluster("b", 3)))
	says("another content")
}

// A listener that one client cannot bind is not reported as rejected.
func TestNoVerdictOnAddresses(t *testing.T) {
	m := newMesh(t)
	m.Publish(Put("l", Listener("l", 80, "r")))
	f := start(t, "f", m)
	e := f.connect(release("p1", "1.38.0"))
	e.ask(ident.LDS)
	e.nack(e.expect(ident.LDS, "l"), "Error adding/updating listener(s) l: cannot bind '127.0.0.1:80': Address already in use")
	r := f.until("held back", func(r *reportv1.FrontendReport) bool { return len(heldBack(r)) > 0 })
	if got := opinionsOf(r); got != nil {
		t.Errorf("verdicts %v", got)
	}
}

func heldBack(r *reportv1.FrontendReport) (names []string) {
	for _, p := range r.GetProxies() {
		for _, t := range p.GetTypes() {
			names = append(names, t.GetHeldBack()...)
		}
	}
	return names
}

// The report names the quarantined resources of each client that is served a
// replacement, even if the client never rejected the resource.
func TestServedInQuarantine(t *testing.T) {
	m := newMesh(t)
	m.Publish(Put("a", Cluster("a", 1)), Put("b", Cluster("b", 1)))
	f := start(t, "f", m)
	e, other := f.connect(release("p1", "1.38.0")), f.connect(release("old", "1.37.0"))
	for _, e := range []*envoy{e, other} {
		e.ask(ident.CDS)
		e.ack(e.expect(ident.CDS, "a", "b"))
	}
	m.Publish(Put("b", Cluster("b", 2)))
	e.nack(e.expect(ident.CDS, "a", "b"), "Error adding/updating cluster(s) b: it is bad")
	other.ack(other.expect(ident.CDS, "a", "b"))
	without := e.expect(ident.CDS, "a", "b")
	e.ack(without)
	v := f.until("a verdict", func(r *reportv1.FrontendReport) bool { return len(r.GetVerdicts()) > 0 }).GetVerdicts()[0]
	q := m.Publish(Quarantine("q", v.GetClient(), ident.CDS, "b", [16]byte(v.GetSum()), Cluster("b", 1)))
	// p1 already has the replacement, so nothing is sent, and the rejection is over.
	r := f.until("in quarantine", func(r *reportv1.FrontendReport) bool {
		return len(r.GetVerdicts()) == 0 && nackOf(r) == nil && r.GetServing().GetSeq() == q.Seq
	})
	for _, p := range r.GetProxies() {
		want := map[string][]string{"p1": {"b"}}[p.GetId()]
		if diff := cmp.Diff(want, p.GetTypes()[0].GetQuarantined()); diff != "" {
			t.Errorf("%s: in quarantine (-want +got):\n%s", p.GetId(), diff)
		}
	}
	fresh := f.connect(release("p2", "1.38.0"))
	fresh.ask(ident.CDS)
	if diff := cmp.Diff(without.GetResources(), fresh.expect(ident.CDS, "a", "b").GetResources(), protocmp.Transform()); diff != "" {
		t.Errorf("a client that connects later (-want +got):\n%s", diff)
	}
}

// urgentPause is the least time between two urgent reports.
const urgentPause = 100 * time.Millisecond

// Thousands of proxies that reject one resource cause a few small reports.
func TestRejectionsOfThousands(t *testing.T) {
	const proxies = 2000
	m := newMesh(t)
	m.Publish(Put("b", Cluster("b", 1)))
	var urgent atomic.Int64
	f := start(t, "f", m, func(c *frontend.Config) {
		c.Limits.StreamsPerSecond, c.Limits.FirstAnswers = 2*proxies, 2*proxies
		told := c.OnChange
		c.OnChange = func(hurry bool) {
			if hurry {
				urgent.Add(1)
			}
			told(hurry)
		}
	})
	conn := f.dial(nil)
	var clients []*envoy
	for i := range proxies {
		e := connect(t, conn, release(fmt.Sprintf("p%04d", i), "1.38.0"))
		e.ask(ident.CDS)
		clients = append(clients, e)
	}
	var responses []*discoveryv3.DiscoveryResponse
	for _, e := range clients {
		responses = append(responses, e.expect(ident.CDS, "b"))
	}
	began := time.Now()
	for i, e := range clients {
		e.nack(responses[i], "Error adding/updating cluster(s) b: it is bad")
	}
	want := fmt.Sprintf("CDS b of envoy 1.38.0 (state of the world): rejected %d by [8 of them], applied 0, undecided 0", proxies)
	f.until("all have rejected it", func(r *reportv1.FrontendReport) bool { return slices.Equal(opinionsOf(r), []string{want}) })
	took := time.Since(began)
	size := proto.Size(f.server.Summary())
	if size > 1000 {
		t.Errorf("a summary has %d bytes", size)
	}
	if n := urgent.Load(); n < 1 || n > int64(took/urgentPause)+2 {
		t.Errorf("%d reports were urgent within %s", n, took)
	}
	again := time.Now()
	f.server.Summary()
	t.Logf("%d proxies rejected a cluster within %s: %d urgent reports of %d bytes, each made in %s; others come once a second at most",
		proxies, took.Round(time.Millisecond), urgent.Load(), size, time.Since(again).Round(time.Microsecond))
}
