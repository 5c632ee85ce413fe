package policy_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/policy"
	"meshlog.dev/services/suite/envoytest"
)

// verdict is an authorizer that always answers the same.
type verdict struct {
	code  codes.Code
	asked atomic.Int32
}

func (v *verdict) Check(context.Context, *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	v.asked.Add(1)
	return &authv3.CheckResponse{Status: &status.Status{Code: int32(v.code)}}, nil
}

// serve serves an authorizer by gRPC until the test ends, and returns its port.
func (v *verdict) serve(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	authv3.RegisterAuthorizationServer(s, v)
	go func() { _ = s.Serve(l) }() // Stop ends it
	t.Cleanup(s.Stop)
	return portOf(t, l)
}

func portOf(t *testing.T, l net.Listener) int {
	t.Helper()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// asked is a mesh with authorizers: yes, no, one at which nobody listens, and one whose
// protocol is detected.
const asked = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: auth, namespace: security}
spec:
  hosts: [auth.example]
  resolution: STATIC
  ports: [{number: 1, name: grpc-yes, protocol: GRPC}, {number: 2, name: grpc-no, protocol: GRPC}, {number: 3, name: away, protocol: GRPC}, {number: 4, name: any}]
  endpoints: [{address: 127.0.0.1, ports: {grpc-yes: %d, grpc-no: %d, away: %d, any: %d}}]
---
apiVersion: mesh.istio.io/v1alpha1
kind: MeshConfig
metadata: {name: default}
spec:
  extensionProviders:
  - {name: "yes", envoyExtAuthzGrpc: {service: auth.example, port: 1}}
  - {name: "no", envoyExtAuthzGrpc: {service: auth.example, port: 2}}
  - {name: away, envoyExtAuthzGrpc: {service: auth.example, port: 3}}
  - {name: away-open, envoyExtAuthzGrpc: {service: auth.example, port: 3, failOpen: true}}
  - {name: any, envoyExtAuthzHttp: {service: auth.example, port: 4}}
  - {name: nowhere, envoyExtAuthzGrpc: {service: nowhere.example, port: 1, failOpen: true}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: p, namespace: shop}
