package scenario

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	streamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/services/mesh/simulate"
	"meshlog.dev/services/suite/envoytest"
)

// patience is how long a test waits for what Envoy must do.
const patience = time.Minute

// router is an Envoy with listeners of stories, each on a port of loopback. Behind all of
// its clusters that have endpoints is one server, which repeats hello and answers no
// request. So Envoy answers requests, and its responses name the route and the cluster that
// it selected.
type router struct {
	client client
	ports  []uint32
	closed chan []string // of each connection that ended, the fields of connectionFormat
	calls  int
	names  []string // of the listeners, if answers tell which one took the call
	path   string   // of the Unix socket that takes all calls; empty: each listener has a port
}

// answer is what Envoy does with a call.
type answer struct {
	Listener string // empty if the router has no names
	Chain    string
	// Answered: a request gets a response, a bare connection arrives at the server.
	Answered bool
	// Route is the name of the route that matched.
	Route string
	// Cluster is the destination if it is one of the router's clusters. The status of a
	// request is 503 then.
	Cluster  string
	Status   int
	Location string
	// Rule is that of the policy that refused the call: "none" if no rule of ALLOW
	// matched.
	Rule string
}

const (
	// bodyFormat is the format of every response body.
	bodyFormat = "%ROUTE_NAME%\n%UPSTREAM_CLUSTER%\n%RESPONSE_CODE_DETAILS%\n"
	// connectionFormat is a line about each connection that ended. The index of its listener follows.
	connectionFormat = "connection\t%DOWNSTREAM_REMOTE_PORT%\t%FILTER_CHAIN_NAME%\t%UPSTREAM_CLUSTER%\t%CONNECTION_TERMINATION_DETAILS%\t"
)

// newRouter starts an Envoy with listeners, each on a port of its own, and clusters. Envoy
// stops when the test ends.
func newRouter(t testing.TB, listeners []*listenerv3.Listener, clusters []*clusterv3.Cluster) *router {
	t.Helper()
	own := make([]*listenerv3.Listener, len(listeners))
	for i, l := range listeners {
		own[i] = observed(t, i, l)
	}
	return routes(t, own, clusters)
}

// routes starts an Envoy with listeners of observed, and clusters.
func routes(t testing.TB, listeners []*listenerv3.Listener, clusters []*clusterv3.Cluster) *router {
	t.Helper()
	ca := certtest.NewCA("mesh")
	r := &router{client: client{ca}, ports: make([]uint32, len(listeners)), closed: make(chan []string, 100)}
	static := &bootstrapv3.Bootstrap_StaticResources{Listeners: listeners}
	server := serve(t)
	for _, c := range clusters {
		c := &clusterv3.Cluster{
			Name:                 c.GetName(),
			ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
			LoadAssignment:       &endpointv3.ClusterLoadAssignment{ClusterName: c.GetName()},
		}
		if c.GetName() != "BlackHoleCluster" {
			c.LoadAssignment.Endpoints = []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: envoytest.Loopback(server)}},
			}}}}
		}
		static.Clusters = append(static.Clusters, c)
	}
	bootstrap := &bootstrapv3.Bootstrap{
		Node:            &corev3.Node{Id: "router", Cluster: "router"},
		Admin:           &bootstrapv3.Admin{Address: envoytest.Loopback(0)},
		StaticResources: static,
	}
	pair := ca.Peer("router", "spiffe://cluster.local/ns/test/sa/router")
	envoytest.InlineSecrets(t, bootstrap, envoytest.Credentials{Chain: string(pair.Cert), Key: string(pair.Key), CAs: string(ca.PEM())})
	r.findPorts(t, r.start(t, bootstrap))
	return r
}

// observed returns a listener on a port of loopback, which takes the addresses of a
// connection from the PROXY protocol, as it would from the kernel after a redirection. It
// logs each connection that ends.
func observed(t testing.TB, index int, l *listenerv3.Listener) *listenerv3.Listener {
	t.Helper()
	l = proto.Clone(l).(*listenerv3.Listener)
	l.Name, l.Address, l.AdditionalAddresses = strconv.Itoa(index), envoytest.Loopback(0), nil
	l.BindToPort, l.UseOriginalDst = nil, nil
	filters := []*listenerv3.ListenerFilter{{
		Name:       "envoy.filters.listener.proxy_protocol",
		ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: packed(t, &proxyprotocolv3.ProxyProtocol{})},
	}}
	for _, f := range l.GetListenerFilters() {
		if f.GetName() != "envoy.filters.listener.original_dst" && f.GetName() != filters[0].GetName() {
			filters = append(filters, f)
		}
	}
	l.ListenerFilters = filters
	format := &corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: text(connectionFormat + l.GetName() + "\n")}}
	l.AccessLog = []*accesslogv3.AccessLog{{
		Name: "envoy.access_loggers.stdout",
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: packed(t, &streamv3.StdoutAccessLog{
			AccessLogFormat: &streamv3.StdoutAccessLog_LogFormat{LogFormat: format},
		})},
	}}
	return l
}

