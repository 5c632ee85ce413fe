package scenario

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/services/mesh/simulate"
	"meshlog.dev/services/suite/envoytest"
)

// router is an Envoy without upstreams. Its responses name the route and the
// cluster that it selected.
type router struct {
	client  http.Client
	ports   []uint32
	clients *clients
}

// front is what a port of the router gets requests with.
type front struct {
	manager *hcmv3.HttpConnectionManager // with its routes and filters
	tls     bool
}

// answer is Envoy's response to a request.
type answer struct {
	// Route is the name of the route that matched.
	Route string
	// Cluster is the destination if it is one of the router's clusters. Status
	// is 503 then, because they have no endpoints.
	Cluster  string
	Status   int
	Location string
	// Rule is that of the policy that refused the request: "none" if no rule of ALLOW
	// matched.
	Rule string
}

// bodyFormat is the format of every response body.
const bodyFormat = "%ROUTE_NAME%\n%UPSTREAM_CLUSTER%\n%RESPONSE_CODE_DETAILS%\n"

// newRouter starts an Envoy with a port for each of fronts. The clusters have no
// endpoints. Envoy stops when the test ends.
func newRouter(t testing.TB, fronts []front, clusters []string) *router {
	t.Helper()
	static := &bootstrapv3.Bootstrap_StaticResources{}
	for _, name := range clusters {
		static.Clusters = append(static.Clusters, &clusterv3.Cluster{
			Name:                 name,
			ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
			LoadAssignment:       &endpointv3.ClusterLoadAssignment{ClusterName: name},
		})
	}
	clients := newClients(t)
	for i, f := range fronts {
		m := proto.Clone(f.manager).(*hcmv3.HttpConnectionManager)
		m.LocalReplyConfig = &hcmv3.LocalReplyConfig{BodyFormat: &corev3.SubstitutionFormatString{
			Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
				Specifier: &corev3.DataSource_InlineString{InlineString: bodyFormat},
			}},
		}}
		l := envoytest.Listener(t, strconv.Itoa(i), 0, m)
		if f.tls {
			l.FilterChains[0].TransportSocket = clients.server(t)
		}
		static.Listeners = append(static.Listeners, l)
	}
	admin := start(t, &bootstrapv3.Bootstrap{
		Node:            &corev3.Node{Id: "router", Cluster: "router"},
		Admin:           &bootstrapv3.Admin{Address: envoytest.Loopback(0)},
		StaticResources: static,
	})
	r := &router{ports: make([]uint32, len(fronts)), clients: clients}
	t.Cleanup(r.client.CloseIdleConnections)
	r.findPorts(t, admin)
	return r
}

// start runs an Envoy until the test ends, and returns the address of its admin
// interface once it serves.
func start(t testing.TB, b *bootstrapv3.Bootstrap) (admin string) {
	t.Helper()
	dir := t.TempDir()
	adminPath := filepath.Join(dir, "admin")
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, envoytest.Envoy(t), "-c", envoytest.Write(t, dir, b), "--admin-address-path", adminPath,
		"--disable-hot-restart", "--concurrency", "1", "-l", "info")
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	serving, ended := make(chan struct{}), make(chan string, 1)
	up := serving
	go func() { // ends with the process
		var said []string
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			if strings.Contains(lines.Text(), "starting workers") {
				close(serving)
				serving = nil
			}
			said = append(said[max(0, len(said)-10):], lines.Text())
		}
		ended <- strings.Join(said, "\n")
	}()
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
	})
	select {
	case <-up:
	case said := <-ended:
		t.Fatalf("Envoy ended before it served:\n%s", said)
	}
	address, err := os.ReadFile(adminPath)
	if err != nil {
		t.Fatal(err)
	}
	return string(address)
}

// findPorts reads the listeners' ports from the admin interface.
func (r *router) findPorts(t testing.TB, admin string) {
	t.Helper()
	resp, err := r.client.Get("http://" + admin + "/listeners?format=json")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var reply struct {
		Statuses []struct {
			Name    string
			Address struct {
				Socket struct {
					Port uint32 `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&reply); err != nil {
		t.Fatal(err)
	}
	for _, s := range reply.Statuses {
		i, err := strconv.Atoi(s.Name)
		if err != nil {
			t.Fatal(err)
		}
		r.ports[i] = s.Address.Socket.Port
	}
}

// ask sends the request of a call to the front with that index. It keeps the request's
// Host, path and headers.
func (r *router) ask(c simulate.Call, front int) (answer, error) {
	req, err := r.clients.request(c)
	if err != nil {
		return answer{}, err
	}
	client, err := r.clients.client(c)
	if err != nil {
		return answer{}, err
	}
	defer client.CloseIdleConnections()
	req.URL.Host = fmt.Sprintf("127.0.0.1:%d", r.ports[front])
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	a := answer{Status: resp.StatusCode, Location: resp.Header.Get("Location")}
	lines := bufio.NewScanner(resp.Body)
	details := ""
	for _, field := range []*string{&a.Route, &a.Cluster, &details} {
		if lines.Scan() && lines.Text() != "-" {
			*field = lines.Text()
		}
	}
	if rule, ok := strings.CutPrefix(details, "rbac_access_denied_matched_policy["); ok {
		a.Rule = strings.TrimSuffix(rule, "]")
	}
	return a, lines.Err()
}
