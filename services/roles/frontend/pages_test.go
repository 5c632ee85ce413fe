package frontend

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend"
	"meshlog.dev/services/frontend/frontendtest"
	"meshlog.dev/services/internal/process"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

// site is a frontend that serves a mesh, with its admin server.
type site struct {
	t       *testing.T
	admin   *process.Admin
	server  *frontend.Server
	mesh    *frontendtest.Mesh
	changed chan struct{}
	xds     net.Addr
}

func newSite(t *testing.T) *site {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	chain := memstore.NewChain()
	s := &site{t: t, mesh: frontendtest.NewMesh(t, chain), changed: make(chan struct{}, 1)}
	xds, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.xds = xds.Addr()
	limits := frontend.DefaultLimits()
	limits.Drain = time.Millisecond
	if s.server, err = frontend.New(frontend.Config{
		ID: "f1", Build: "test", Store: memstore.Open(&memstore.File{}, store.Retention{}), Chain: chain,
		Listeners: []net.Listener{xds}, Logger: log, Limits: limits,
		OnChange: func(bool) {
			select {
			case s.changed <- struct{}{}:
			default:
			}
		},
	}); err != nil {
		t.Fatal(err)
	}
	if s.admin, err = process.NewAdmin("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	addPages(s.admin, s.server)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- process.RunStages(ctx, process.Stage{s.server.Run},
			process.Stage{func(ctx context.Context) error { return s.admin.Run(ctx, log) }})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

// publish publishes a version and waits until the frontend serves it.
func (s *site) publish(changes ...Change) {
	s.t.Helper()
	v := s.mesh.Publish(changes...)
	s.until(func() bool { return s.server.Serving().Version() == v })
}

func (s *site) until(is func() bool) {
	s.t.Helper()
	late := time.After(time.Minute)
	for !is() {
		select {
		case <-s.changed:
		case <-late:
			s.t.Fatal("the condition never came true")
		}
	}
}

// join connects a proxy that has applied its clusters.
func (s *site) join(id string) {
	s.t.Helper()
	conn, err := grpc.NewClient(s.xds.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	r := &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: id, Cluster: "demo"}, TypeUrl: ident.CDS.URL()}
	if err := stream.Send(r); err != nil {
		s.t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		s.t.Fatal(err)
	}
	r.VersionInfo, r.ResponseNonce = answer.GetVersionInfo(), answer.GetNonce()
	if err := stream.Send(r); err != nil {
		s.t.Fatal(err)
	}
	s.until(func() bool { return s.server.PushStatus(0).Applied == 1 })
}

// get requests a page.
func (s *site) get(path string) (code int, body string) {
	s.t.Helper()
	resp, err := http.Get("http://" + s.admin.Addr() + "/debug/" + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	if resp.StatusCode == 200 && !json.Valid(b) {
		s.t.Errorf("GET %s: no JSON: %s", path, b)
	}
	return resp.StatusCode, string(b)
}

// list reads a page that is a list of objects.
func (s *site) list(path string) (items []map[string]any) {
	s.t.Helper()
	code, body := s.get(path)
	if err := json.Unmarshal([]byte(body), &items); code != 200 || err != nil {
		s.t.Fatalf("GET %s = %d %s, %v", path, code, body, err)
	}
	return items
}

// values returns the values of one field.
func values(items []map[string]any, field string) (all []any) {
	for _, i := range items {
		all = append(all, i[field])
	}
	return all
}

func TestPages(t *testing.T) {
	s := newSite(t)
	for _, page := range []string{"registryz", "endpointz", "configz", "snapshot"} {
		if code, body := s.get(page); code != 503 || !strings.Contains(body, "no version yet") {
			t.Errorf("GET %s before the first version = %d %s", page, code, body)
		}
	}
	if items := s.list("syncz"); len(items) != 0 {
		t.Errorf("proxies of a frontend without any: %v", items)
	}
	s.publish(
		Put("a", Cluster("a", 1)), Service("shop", "cart", "80"), Service("shop", "stock", "80"),
		Slice("shop", "cart", "80", "10.0.0.1", "10.0.0.2"),
	)
	s.join("e1")

	if diff := cmp.Diff([]any{"e1"}, values(s.list("syncz"), "id")); diff != "" {
		t.Error(diff)
	}
	if items := s.list("syncz?proxyID=e2"); len(items) != 0 {
		t.Errorf("syncz of an unknown proxy: %v", items)
	}
	_, body := s.get("push_status")
	for _, want := range []string{`"version": "1.10"`, `"streams": 1`, `"applied": 1`, `"unanswered": 0`, `"oldestUnanswered": []`} {
		if !strings.Contains(body, want) {
			t.Errorf("push_status does not say %s: %s", want, body)
		}
	}
	hosts := []any{"cart.shop.svc.cluster.local", "stock.shop.svc.cluster.local"}
	if diff := cmp.Diff(hosts, values(s.list("registryz"), "host")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(hosts[1:], values(s.list("registryz?host=stock.shop.svc.cluster.local"), "host")); diff != "" {
		t.Error(diff)
	}
	if _, body := s.get("endpointz?host=cart.shop.svc.cluster.local"); !strings.Contains(body, `"address": "10.0.0.2"`) || !strings.Contains(body, `"endpoints": 2`) {
		t.Errorf("endpointz: %s", body)
	}
	if diff := cmp.Diff([]any{"cart", "stock"}, values(s.list("configz?kind=Service&namespace=shop"), "name")); diff != "" {
		t.Error(diff)
	}
	dump := s.list("config_dump?proxyID=e1&type=CDS")
	if len(dump) == 0 || dump[0]["applied"] != true || dump[0]["current"] != true || dump[0]["resource"] == nil {
		t.Errorf("config_dump: %v", dump)
	}
	if _, body := s.get("snapshot"); !strings.Contains(body, `"version": "1.10"`) || !strings.Contains(body, `"rows": 4`) {
		t.Errorf("snapshot: %s", body)
	}
	rows := s.list("snapshot?prefix=")
	if len(rows) != 4 || len(s.list("snapshot?prefix=v/file/default/Service/")) != 2 {
		t.Errorf("snapshot?prefix=: %v", rows)
	}
	for _, r := range rows {
		if code, body := s.get("snapshot?key=" + url.QueryEscape(r["key"].(string))); code != 200 || !strings.Contains(body, `"document"`) {
			t.Errorf("snapshot?key=%s = %d %s", r["key"], code, body)
		}
	}
}

func TestPagesRefuse(t *testing.T) {
	s := newSite(t)
	s.publish(Put("a", Cluster("a", 1)))
	for path, want := range map[string]string{
		"syncz?proxyid=x":                `400 no parameter "proxyid"; did you mean proxyID?`,
		"push_status?x=1":                `400 no parameter "x"; this page has no parameters`,
		"config_dump":                    "400 give ?proxyID=; /debug/syncz lists them",
		"config_dump?proxyID=x":          `404 proxy "x" is not connected here`,
		"config_dump?proxyID=x&type=cds": `400 no type "cds"; there are CDS,`,
		"configz?kind=Servce":            `400 no kind "Servce"; there are `,
		"snapshot?key=x":                 `404 no row "x"; ?prefix= lists`,
	} {
		code, body := s.get(path)
		if got := fmt.Sprint(code, " ", body); !strings.HasPrefix(got, want) {
			t.Errorf("GET %s = %s, want %s", path, got, want)
		}
	}
}