func text(s string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: s}}
}

func packed(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// serve starts the server behind all clusters, and returns its port. It also takes TLS.
func serve(t testing.TB) uint32 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	config := &tls.Config{Certificates: []tls.Certificate{certtest.NewCA("application").Server("app", time.Now().Add(time.Hour)).TLS()}, MinVersion: tls.VersionTLS12}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // it is closed
			}
			go repeat(c, config)
		}
	}()
	return uint32(l.Addr().(*net.TCPAddr).Port)
}

// peeked is a connection of which the first bytes have been looked at.
type peeked struct {
	net.Conn
	r *bufio.Reader
}

func (p peeked) Read(b []byte) (int, error) { return p.r.Read(b) }

// repeat sends hello back, and closes the connection if another text comes.
func repeat(c net.Conn, config *tls.Config) {
	defer func() { _ = c.Close() }()
	r := bufio.NewReader(c)
	first, err := r.Peek(1)
	if err != nil {
		return
	}
	if first[0] == 0x16 { // a handshake of TLS
		c = tls.Server(peeked{c, r}, config)
		r = bufio.NewReader(c)
	}
	if line, _ := r.ReadString('\n'); line == hello {
		_, _ = c.Write([]byte(hello)) // the caller looks at it
		_, _ = r.ReadByte()           // until Envoy ends it
	}
}

// start runs an Envoy until the test ends, and returns the address of its admin
// interface once it serves.
func (r *router) start(t testing.TB, b *bootstrapv3.Bootstrap) (admin string) {
	t.Helper()
	dir := t.TempDir()
	adminPath := filepath.Join(dir, "admin")
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, envoytest.Envoy(t), "-c", envoytest.Write(t, dir, b), "--admin-address-path", adminPath,
		"--disable-hot-restart", "--concurrency", "1", "-l", "info", "--file-flush-interval-msec", "5")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
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
	go func() { // ends with the process
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			if fields := strings.Split(lines.Text(), "\t"); len(fields) == 6 {
				r.closed <- fields[1:]
			}
		}
		close(r.closed)
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
	resp, err := http.DefaultClient.Get("http://" + admin + "/listeners?format=json")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
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

// ask makes a call to the listener with that index. It keeps the request's Host, path and
// headers.
func (r *router) ask(c simulate.Call, listener int) (answer, error) {
	r.calls++
	source := 1000 + r.calls
	conn, err := r.client.dial(c, cmp.Or(r.path, fmt.Sprintf("127.0.0.1:%d", r.ports[listener])), source)
	if err != nil {
		return answer{}, err
	}
	resp, arrives, err := r.client.call(c, conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return answer{}, err
	}
	a, details := answer{Answered: arrives}, ""
	if resp != nil && err == nil {
		a.Answered, a.Status, a.Location = true, resp.StatusCode, resp.Header.Get("Location")
		lines := bufio.NewScanner(resp.Body)
		for _, field := range []*string{&a.Route, &a.Cluster, &details} {
			if lines.Scan() && lines.Text() != "-" {
				*field = lines.Text()
			}
		}
		_ = resp.Body.Close() // it is read
	}
	if err := conn.Close(); err != nil {
		return a, err
	}
	ended, err := r.ended(source)
	if err != nil {
		return a, err
	}
	if a.Listener, err = r.name(ended[3]); err != nil {
		return a, err
	}
	if ended[0] != "-" {
		a.Chain = ended[0]
	}
	if a.Status == 0 && ended[1] != "-" {
		a.Cluster = ended[1]
	}
	if details == "" {
		details = ended[2]
	}
	if rule, ok := strings.CutPrefix(details, "rbac_access_denied_matched_policy["); ok {
		a.Rule = strings.TrimSuffix(rule, "]")
	}
	return a, nil
}

// name returns the name of the listener with an index.
func (r *router) name(index string) (string, error) {
	if r.names == nil {
		return "", nil
	}
	i, err := strconv.Atoi(index)
	if err != nil {
		return "", err
	}
	return r.names[i], nil
}

// ended returns what Envoy logs about the connection from a port: the filter chain, the
// cluster, why it ended, and the index of its listener.
func (r *router) ended(source int) ([]string, error) {
	for {
		select {
		case fields, ok := <-r.closed:
			if !ok {
				return nil, errors.New("the Envoy has ended")
			}
			if fields[0] == strconv.Itoa(source) {
				return fields[1:], nil
			}
		case <-time.After(patience):
			return nil, fmt.Errorf("no log line about the connection from port %d", source)
		}
	}
}
