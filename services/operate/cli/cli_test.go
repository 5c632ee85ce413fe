package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/nats-io/nats.go"
	statusv3 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/operatetest"
	"meshlog.dev/services/roles/frontend"
)

const broken = "apiVersion: envoy.meshlog.dev/v1\nkind: Resource\nmetadata: {name: broken}\nspec:\n  resource: {nonsense: 1}\n"

func cluster(name string) string {
	return fmt.Sprintf(`apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: %s}
spec:
  resource:
    "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
    name: %[1]s
    type: STATIC
    connect_timeout: 1s
---
`, name)
}

func TestLogAndVersions(t *testing.T) {
	m := start(t, map[string]string{"shop.yaml": "# a comment\n" + cluster("shop")})

	var records []recordView
	m.must(t, &records, "log", "--kind", "Resource", "--name", "shop")
	if len(records) != 1 || records[0].What != "put" || records[0].Object.Origin != filepath.Join(m.Config, "shop.yaml")+":2" &&
		records[0].Object.Origin != "shop.yaml:2" {
		t.Fatalf("log --name shop = %+v, want one put", records)
	}
	if spec := string(records[0].Object.Spec); !strings.Contains(spec, `"shop"`) {
		t.Errorf("spec %s does not show the cluster", spec)
	}
	records = nil
	m.must(t, &records, "log", "--name", "absent")
	if len(records) != 0 {
		t.Errorf("log --name absent = %+v", records)
	}
	if out := m.must(t, nil, "log", "-n", "1", "--name", "shop"); !strings.Contains(out, "PUT") || strings.Count(out, "\n") != 2 {
		t.Errorf("log prints\n%swant a head and a PUT", out)
	}

	var versions []versionView
	m.must(t, &versions, "versions")
	if len(versions) == 0 {
		t.Fatal("no versions")
	}
	var version versionView
	m.must(t, &version, "versions", versions[len(versions)-1].Version)
	causes := map[string]string{}
	for _, c := range version.Changes {
		causes[c.Object] = c.Cause
	}
	if c := causes["Resource default/shop (file/default)"]; !strings.Contains(c, "PUT") || !strings.Contains(c, "shop.yaml:2") {
		t.Errorf("causes = %q, want the put of shop.yaml:2 for the cluster", causes)
	}
	if out := m.must(t, nil, "versions", version.Version); !strings.Contains(out, "Resource default/shop") {
		t.Errorf("versions %s prints\n%s", version.Version, out)
	}

	for _, c := range []struct {
		args []string
		want string
		code int
	}{
		{[]string{"versions", "9.9"}, "version 9.9: never published", 3},
		{[]string{"versions", "nine"}, `version "nine": want EPOCH.SEQ`, 2},
		{[]string{"log", "--from", "x"}, `--from "x": want SEQ or EPOCH.SEQ`, 2},
		{[]string{"log", "--from", "0"}, "the log begins at 1", 3},
		{[]string{"log", "-o", "xml"}, `--output "xml": want table, json or yaml`, 2},
		{[]string{"approve", "x"}, `"x": nothing with this id is held back or in quarantine`, 3},
		{[]string{"proxy-status", "--frontend", "x"}, `frontend "x": does not answer; the frontends that do: up`, 3},
		{[]string{"proxy-status", "x"}, `proxy "x": not connected to any frontend (up)`, 3},
		{[]string{"diagnostics", "--fail-on", "x"}, `--fail-on "x": want error`, 2},
	} {
		_, _, err := m.meshlog(t, nil, c.args...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("meshlog %s: %v, want %q", strings.Join(c.args, " "), err, c.want)
		}
		if got := exitCode(err); got != c.code {
			t.Errorf("meshlog %s: exit code %d, want %d", strings.Join(c.args, " "), got, c.code)
		}
	}
}

