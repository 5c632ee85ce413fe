package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/operatetest"
	"meshlog.dev/store"
)

// A version that cannot be read takes nothing else from the details of a proxy: they say
// what is not known, and why.
func TestUnreadableVersion(t *testing.T) {
	damaged := errors.New("blob 12 is damaged")
	now := at.Add(time.Minute)
	v := func(seq uint64) *snapshotv1.Version { return &snapshotv1.Version{Epoch: 1, Seq: seq} }
	stream := func(seq uint64) *reportv1.ProxyReport {
		return &reportv1.ProxyReport{Id: "web-1", Delta: true, Types: []*reportv1.TypeReport{
			{TypeUrl: ident.CDS.URL(), Sent: v(seq), Acked: v(seq), SentVersion: "a", AckedVersion: "a"},
		}}
	}
	reports := &bus.Reports{Builders: []*reportv1.BuilderReport{{Leader: true, Head: v(44)}}, Frontends: []*reportv1.FrontendReport{
		{Frontend: "f1", Serving: v(44), Proxies: []*reportv1.ProxyReport{stream(44)}}, {Frontend: "f2", Serving: v(40), Proxies: []*reportv1.ProxyReport{stream(40)}},
	}}
	chain := func(yield func(*store.Manifest, error) bool) {
		_ = yield(&store.Manifest{Version: v(44), PublishTime: stamp(0)}, nil) && yield(nil, damaged)
	}
	filter := proxyFilter{id: "web-1"}
	views, unread, err := viewProxies(reports, filter, chain, now)
	if err != nil || !errors.Is(unread, damaged) || len(views) != 2 {
		t.Fatalf("%d streams, unread %v, error %v", len(views), unread, err)
	}
	if lag := views[1].Behind; lag == nil || lag.String() != "1 or more" {
		t.Errorf("f2's stream is behind by %v, want 1 or more", lag)
	}
	pc := index.NewPushContext(meshtest.World(t, meshtest.YAML(t, called+"---"+protected)...))
	cart := proxyWith(t, "sidecar~10.0.0.1~cart-1.shop~shop.svc.cluster.local", "envoy", map[string]any{"app": "cart"}, "SDS_CLUSTER", proxy.SDSCluster)
	replies := []*reportv1.ProxyReply{{Frontend: "f1", Report: stream(44), Version: v(44)}, {Frontend: "f2", Report: stream(40), Version: v(40)}}
	setSecurity(views, replies, func(r *reportv1.ProxyReply) (*securityView, error) {
		if r.GetFrontend() == "f2" {
			return nil, damaged
		}
		return viewSecurity(pc, cart), nil
	}, nil)
	operatetest.Golden(t, "security-unread", func(o *command.Output) {
		o.Print(views, func() { showProxies(views, reports, filter, now, o) })
	})
	for _, w := range views {
		if w.Security = nil; w.Frontend == "f2" && !strings.Contains(w.SecurityError, "1.40 that f2 serves cannot be read: blob 12") {
			t.Errorf("f2's stream says %q", w.SecurityError)
		}
	}
}

// SDS-7, SDS-14: a proxy that rejects a secret of files, which only it reads, needs
// attention, and one that does not get a secret.
func TestStatusOfRejections(t *testing.T) {
	secret := "file-cert:/etc/certs/cert.pem~/etc/certs/key.pem"
	rejects := &reportv1.ProxyReport{Id: "edge-1", Types: []*reportv1.TypeReport{
		{TypeUrl: ident.CDS.URL()},
		{TypeUrl: ident.SDS.URL(), Nack: &reportv1.Nack{Message: "Failed to load certificate chain", Resources: []string{secret}}, HeldBack: []string{secret}},
	}}
	held := &reportv1.ProxyReport{Id: "edge-2", Types: []*reportv1.TypeReport{{TypeUrl: ident.SDS.URL(), HeldBack: []string{"file-root:/ca"}}}}
	lacks := &reportv1.ProxyReport{Id: "edge-4", Types: []*reportv1.TypeReport{{TypeUrl: ident.SDS.URL(), MissingKeys: []string{"kubernetes://shop"}}}}
	v := &StatusView{}
	v.rejections([]*reportv1.FrontendReport{
		{Proxies: []*reportv1.ProxyReport{held, rejects, lacks, {Id: "edge-3", Types: []*reportv1.TypeReport{{TypeUrl: ident.SDS.URL()}}}}},
		{Leaving: true, Proxies: []*reportv1.ProxyReport{{Id: "gone", Types: held.Types}}},
	})
	want := []string{"2 proxies reject resources: edge-1 (SDS " + secret + "), edge-2 (SDS file-root:/ca); `meshlog proxy-status --rejected` says why",
		"1 proxy does not get a secret that it asks for: edge-4 (kubernetes://shop); `meshlog proxy-status --rejected` says why"}
	if v.Rejecting != 2 || v.Lacking != 1 || !slices.Equal(v.Wrong, want) {
		t.Errorf("%d reject, needs attention %q, want %q", v.Rejecting, v.Wrong, want)
	}
}

