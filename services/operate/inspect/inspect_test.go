package inspect

import (
	"io"
	"strings"
	"testing"
	"time"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"

	"google.golang.org/protobuf/types/known/timestamppb"
	"meshlog.dev/events"
	"meshlog.dev/events/memlog"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/operatetest"
	"meshlog.dev/store"
)

func TestMain(m *testing.M) { operatetest.Main(m) }

var at = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func stamp(after time.Duration) *timestamppb.Timestamp { return timestamppb.New(at.Add(after)) }

func TestPrintProxies(t *testing.T) {
	cds, lds, rds := ident.CDS.URL(), ident.LDS.URL(), ident.RDS.URL()
	v := func(seq uint64) *snapshotv1.Version { return &snapshotv1.Version{Epoch: 1, Seq: seq} }
	reports := []*reportv1.FrontendReport{
		{Frontend: "f2", Leaving: true, Proxies: []*reportv1.ProxyReport{{Id: "gone"}}},
		{Frontend: "f1", Serving: v(42), Proxies: []*reportv1.ProxyReport{{
			Id: "envoy-1", Cluster: "demo", Type: "router", Group: "demo", ConnectedSince: stamp(0),
			Types: []*reportv1.TypeReport{
				{TypeUrl: cds, Sent: v(42), Acked: v(42), SentVersion: "a", AckedVersion: "a", SentTime: stamp(0), AckedTime: stamp(time.Second), Resources: 3},
				{TypeUrl: lds, Sent: v(42), Acked: v(12), SentVersion: "b", AckedVersion: "a", SentTime: stamp(50 * time.Second), AckedTime: stamp(0)},
				{
					TypeUrl: rds, Sent: v(42), SentVersion: "b", SentTime: stamp(0),
					Nack:     &reportv1.Nack{Message: "no such cluster", Time: stamp(30 * time.Second), Resources: []string{"routes"}},
					HeldBack: []string{"routes"},
				},
			},
		}, {
			Id: "envoy-2", Type: "sidecar", ConnectedSince: stamp(0), Delta: true, Only: cds, Lingering: 2,
			Types: []*reportv1.TypeReport{{TypeUrl: cds, Sent: v(42), SentVersion: "a", SentTime: stamp(38 * time.Second), Unanswered: stamp(38 * time.Second)}},
		}, {
			Id: "envoy-3", Type: "sidecar", Namespace: "shop", ConnectedSince: stamp(0), UserAgent: "envoy 1.38.0", Address: "10.0.0.1:4711",
			Identity: "spiffe://td/ns/shop/sa/cart", CertificateSerial: "a1", CertificateEnds: stamp(time.Hour),
			Types: []*reportv1.TypeReport{
				{TypeUrl: cds, Sent: v(42), Acked: v(42), SentVersion: "a", AckedVersion: "a", Quarantined: []string{"outbound|80||a.b", "c"}},
				{TypeUrl: lds, Sent: v(44), Acked: v(44), SentVersion: "a", AckedVersion: "a"},
			},
		}, {
			Id: "envoy-4", Type: "sidecar", ConnectedSince: stamp(0), Delta: true,
			Types: []*reportv1.TypeReport{
				{TypeUrl: cds, Sent: v(44), Acked: v(44), SentVersion: "a", AckedVersion: "a"},
				{TypeUrl: lds, Sent: v(42), Acked: v(42), SentVersion: "a", AckedVersion: "a", WaitsForKeys: []string{"kubernetes-gateway://shop/web"}},
			},
		}, {
			Id: "grpc-1", Type: "router", ConnectedSince: stamp(0),
			Types: []*reportv1.TypeReport{{TypeUrl: lds, TooLarge: true}},
		}}},
	}
	all := &bus.Reports{Frontends: reports, Builders: []*reportv1.BuilderReport{{Leader: true, Head: v(44)}}}
	manifests := []*store.Manifest{{Version: v(44), PublishTime: stamp(55 * time.Second)}, {Version: v(42), PublishTime: stamp(50 * time.Second)}, {Version: v(12)}}
	chain := func(yield func(*store.Manifest, error) bool) {
		for _, m := range manifests {
			if !yield(m, nil) {
				return
			}
		}
	}
	now := at.Add(time.Minute)
	for name, f := range map[string]proxyFilter{
		"proxy-status": {}, "proxy-status-one": {id: "envoy-1"}, "proxy-status-identity": {id: "envoy-3"}, "proxy-status-rejected": {id: "envoy", rejected: true},
	} {
		views, unread, err := viewProxies(all, f, chain, now)
		if err != nil || unread != nil {
			t.Fatal(err, unread)
		}
		operatetest.Golden(t, name, func(o *command.Output) {
			o.Print(views, func() { showProxies(views, all, f, now, o) })
		})
	}
}

