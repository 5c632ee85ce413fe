package scenario

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/simulate"
	"meshlog.dev/services/suite/envoytest"
)

const database = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: db, namespace: shop}
spec: {hosts: [db.internal], addresses: [10.96.0.1], ports: [{number: 5432, name: tcp, protocol: TCP}], resolution: STATIC, endpoints: [{address: 192.0.2.1}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: db, namespace: shop}
spec: {host: db.internal, trafficPolicy: {%s}}
`

// connected returns an Envoy with the listener and the cluster for connections to db.internal
// that a sidecar is served, and four endpoints, each of which sends its letter to whoever
// connects. The call is one of the connections.
func connected(t *testing.T, policy string) (*router, simulate.Call) {
	t.Helper()
	s := newStage(t)
	if err := s.put(place{files, "mesh.yaml"}, fmt.Sprintf(database, policy)); err != nil {
		t.Fatal(err)
	}
	p, err := s.proxy("sidecar.shop")
	if err != nil {
		t.Fatal(err)
	}
	sets := s.sets(s.pc, p)
	c := new(clusterv3.Cluster)
	if err := proto.Unmarshal(sets[ident.CDS].Find("outbound|5432||db.internal").Value(), c); err != nil {
		t.Fatal(err)
	}
	c.ClusterDiscoveryType, c.EdsClusterConfig = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}, nil
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: c.GetName(), Endpoints: []*endpointv3.LocalityLbEndpoints{{}}}
	for _, letter := range "abcd" {
		c.LoadAssignment.Endpoints[0].LbEndpoints = append(c.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints(), &endpointv3.LbEndpoint{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: envoytest.Loopback(greets(t, string(letter)))}},
		})
	}
	return runs(t, c, listener(t, sets, "10.96.0.1_5432")), simulate.Call{TCP: true, Address: netip.MustParseAddr("10.96.0.1"), Port: 5432}
}

// runs starts an Envoy with one cluster and one listener.
func runs(t *testing.T, c *clusterv3.Cluster, l *listenerv3.Listener) *router {
	t.Helper()
	r := &router{ports: make([]uint32, 1), closed: make(chan []string, 100)}
	r.findPorts(t, r.start(t, &bootstrapv3.Bootstrap{
		Node: &corev3.Node{Id: "sidecar", Cluster: "sidecar"}, Admin: &bootstrapv3.Admin{Address: envoytest.Loopback(0)},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{
			Clusters:  []*clusterv3.Cluster{c},
			Listeners: []*listenerv3.Listener{observed(t, 0, l)},
		},
	}))
	return r
}

const databases = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: db, namespace: shop}
spec:
  hosts: [db.internal]
  addresses: [10.96.0.1]
  ports: [{number: 5432, name: tcp, protocol: TCP}]
  resolution: STATIC
  endpoints: [{address: 192.0.2.1, locality: eu/eu-1}, {address: 192.0.2.2, locality: us/us-1}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: db, namespace: shop}
spec: {host: db.internal, trafficPolicy: {outlierDetection: {consecutive5xxErrors: 1, baseEjectionTime: 300s, maxEjectionPercent: 100}}}
`

// A real Envoy calls the endpoint of its own locality as long as that answers, and then the
// one of another region (LOC-2, DR-14).
func TestFailover(t *testing.T) {
	s := newStage(t)
	if err := s.put(place{files, "mesh.yaml"}, databases); err != nil {
		t.Fatal(err)
	}
	if err := s.define("web: sidecar~10.9.0.1~web.shop~shop.svc.cluster.local topology.istio.io/locality=us/us-1"); err != nil {
		t.Fatal(err)
	}
	sets := s.sets(s.pc, s.proxies["web"])
	c, l := new(clusterv3.Cluster), new(endpointv3.ClusterLoadAssignment)
	const name = "outbound|5432||db.internal"
	if err := errors.Join(proto.Unmarshal(sets[ident.CDS].Find(name).Value(), c), proto.Unmarshal(sets[ident.EDS].Find(name).Value(), l)); err != nil {
		t.Fatal(err)
	}
	near, far := greeter(t, "near"), greeter(t, "far")
	for _, group := range l.GetEndpoints() {
		at := far
		if group.GetLocality().GetRegion() == "us" {
			at = near
		}
		group.GetLbEndpoints()[0].GetEndpoint().Address = envoytest.Loopback(uint32(at.Addr().(*net.TCPAddr).Port))
	}
	c.ClusterDiscoveryType, c.EdsClusterConfig, c.LoadAssignment = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}, nil, l
	r := runs(t, c, listener(t, sets, "10.96.0.1_5432"))
	call := simulate.Call{TCP: true, Address: netip.MustParseAddr("10.96.0.1"), Port: 5432}
	for range 20 {
		if _, got := r.dials(t, call, "127.0.0.1"); got != "n" {
			t.Fatalf("a connection goes to %s, want the near endpoint", got)
		}
	}
	if err := near.Close(); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(patience); ; {
		if got := r.letter(t, call, "127.0.0.1"); got == "f" {
			return // Envoy closes connections until it has taken the near endpoint out
		}
		if time.Now().After(until) {
			t.Fatal("no connection goes to the far endpoint")
		}
	}
}