// `certs check` asks for many proxies at once, but not for all, and keeps their order.
func TestDescribe(t *testing.T) {
	var ids []string
	for i := range 5 * askedAtOnce {
		ids = append(ids, fmt.Sprintf("sidecar~10.0.0.1~p%03d.shop~shop.svc.cluster.local", i))
	}
	node := func(id string) []*reportv1.ProxyReply {
		b, err := proto.Marshal(&corev3.Node{Id: id})
		if err != nil {
			t.Error(err)
		}
		return []*reportv1.ProxyReply{{Node: b}}
	}
	var under, most atomic.Int64
	var once sync.Once
	full := make(chan struct{})
	all, err := describe(t.Context(), ids, func(ctx context.Context, id string) ([]*reportv1.ProxyReply, error) {
		n := under.Add(1)
		defer under.Add(-1)
		for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
		}
		if n == askedAtOnce {
			once.Do(func() { close(full) })
		}
		select { // the first ones answer when as many are asked as may be
		case <-full:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if id == ids[3] {
			return nil, nil // it has just disconnected
		}
		return node(id), nil
	})
	if err != nil || most.Load() != askedAtOnce {
		t.Fatalf("%d asked at once, want %d: %v", most.Load(), askedAtOnce, err)
	}
	var got []string
	for _, p := range all {
		got = append(got, p.ID)
	}
	if want := slices.Concat(ids[:3], ids[4:]); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	no := errors.New("no")
	if _, err := describe(t.Context(), ids, func(context.Context, string) ([]*reportv1.ProxyReply, error) { return nil, no }); !errors.Is(err, no) {
		t.Errorf("%v, want the error", err)
	}
}

// MCP-6: clients of MCP-over-xDS have a table of their own, with how many types are in which
// state, and NACKs below it; with the id of one, each of its types is shown.
func TestSinkTable(t *testing.T) {
	now := at.Add(time.Minute)
	v := func(seq uint64) *snapshotv1.Version { return &snapshotv1.Version{Epoch: 1, Seq: seq} }
	of := func(kind string, acked uint64, nack *reportv1.Nack) *reportv1.TypeReport {
		r := &reportv1.TypeReport{TypeUrl: "networking.istio.io/v1/" + kind, Sent: v(44), Acked: v(acked), SentVersion: "b", AckedVersion: "b", Resources: 3, Nack: nack}
		if acked < 44 {
			r.AckedVersion = "a"
		}
		return r
	}
	sink := func(name string, types ...*reportv1.TypeReport) *reportv1.ProxyReport {
		return &reportv1.ProxyReport{Id: name, Type: "sink", Namespace: "istio-system", Types: types}
	}
	reports := &bus.Reports{Builders: []*reportv1.BuilderReport{{Leader: true, Head: v(44)}}, Frontends: []*reportv1.FrontendReport{{
		Frontend: "f1", Serving: v(44), Sinks: []*reportv1.ProxyReport{
			sink("istiod-1", of("ServiceEntry", 44, nil), of("VirtualService", 44, nil)),
			sink("istiod-2", of("ServiceEntry", 40, &reportv1.Nack{Message: "port 0 is invalid"}), of("VirtualService", 40, nil), of("Gateway", 44, nil)),
		},
	}}}
	chain := func(yield func(*store.Manifest, error) bool) {
		_ = yield(&store.Manifest{Version: v(44), PublishTime: stamp(0)}, nil) && yield(&store.Manifest{Version: v(40), PublishTime: stamp(0)}, nil)
	}
	for name, filter := range map[string]proxyFilter{"sinks": {}, "sinks-one": {id: "istiod-2"}} {
		views, _, err := viewProxies(reports, filter, chain, now)
		if err != nil {
			t.Fatal(err)
		}
		operatetest.Golden(t, name, func(o *command.Output) {
			o.Print(views, func() { showProxies(views, reports, filter, now, o) })
		})
	}
}