func TestDiagnostics(t *testing.T) {
	m := start(t, map[string]string{"shop.yaml": cluster("shop"), "broken.yaml": broken})
	var ds []diagnosticView
	m.must(t, &ds, "diagnostics")
	if len(ds) != 1 || ds[0].Severity != "error" || !strings.Contains(ds[0].Origin, "broken.yaml:") || ds[0].Reason == "" || ds[0].Advice == "" {
		t.Fatalf("diagnostics = %+v, want one about broken.yaml with origin, reason and advice", ds)
	}
	out, _, err := m.meshlog(t, nil, "diagnostics", "--fail-on", "warning")
	if err == nil || exitCode(err) != 1 || !strings.Contains(err.Error(), "1 problem of severity warning or worse") {
		t.Errorf("diagnostics --fail-on warning: %v, want exit code 1", err)
	}
	if !strings.Contains(out, "broken.yaml:") || !strings.Contains(out, "to do") {
		t.Errorf("diagnostics prints\n%s", out)
	}
}

// An operator approves a loss that the guard holds. After meshlog up has ended, the
// approved version can be read from its data directory.
func TestApprove(t *testing.T) {
	var many strings.Builder
	for i := range 10 {
		many.WriteString(cluster(fmt.Sprintf("c%d", i)))
	}
	m := start(t, map[string]string{"many.yaml": many.String(), "shop.yaml": cluster("shop")})
	stream, reports := m.follow(t), m.builderReports(t)
	if err := os.Remove(filepath.Join(m.Config, "many.yaml")); err != nil {
		t.Fatal(err)
	}
	var hold recordView
	for hold.What != "overlay" {
		if err := stream.Decode(&hold); err != nil {
			t.Fatal(err)
		}
	}
	for len((<-reports).GetHolds()) == 0 {
	}
	var holds []holdView
	m.must(t, &holds, "approve")
	if len(holds) != 1 || holds[0].Source != "file" || holds[0].Keys != 10 {
		t.Fatalf("approve lists %+v, want the ten keys of file", holds)
	}
	var approved approvedView
	m.must(t, &approved, "approve", holds[0].ID)

	var version versionView
	m.must(t, &version, "versions", approved.Version)
	if c := version.Changes; len(c) != 1 || !c[0].Removed || c[0].Object != "overlay "+hold.Overlay.ID || c[0].Seq != approved.Seq {
		t.Errorf("version %s changes %+v, want the hold gone by record %d", approved.Version, c, approved.Seq)
	}
	holds = nil
	if m.must(t, &holds, "approve"); len(holds) != 0 {
		t.Errorf("after the approval the guard still holds %+v", holds)
	}

	if err := m.Stop(); err != nil {
		t.Fatalf("up: %v", err)
	}
	var left []versionView
	_, stderr, err := m.meshlog(t, &left, "versions")
	if err != nil || len(left) == 0 || left[0].Version != approved.Version {
		t.Errorf("versions of the stopped mesh: %v, %v; want %s first", left, err, approved.Version)
	}
	if !strings.Contains(stderr, "Nothing runs on "+m.Data) {
		t.Errorf("standard error does not say that meshlog read a copy: %q", stderr)
	}
	m.servesAlone(t)
	if _, _, err := m.meshlog(t, nil, "approve"); err == nil || !strings.Contains(err.Error(), "nothing runs on this data directory; start `meshlog up` on it") {
		t.Errorf("approve of a stopped mesh: %v", err)
	}
}

// servesAlone starts a frontend on the data of a stopped mesh, without any other
// process.
func (m *mesh) servesAlone(t *testing.T) {
	t.Helper()
	xds, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	admin, err := process.NewAdmin("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	log, said := operatetest.NewEvents()
	go func() {
		ended <- frontend.Run(ctx, frontend.Options{
			ID: "alone", Data: m.Data, Ports: &frontend.Ports{Plain: []net.Listener{xds}},
			Process: &process.Process{Build: "test", Log: log, Admin: admin},
		})
	}()
	said.Wait(t, "serving", "version")
	e := connectEnvoy(t, xds.Addr().String())
	e.ask(t, ident.CDS.URL(), nil)
	if r := e.answer(t, ""); len(r.GetResources()) != 1 {
		t.Errorf("a frontend on the data of the stopped mesh serves %d clusters, want only shop", len(r.GetResources()))
	}
	if err := e.close(); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("frontend: %v", err)
	}
}