func TestPrintDiagnostics(t *testing.T) {
	ds := []*snapshotv1.Diagnostic{
		{
			Severity: snapshotv1.Severity_SEVERITY_ERROR, Code: "undecoded", Object: "Resource demo/routes (file/default)",
			Origin: "routes.yaml:7", Field: "spec.resource.name", Reason: "unknown field", Advice: "correct it", Effect: "the last good value serves",
		},
		{Severity: snapshotv1.Severity_SEVERITY_WARNING, Code: "conflict", Object: "Resource demo/x (file/b)", Reason: "file/a has it too"},
	}
	operatetest.Golden(t, "diagnostics", func(o *command.Output) {
		views := command.Diagnostics(ds, "")
		o.Print(views, func() { showDiagnostics(views, len(views), o) })
	})
}

func TestPrintStatus(t *testing.T) {
	v := func(seq uint64) *snapshotv1.Version { return &snapshotv1.Version{Epoch: 1, Seq: seq} }
	applied := func(seq uint64, n uint32) *reportv1.Applied {
		return &reportv1.Applied{Version: v(seq), Streams: n}
	}
	r := &bus.Reports{
		Builders: []*reportv1.BuilderReport{
			{Builder: "b2"},
			{Builder: "b1", Leader: true, Head: v(42), Holds: []*reportv1.Hold{{}, {}, {}}},
		},
		Frontends: []*reportv1.FrontendReport{
			{Frontend: "f1", Serving: v(42), Streams: 12, Persisted: true, Applied: []*reportv1.Applied{applied(42, 10), applied(41, 1), applied(0, 1)}},
			{Frontend: "f2", Serving: v(40), Streams: 3, Persisted: true, Applied: []*reportv1.Applied{applied(40, 3)}},
			{Frontend: "f3", Serving: v(42)},
		},
	}
	s := &StatusView{Bus: "nats://127.0.0.1:4222", Published: command.Stamp(at), Errors: 1, Wrong: []string{}}
	s.builders(r)
	s.held(1, 2)
	s.sources([]command.Source{
		{Source: "file", Instance: "default", State: "following"},
		{Source: "file", Instance: "gone", State: command.StateGone},
		{Source: "file", Instance: "old", State: command.StateSilent, Frozen: true, FrozenSince: command.Stamp(at.Add(-3 * time.Hour))},
		{Source: "kubernetes", Instance: "c1", State: "following", Listed: command.Stamp(at.Add(-time.Hour)), FrozenKinds: []command.FrozenKind{{Kind: "EnvoyFilter", Objects: 3}, {Kind: "Sidecar", Objects: 12}}},
		{Source: "kubernetes", Instance: "c2", State: command.StateDown, Frozen: true, FrozenKinds: []command.FrozenKind{{Kind: "Sidecar", Objects: 1}}},
	}, at.Add(time.Minute))
	s.frontends(r, false)
	s.rejections([]*reportv1.FrontendReport{{Proxies: []*reportv1.ProxyReport{
		{Id: "edge-1", Types: []*reportv1.TypeReport{{TypeUrl: ident.SDS.URL(), HeldBack: []string{"file-cert:/c~/k"}}}},
	}}})
	s.identities([]*reportv1.FrontendReport{
		{Proxies: []*reportv1.ProxyReport{
			{Id: "with", Identity: "spiffe://td/a", CertificateEnds: stamp(time.Hour)}, {Id: "no end", Identity: "spiffe://td/b"},
			{Id: "ended", Identity: "spiffe://td/c", CertificateEnds: stamp(time.Minute)}, {Id: "plain"},
			{Id: "late", Identity: "spiffe://td/e", CertificateBegins: stamp(-4 * time.Hour), CertificateShown: stamp(0), CertificateEnds: stamp(time.Hour)},
			{Id: "older", Identity: "spiffe://td/e", CertificateBegins: stamp(-4 * time.Hour), CertificateShown: stamp(-3 * time.Hour), CertificateEnds: stamp(time.Hour)},
		}},
		{Proxies: []*reportv1.ProxyReport{{Id: "with", Identity: "spiffe://td/a", CertificateEnds: stamp(time.Hour)}}}, // another stream of it
		{Leaving: true, Proxies: []*reportv1.ProxyReport{{Id: "gone", Identity: "spiffe://td/d"}}},
	}, at.Add(time.Minute))
	s.roots([]*registryv1.TrustBundle{{TrustDomain: "td", Roots: []*registryv1.Root{
		{State: registryv1.RootState_ROOT_STATE_ACTIVE}, {State: registryv1.RootState_ROOT_STATE_ANNOUNCED}, {State: registryv1.RootState_ROOT_STATE_RETIRING},
	}}})
	s.policies(nil, []*snapshotv1.Diagnostic{
		{Severity: snapshotv1.Severity_SEVERITY_ERROR, Code: problem.Unenforced, Object: "AuthorizationPolicy shop/waypoint (file/default)"},
		{Severity: snapshotv1.Severity_SEVERITY_WARNING, Code: "conflict", Object: "PeerAuthentication shop/second (file/default)"},
	})
	operatetest.Golden(t, "status", func(o *command.Output) {
		o.Print(s, func() { s.show(at.Add(time.Minute), o) })
	})
}

