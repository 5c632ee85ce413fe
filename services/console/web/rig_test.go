package web_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/operatetest"
	"meshlog.dev/services/roles/console"
)

func TestMain(m *testing.M) { operatetest.Main(m) }

// mesh is a mesh that runs in the process of the test, with its console.
type mesh struct {
	*operatetest.Mesh
	*testing.T
	url string // of the console, without a slash at the end
	// Copy is the data directory of the console.
	Copy string
	key  string // the file of alice, an operator that the MeshPolicy names
	// first is the version before the weights of the route changed, shifted the one after that.
	first, shifted string
}

const shop = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: shop, namespace: demo}
spec:
  hosts: [shop.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.1.0.1, labels: {version: v1}}, {address: 10.1.0.2, labels: {version: v2}}]
`

func route(v1, v2 int) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: demo}
spec:
  hosts: [shop.internal]
  http: [{route: [{destination: {host: shop.internal, subset: v1}, weight: %d}, {destination: {host: shop.internal, subset: v2}, weight: %d}]}]
`, v1, v2)
}

const rule = `apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: shop, namespace: demo}
spec:
  host: shop.internal
  subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]
`

// late is refused: it has an unknown field.
const late = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: late, namespace: demo}
spec:
  hosts: [shop.internal]
  http: [{route: [{destination: {host: shop.internal, subsett: v1}}]}]
`

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

// evil is the id of a proxy that tries to run a script in the console.
const evil = `evil"><script>document.title='owned'</script><img src=x onerror=alert(1)>`

// start runs a mesh with a history: the weights of a route change, a proxy rejects a cluster,
// and a loss is held back.
func start(t *testing.T) *mesh {
	t.Helper()
	var many strings.Builder
	for i := range 10 {
		many.WriteString(cluster(fmt.Sprintf("lost-%d", i)))
	}
	key, policy := operator(t)
	m := &mesh{T: t, Copy: t.TempDir(), key: key, Mesh: operatetest.Start(t, map[string]string{
		"shop.yaml": shop, "rule.yaml": rule, "routes.yaml": route(90, 10), "late.yaml": late, "many.yaml": many.String(), "policy.yaml": policy,
	})}
	m.url = m.console(console.DefaultSettings(), m.Copy)
	m.until("/", "Needs attention") // of late.yaml: the console has reports
	m.write("routes.yaml", route(50, 50))
	const route = "/timeline?kind=VirtualService&name=shop"
	m.until(route, "routes.yaml:1")
	versions := versionLink.FindAllStringSubmatch(m.until(route, "VirtualService demo/shop"), -1)
	m.shifted, m.first = versions[0][1], versions[len(versions)-1][1]
	m.connect("sidecar~10.0.0.9~app.demo~demo.svc.cluster.local", "")
	m.connect(evil, "new")
	m.until("/fleet", "2 streams")
	m.write("new.yaml", cluster("new"))
	m.until("/fleet?state=rejecting", "1 stream.")
	if err := os.Remove(filepath.Join(m.Config, "many.yaml")); err != nil {
		t.Fatal(err)
	}
	m.until("/problems", "Held back by the guard")
	return m
}

// console runs a console of the mesh, and returns its address without a slash at the end.
func (m *mesh) console(settings *console.Settings, data string) string {
	m.Helper()
	log, lines := operatetest.NewEvents()
	admin, err := process.NewAdmin("127.0.0.1:0")
	if err != nil {
		m.Fatal(err)
	}
	settings.Listen = "127.0.0.1:0"
	l, err := settings.Open(log)
	if err != nil {
		m.Fatal(err)
	}
	ctx, cancel := context.WithCancel(m.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- settings.Run(ctx, process.DefaultDomain, data, l, func(ctx context.Context) (*bus.Conn, error) {
			return bus.ConnectWait(ctx, m.bus(settings.Role()))
		}, &process.Process{Build: "test", Log: log, Admin: admin})
	}()
	m.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			m.Errorf("the console ended with %v", err)
		}
	})
	return strings.TrimSuffix(lines.Wait(m.T, "console", "url"), "/")
}

func (m *mesh) bus(role bus.Role) bus.ConnectOptions {
	return bus.ConnectOptions{URL: filepath.Join(m.Data, bus.FileName), Role: role, Name: "console", Log: slog.New(slog.DiscardHandler)}
}

func (m *mesh) write(name, content string) {
	m.Helper()
	operatetest.WriteFiles(m.T, m.Config, map[string]string{name: content})
}

// connect connects a client that behaves like Envoy: it asks for clusters, and accepts them
// unless there is one with the name that it rejects.
func (m *mesh) connect(id, rejects string) {
	m.Helper()
	conn, err := grpc.NewClient(m.XDS, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() { conn.Close() })
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(m.Context())
	if err == nil {
		err = stream.Send(&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: id, Cluster: "demo"}, TypeUrl: ident.CDS.URL()})
	}
	if err != nil {
		m.Fatal(err)
	}
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				return // the test has ended
			}
			if stream.Send(answer(r, rejects)) != nil {
				return
			}
		}
	}()
}

func answer(r *discoveryv3.DiscoveryResponse, rejects string) *discoveryv3.DiscoveryRequest {
	q := &discoveryv3.DiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce(), VersionInfo: r.GetVersionInfo()}
	for _, resource := range r.GetResources() {
		c := new(clusterv3.Cluster)
		if err := resource.UnmarshalTo(c); rejects != "" && err == nil && c.GetName() == rejects {
			q.VersionInfo, q.ErrorDetail = "", &statusv3.Status{Code: 3, Message: "Error adding/updating cluster(s) " + rejects + ": <b>it is bad</b>"}
		}
	}
	return q
}

// get returns a page.
func (m *mesh) get(path string) (int, string) {
	m.Helper()
	r, err := http.Get(m.url + path)
	if err != nil {
		m.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		m.Fatal(err)
	}
	return r.StatusCode, string(b)
}

// until waits until a page has a text: it looks again when the console says that the mesh has
// changed.
func (m *mesh) until(path, want string) string {
	m.Helper()
	end := time.Now().Add(time.Minute)
	for time.Now().Before(end) {
		if body, ok := m.watch(path, want, end); ok {
			return body
		}
	}
	_, body := m.get(path)
	m.Fatalf("%s never has %q:\n%s", path, want, body)
	return ""
}

// watch looks at each event of a connection, and ends with it.
func (m *mesh) watch(path, want string, end time.Time) (string, bool) {
	m.Helper()
	r, err := http.Get(m.url + "/events")
	if err != nil {
		m.Fatal(err)
	}
	defer r.Body.Close()
	lines := bufio.NewScanner(r.Body)
	for {
		if status, body := m.get(path); status == http.StatusOK && strings.Contains(body, want) {
			return body, true
		}
		for {
			if !lines.Scan() || time.Now().After(end) {
				return "", false
			}
			if strings.HasPrefix(lines.Text(), "event: changed") {
				break
			}
		}
	}
}

// address returns a path with parameters.
func address(path string, parameters ...string) string {
	q := url.Values{}
	for i := 0; i < len(parameters); i += 2 {
		q.Set(parameters[i], parameters[i+1])
	}
	return path + "?" + q.Encode()
}