spec: {action: CUSTOM, provider: {name: "%s"}, rules: [%s]}
`

// A real Envoy asks authorizers of gRPC about connections, and closes those that it
// cannot ask about. A sidecar's cluster of a detected port answers questions by HTTP.
func TestConnectionsAreAsked(t *testing.T) {
	yes, no := &verdict{code: codes.OK}, &verdict{code: codes.PermissionDenied}
	byHTTP := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/allowed" {
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	defer byHTTP.Close()
	backend, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = backend.Close() }() // nothing was written to it
	go echo(backend)
	away, err := testport.TCP()
	if err != nil {
		t.Fatal(err)
	}
	ports := []int{yes.serve(t), no.serve(t), away, portOf(t, byHTTP.Listener)}
	const every, none = "{}", "{when: [{key: connection.sni, values: [never.example]}]}"
	cases := []struct {
		provider, match string
		open            bool
		asked           int32 // how often yes and no were asked
	}{
		{"yes", every, true, 1}, {"no", every, false, 1}, {"no", none, true, 0},
		{"away", every, false, 0}, {"away", none, true, 0}, {"away-open", every, true, 0},
		{"any", every, false, 0}, {"any", none, true, 0},
		{"nowhere", every, false, 0}, {"missing", every, false, 0}, {"missing", none, true, 0},
	}
	dir := t.TempDir()
	c := envoytest.Config{Clusters: []*clusterv3.Cluster{{
		Name: "backend", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}, LoadAssignment: Endpoints("backend", uint32(portOf(t, backend))),
	}}}
	for i, test := range cases {
		pc := PushContext(t, YAML(t, fmt.Sprintf(asked, ports[0], ports[1], ports[2], ports[3], test.provider, test.match))...)
		class := index.Classify(pc, &proxy.Proxy{Type: proxy.Sidecar, Namespace: "shop"})
		if i == 0 {
			generated(t, pc, class, &c)
		}
		c.Listeners = append(c.Listeners, tcpListener(t, pc, class.LDS, filepath.Join(dir, strconv.Itoa(i))))
		if test.provider == "any" && test.match == every {
			c.Listeners = append(c.Listeners, httpListener(t, pc, class.ECDS, filepath.Join(dir, "http")))
		}
	}
	run(t, dir, c)
	for i, test := range cases {
		before := yes.asked.Load() + no.asked.Load()
		open, err := echoes(filepath.Join(dir, strconv.Itoa(i)))
		if n := yes.asked.Load() + no.asked.Load() - before; err != nil || open != test.open || n != test.asked {
			t.Errorf("%s, %s: open %v, %v, asked %d times; want %v, %d", test.provider, test.match, open, err, n, test.open, test.asked)
		}
	}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dir, "http"))
	}}}
	for path, want := range map[string]int{"/allowed": http.StatusOK, "/other": http.StatusTeapot} {
		r, err := client.Get("http://shop.example" + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close() // only the status counts
		if r.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, r.StatusCode, want)
		}
	}
}

// generated adds the clusters of a class and their endpoints.
func generated(t *testing.T, pc *index.PushContext, class index.ProxyClass, c *envoytest.Config) {
	t.Helper()
	catalog := xds.NewCatalog(pc)
	for _, r := range catalog.Set(class, ident.CDS).Resources {
		m := new(clusterv3.Cluster)
		if err := proto.Unmarshal(r.Value(), m); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(m.GetName(), "outbound") {
			c.Clusters = append(c.Clusters, m)
		}
	}
	for _, r := range catalog.Set(class, ident.EDS).Resources {
		m := new(endpointv3.ClusterLoadAssignment)
		if err := proto.Unmarshal(r.Value(), m); err != nil {
			t.Fatal(err)
		}
		c.Endpoints = append(c.Endpoints, m)
	}
}

// tcpListener returns a listener whose connections pass the filters of policies.
func tcpListener(t *testing.T, pc *index.PushContext, class index.LDSClass, socket string) *listenerv3.Listener {
	t.Helper()
	filters, _ := policy.OfConnections(class).Filters(pc.Read())
	chain := &listenerv3.FilterChain{Filters: append(filters, &listenerv3.Filter{
		Name: "tcp", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: piece.Any(&tcpv3.TcpProxy{StatPrefix: "tcp", ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: "backend"}})},
	})}
	return &listenerv3.Listener{Name: socket, Address: pipe(socket), FilterChains: []*listenerv3.FilterChain{chain}}
}

// httpListener returns a listener whose requests pass the slots, and get 200.
func httpListener(t *testing.T, pc *index.PushContext, class index.ECDSClass, socket string) *listenerv3.Listener {
	t.Helper()
	m := &hcmv3.HttpConnectionManager{StatPrefix: "http", RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
		Name: "r", VirtualHosts: []*routev3.VirtualHost{{Name: "all", Domains: []string{"*"}, Routes: []*routev3.Route{{
			Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: http.StatusOK}},
		}}}},
	}}}
	for _, part := range policy.Parts(pc.Read(), class) {
		pieces, _ := part.Make(pc.Read())
		config := pieces[0].Message.(*corev3.TypedExtensionConfig)
		m.HttpFilters = append(m.HttpFilters, &hcmv3.HttpFilter{Name: config.GetName(), ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: config.GetTypedConfig()}})
	}
	m.HttpFilters = append(m.HttpFilters, &hcmv3.HttpFilter{Name: "router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: piece.Any(&routerv3.Router{})}})
	l := envoytest.Listener(t, "http", 0, m)
	l.Address = pipe(socket)
	return l
}

func pipe(socket string) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: socket}}}
}

// run runs an Envoy until the test ends. It waits for the last listener, which Envoy opens
// last.
func run(t *testing.T, dir string, c envoytest.Config) {
	t.Helper()
	envoy, err := program.Start("envoy", dir, []string{
		envoytest.Envoy(t), "-c", envoytest.Write(t, dir, c.Bootstrap(t)), "--disable-hot-restart", "--concurrency", "1", "-l", "warning",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(envoy.Kill)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	last := c.Listeners[len(c.Listeners)-1]
	if err := envoy.UntilAlive(ctx, "the last listener", func(context.Context) error {
		c, err := net.Dial("unix", last.GetAddress().GetPipe().GetPath())
		if err != nil {
			return err
		}
		return c.Close()
	}); err != nil {
		t.Fatalf("%v\n%s", err, envoy.Tail(10))
	}
}

// echo repeats what comes over connections.
func echo(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return // it is closed
		}
		go func() {
			defer func() { _ = c.Close() }()
			_, _ = io.Copy(c, c) // the client compares
		}()
	}
}

// echoes reports whether a connection to a socket reaches the backend.
func echoes(socket string) (bool, error) {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return false, err
	}
	defer func() { _ = c.Close() }() // it is read
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return false, err
	}
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return false, err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return false, err
	}
	return line == "hello\n", nil
}