// BUS-4, BUS-6: what a process reports as wrong about itself and about the log is
// in the status, with the time since when.
func TestStatusOfProcessesThatAreAway(t *testing.T) {
	since := timestamppb.New(at)
	s := &StatusView{}
	s.builders(&bus.Reports{Builders: []*reportv1.BuilderReport{
		{Builder: "b1", Leader: true, Head: &snapshotv1.Version{Epoch: 1, Seq: 1}, Warnings: []string{"file/default has filled half of the log"}},
		{Builder: "b2", Away: since, AwayReason: "no such stream"},
	}})
	s.frontends(&bus.Reports{Frontends: []*reportv1.FrontendReport{{Frontend: "f1", Persisted: true, Away: since, AwayReason: "no answer"}}}, false)
	all := strings.Join(s.Wrong, "\n")
	for _, want := range []string{
		"file/default has filled half of the log",
		"builder b2 is not connected to log and version chain since " + command.Clock(at) + ": no such stream",
		"frontend f1 cannot follow the version chain since " + command.Clock(at) + ", and serves what it has: no answer",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("the status does not say %q:\n%s", want, all)
		}
	}
}

func TestPrintSources(t *testing.T) {
	views := []command.Source{
		{Source: "consul", Instance: "dc1", State: "following", Holder: "watcher-5", Objects: 400, Synced: true, Partial: true, Registry: &command.Registry{
			Services: 300, Instances: 900, Doubted: "the index went back", Polled: 150, Swept: 150, Remedy: "give an https address",
			OldestRead: command.Stamp(at.Add(49 * time.Second)), Error: "500: No cluster leader", ErrorTime: command.Stamp(at),
		}},
		{Source: "file", Instance: "default", State: "following", Holder: "watcher-1", Session: "ABCDEF-1", Objects: 12, Synced: true, Required: true,
			FrozenKinds: []command.FrozenKind{{Kind: "EnvoyFilter", Objects: 3}, {Kind: "Sidecar", Objects: 12}},
			Standbys:    []string{"watcher-2"}, Listed: command.Stamp(at.Add(-time.Hour)), Changed: command.Stamp(at), Heard: command.Stamp(at.Add(50 * time.Second))},
		{Source: "file", Instance: "old", State: command.StateSilent, Frozen: true, FrozenSince: command.Stamp(at.Add(-3 * time.Hour)), Holder: "watcher-3", Objects: 1, Synced: true, Heard: command.Stamp(at.Add(-3 * time.Hour))},
		{Source: "kube", Instance: "c1", State: command.StateDown, Frozen: true, FrozenSince: command.Stamp(at), Holder: "watcher-4", Objects: 1200, Pending: 3, Required: true,
			Problems: command.Diagnostics([]*snapshotv1.Diagnostic{{Severity: snapshotv1.Severity_SEVERITY_ERROR, Code: "source-down", Reason: "connection refused"}}, "")},
		{Source: "nacos", Instance: "a", State: command.StateGone, Heard: command.Stamp(at), LogBytes: 3 << 30, LogShare: .75},
	}
	operatetest.Golden(t, "sources", func(o *command.Output) {
		o.Print(views, func() { showSources(views, at.Add(time.Minute), o) })
	})
}

// CA-9: the status says that a mesh has no roots, and is silent about a rotation that
// does not run.
func TestRootsLine(t *testing.T) {
	for want, all := range map[string][]rootCounts{
		"none":        nil,
		"a: 1 active": {{TrustDomain: "a", Active: 1}},
		"a: 1 active; b: 1 active, 1 announced; `meshlog ca status` shows the rotation": {{TrustDomain: "a", Active: 1}, {TrustDomain: "b", Active: 1, Announced: 1}},
	} {
		if got := rootsLine(all); got != want {
			t.Errorf("%v: %q, want %q", all, got, want)
		}
	}
}

