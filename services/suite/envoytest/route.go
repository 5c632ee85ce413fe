package envoytest

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
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Router is an Envoy that says where it would send requests, and sends none.
type Router struct {
	client http.Client
	ports  []uint32
}

// Answer is what Envoy makes of a request.
type Answer struct {
	// Route is the name of the route that matched.
	Route string
	// Cluster is where the request would have gone, if that is among the
	// clusters of the Router; Status is 503 then.
	Cluster  string
	Status   int
	Location string
}

// told is the body of every answer.
const told = "%ROUTE_NAME%\n%UPSTREAM_CLUSTER%\n"

// NewRouter starts an Envoy in which each of managers, whose routes are their
// own, has a port; the clusters have no endpoints. It ends with the test.
func NewRouter(t testing.TB, managers []*hcmv3.HttpConnectionManager, clusters []string) *Router {
	t.Helper()
	static := &bootstrapv3.Bootstrap_StaticResources{}
	for _, name := range clusters {
		static.Clusters = append(static.Clusters, &clusterv3.Cluster{
			Name:                 name,
			ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
			LoadAssignment:       &endpointv3.ClusterLoadAssignment{ClusterName: name},
		})
	}
	for i, m := range managers {
		m = proto.Clone(m).(*hcmv3.HttpConnectionManager)
		m.LocalReplyConfig = &hcmv3.LocalReplyConfig{BodyFormat: &corev3.SubstitutionFormatString{
			Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
				Specifier: &corev3.DataSource_InlineString{InlineString: told},
			}},
		}}
		static.Listeners = append(static.Listeners, &listenerv3.Listener{
			Name: strconv.Itoa(i), Address: loopback(),
			FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
				Name: "http", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(t, m)},
			}}}},
		})
	}
	admin := start(t, &bootstrapv3.Bootstrap{
		Node:            &corev3.Node{Id: "router", Cluster: "router"},
		Admin:           &bootstrapv3.Admin{Address: loopback()},
		StaticResources: static,
	})
	r := &Router{ports: make([]uint32, len(managers))}
	r.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	t.Cleanup(r.client.CloseIdleConnections)
	r.findPorts(t, admin)
	return r
}

func loopback() *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{},
	}}}
}

// start runs an Envoy until the test ends, and returns the address of its admin
// interface once it serves.
func start(t testing.TB, b *bootstrapv3.Bootstrap) (admin string) {
	t.Helper()
	text, err := protojson.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config, adminPath := filepath.Join(dir, "envoy.json"), filepath.Join(dir, "admin")
	if err := os.WriteFile(config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, find(t), "-c", config, "--admin-address-path", adminPath,
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
		t.Fatalf("Envoy does not take it:\n%s", said)
	}
	address, err := os.ReadFile(adminPath)
	if err != nil {
		t.Fatal(err)
	}
	return string(address)
}

// findPorts asks for the ports.
func (r *Router) findPorts(t testing.TB, admin string) {
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

// Ask sends a request to the manager of that index: its host, path and headers
// count.
func (r *Router) Ask(req *http.Request, manager int) (Answer, error) {
	req.URL.Scheme, req.URL.Host = "http", fmt.Sprintf("127.0.0.1:%d", r.ports[manager])
	resp, err := r.client.Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	a := Answer{Status: resp.StatusCode, Location: resp.Header.Get("Location")}
	lines := bufio.NewScanner(resp.Body)
	for _, field := range []*string{&a.Route, &a.Cluster} {
		if lines.Scan() && lines.Text() != "-" {
			*field = lines.Text()
		}
	}
	return a, lines.Err()
}