// greets starts a server that sends text to whoever connects, and returns its port.
func greets(t *testing.T, text string) uint32 {
	t.Helper()
	return uint32(greeter(t, text).Addr().(*net.TCPAddr).Port)
}

// greeter is greets, and returns the server's listener.
func greeter(t *testing.T, text string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // it is closed
			}
			go func() {
				defer func() { _ = c.Close() }()
				if _, err := io.WriteString(c, text); err == nil {
					_, _ = io.Copy(io.Discard, c) // until Envoy ends it
				}
			}()
		}
	}()
	return l
}

// letter opens a connection and returns the letter of its endpoint, or "" if Envoy closes it.
func (r *router) letter(t *testing.T, c simulate.Call, from string) string {
	t.Helper()
	r.calls++
	c.From = netip.MustParseAddr(from)
	conn, err := r.client.dial(c, fmt.Sprintf("127.0.0.1:%d", r.ports[0]), 1000+r.calls)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	letter, err := bufio.NewReader(conn).ReadByte()
	if err != nil {
		return ""
	}
	return string(letter)
}

// dials opens a connection from an address of loopback, and returns it with the letter of its
// endpoint.
func (r *router) dials(t *testing.T, c simulate.Call, from string) (net.Conn, string) {
	t.Helper()
	r.calls++
	c.From = netip.MustParseAddr(from)
	conn, err := r.client.dial(c, fmt.Sprintf("127.0.0.1:%d", r.ports[0]), 1000+r.calls)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	letter, err := bufio.NewReader(conn).ReadByte()
	if err != nil {
		t.Fatal(err)
	}
	return conn, string(letter)
}

// A real Envoy sends all connections of one address to one endpoint, and those of other
// addresses to others too (VST-7, DR-11). It chooses at random without the field.
func TestHashedConnections(t *testing.T) {
	r, call := connected(t, "loadBalancer: {consistentHash: {useSourceIp: true}}")
	all := map[string]bool{}
	for host := 1; host <= 12; host++ {
		from := fmt.Sprintf("127.0.0.%d", host)
		_, first := r.dials(t, call, from)
		for range 5 {
			if _, again := r.dials(t, call, from); again != first {
				t.Fatalf("a connection from %s goes to endpoint %s, and another one to %s", from, first, again)
			}
		}
		all[first] = true
	}
	if len(all) < 2 {
		t.Errorf("connections from 12 addresses go to %v only", all)
	}
}

// A real Envoy ends connections when the DestinationRule says (VST-7, DR-6); without the field
// it keeps an idle one for an hour.
func TestConnectionsEnd(t *testing.T) {
	for field, policy := range map[string]string{
		"idleTimeout":           "connectionPool: {tcp: {idleTimeout: 100ms}}",
		"maxConnectionDuration": "connectionPool: {tcp: {idleTimeout: 0s, maxConnectionDuration: 100ms}}",
	} {
		t.Run(field, func(t *testing.T) {
			r, call := connected(t, policy)
			began := time.Now()
			conn, _ := r.dials(t, call, "127.0.0.1") // its deadline is before an hour
			if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("after %s: %v, not the end of the connection", time.Since(began), err)
			}
		})
	}
}