func TestStates(t *testing.T) {
	r := xds.Empty(ident.RDS, "r")
	sum := r.Sum[:]
	for name, c := range map[string]struct {
		with typeComparison
		r    *xds.Resource
		h    *reportv1.ResourceContent
		want string
	}{
		"has it":                   {typeComparison{current: true}, r, &reportv1.ResourceContent{Sent: true, Sum: sum, Applied: true}, stateAcked},
		"was sent it":              {typeComparison{}, r, &reportv1.ResourceContent{Sent: true, Sum: sum}, stateSent},
		"has another":              {typeComparison{}, r, &reportv1.ResourceContent{Sent: true, Sum: []byte{1}, Applied: true}, stateStale},
		"was never sent it":        {typeComparison{}, r, nil, stateStale},
		"rejected it":              {typeComparison{}, r, &reportv1.ResourceContent{Sent: true, Sum: []byte{1}, HeldBack: true}, stateHeldBack},
		"has the one before":       {typeComparison{current: true, quarantined: []string{"r"}}, r, &reportv1.ResourceContent{Name: "r", Sent: true, Sum: sum, Applied: true}, stateQuarantined},
		"is kept from it":          {typeComparison{current: true, quarantined: []string{"r"}}, nil, &reportv1.ResourceContent{Name: "r", Quarantined: true}, stateQuarantined},
		"there is none":            {typeComparison{current: true}, nil, &reportv1.ResourceContent{Sent: true, Applied: true}, stateAbsent},
		"it lingers":               {typeComparison{current: true}, nil, &reportv1.ResourceContent{Sent: true, Sum: sum, Lingering: true}, stateLingering},
		"has another without need": {typeComparison{current: true}, r, &reportv1.ResourceContent{Sent: true, Sum: []byte{1}, Applied: true}, stateDiffers},
		"has one too many":         {typeComparison{current: true}, nil, &reportv1.ResourceContent{Sent: true, Sum: sum, Applied: true}, stateDiffers},
		"lacks one":                {typeComparison{current: true}, r, nil, stateDiffers},
	} {
		if got := c.with.state(c.r, c.h); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestDiagnosticFilter(t *testing.T) {
	views := []command.Diagnostic{
		{Severity: "error", Code: "undecoded", Object: "Resource demo/routes (file/default)", Origin: "routes.yaml:7"},
		{Severity: "warning", Code: "conflict", Object: "Service demo/x (kube/c1)"},
		{Severity: "info", Code: "hint", Object: "Cluster a|b"},
		{Severity: "error", Code: "source-down", Shard: "kube/c2"},
	}
	for _, c := range []struct {
		filter diagnosticFilter
		want   string
	}{
		{diagnosticFilter{}, "undecoded conflict hint source-down"},
		{diagnosticFilter{severity: "warning"}, "undecoded conflict source-down"},
		{diagnosticFilter{shards: []string{"kube"}}, "conflict source-down"},
		{diagnosticFilter{shards: []string{"kube/c2", "file/default"}}, "undecoded source-down"},
		{diagnosticFilter{codes: []string{"hint", "conflict"}}, "conflict hint"},
		{diagnosticFilter{objects: []string{"demo/"}}, "undecoded conflict"},
		{diagnosticFilter{objects: []string{"routes.yaml"}, severity: "error"}, "undecoded"},
	} {
		var got []string
		for _, v := range views {
			if c.filter.match(&v) {
				got = append(got, v.Code)
			}
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%+v: %s, want %s", c.filter, s, c.want)
		}
	}
}

// A type without a table of its own is shown as a list of names.
func TestTableOfUnknownType(t *testing.T) {
	c := configType{Type: "VHDS", Resources: []configResource{{Name: "certificate", message: &reportv1.Tick{}}}}
	rows := c.table(command.NewOutput(io.Discard, command.Table))
	if len(rows.Head) != 1 || rows.Head[0] != "NAME" {
		t.Errorf("head %v", rows.Head)
	}
}

// "latest" is a position of the log alone, however many epochs a process invents (BUS-7).
func TestLatestIsOfTheLog(t *testing.T) {
	log := memlog.New(time.Now)
	begin := events.Event{ID: "segment", Observed: at, Body: &events.Segment{Epoch: 2, Build: "test"}}
	if _, err := log.Append(t.Context(), []events.Event{begin}, events.Fence{}); err != nil {
		t.Fatal(err)
	}
	if at, err := lastPosition(t.Context(), log); err != nil || at != (ident.Position{Epoch: 2, Seq: 1}) {
		t.Errorf("latest is %s (%v), want 2.1", at, err)
	}
}