// builderReports returns a channel of the builder's later reports.
func (m *mesh) builderReports(t *testing.T) <-chan *reportv1.BuilderReport {
	t.Helper()
	nc, err := bus.Connect(bus.ConnectOptions{URL: filepath.Join(m.Data, bus.FileName), Role: bus.Operator(), Name: "test", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	reports := make(chan *reportv1.BuilderReport, 100)
	_, err = nc.Subscribe("meshlog.fleet.mesh.report.builder.>", func(msg *nats.Msg) {
		r := new(reportv1.BuilderReport)
		if err := proto.Unmarshal(msg.Data, r); err != nil {
			t.Error(err)
		}
		reports <- r
	})
	if err != nil {
		t.Fatal(err)
	}
	return reports
}

// follow returns a decoder of the output of `meshlog log --follow`.
func (m *mesh) follow(t *testing.T) *json.Decoder {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	cmd := New()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs([]string{"log", "--follow", "-o", "json", "--data", m.Data})
	cmd.SetOut(w)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err := cmd.ExecuteContext(ctx)
		if err != nil && !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("log --follow: %v", err)
		}
		w.CloseWithError(io.EOF)
	}()
	t.Cleanup(func() { cancel(); r.Close(); <-ended })
	return json.NewDecoder(r)
}

func TestProxyStatus(t *testing.T) {
	m := start(t, map[string]string{"shop.yaml": cluster("shop")})
	if out := m.must(t, nil, "proxy-status"); !strings.HasPrefix(out, "No proxy is connected to any frontend (up).") {
		t.Errorf("proxy-status prints %q", out)
	}
	e := connectEnvoy(t, m.XDS)
	e.ask(t, ident.CDS.URL(), nil)
	e.answer(t, "")
	e.ask(t, ident.LDS.URL(), nil) // the frontend answers this after it has read the ACK
	e.answer(t, "no such filter")
	e.ask(t, ident.EDS.URL(), []string{"absent"})

	var proxies []proxyView
	m.must(t, &proxies, "proxy-status")
	if len(proxies) != 1 || proxies[0].ID != "envoy-1" || proxies[0].Frontend != "up" {
		t.Fatalf("proxy-status = %+v, want envoy-1 at up", proxies)
	}
	got := map[string]string{}
	for _, x := range proxies[0].Types {
		got[x.Type] = x.Status
	}
	if got["CDS"] != "SYNCED" {
		t.Errorf("proxy-status = %v, want CDS SYNCED", got)
	}
	for _, args := range [][]string{{"proxy-status", "envoy-1"}, {"proxy-status", "env"}, {"proxy-status", "--rejected"}} {
		if out := m.must(t, nil, args...); !strings.Contains(out, "envoy-1") || !strings.Contains(out, "no such filter") {
			t.Errorf("%v prints\n%s", args, out)
		}
	}
}

// envoy is a client that behaves like Envoy.
type envoy struct {
	stream grpc.BidiStreamingClient[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]
	close  func() error
}

func connectEnvoy(t *testing.T, addr string) *envoy {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return &envoy{stream: stream, close: conn.Close}
}

func (e *envoy) ask(t *testing.T, typeURL string, names []string) {
	t.Helper()
	err := e.stream.Send(&discoveryv3.DiscoveryRequest{
		Node: &corev3.Node{Id: "envoy-1", Cluster: "demo"}, TypeUrl: typeURL, ResourceNames: names,
	})
	if err != nil {
		t.Fatal(err)
	}
}

// answer receives the next response, and ACKs it, or NACKs it if complaint is not
// empty.
func (e *envoy) answer(t *testing.T, complaint string) *discoveryv3.DiscoveryResponse {
	t.Helper()
	r, err := e.stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	req := &discoveryv3.DiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce(), VersionInfo: r.GetVersionInfo()}
	if complaint != "" {
		req.VersionInfo, req.ErrorDetail = "", &statusv3.Status{Code: 3, Message: complaint}
	}
	if err := e.stream.Send(req); err != nil {
		t.Fatal(err)
	}
	return r
}
