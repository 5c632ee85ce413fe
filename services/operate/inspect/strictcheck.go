package inspect

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/proxy_protocol/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/mesh/xds/secret"
	"meshlog.dev/services/mesh/xds/traffic"
	"meshlog.dev/services/operate/command"
)

// strictCheck says which connected clients cannot call which STRICT ports.
type strictCheck struct {
	Version ident.Position `json:"version"`
	Proxies int            `json:"proxies"` // connected, those without a port that is checked too
	Already int            `json:"already"` // ports that are STRICT before the objects are applied
	Ports   []strictPort   `json:"ports"`
	Unseen  string         `json:"unseen"`

	hypothetical bool // objects are applied that are not on the log
}

// strictPort is a port of workloads that is STRICT, or becomes it.
type strictPort struct {
	Service   string       `json:"service,omitempty"` // HOST:PORT; absent: only a PeerAuthentication names the port
	Port      uint32       `json:"port"`              // of the workloads
	Now       string       `json:"now"`               // the mode in the newest version
	By        string       `json:"by"`                // the PeerAuthentication, NAMESPACE/NAME
	Workloads []string     `json:"workloads"`         // their proxies
	Closed    []string     `json:"closed,omitempty"`  // proxies without a certificate: they refuse every client
	Clients   []lostClient `json:"clients"`           // that cannot call it

	addresses map[string]string // of a workload's port: its proxy
	host      string
}

// lostClient is a client that cannot call a port.
type lostClient struct {
	Proxy   string `json:"proxy"`
	Type    string `json:"type"` // sidecar, router, grpc
	Cluster string `json:"cluster"`
	Why     string `json:"why"`
}

// run finds the ports that are STRICT in the world next and, if objects are applied to it,
// are not in the world now, and the clients that cannot call them.
func (c *strictCheck) run(now, next *world.World, proxies []*proxy.Proxy) error {
	was, is := index.NewPushContext(now), index.NewPushContext(next)
	c.Ports = []strictPort{}
	for _, p := range proxies {
		c.add(was, is, p)
	}
	open, err := withoutPeers(next)
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, p := range c.Ports {
		for at := range p.addresses {
			wanted[at] = true
		}
		wanted[p.host] = true
	}
	may, does := newCaller(index.NewPushContext(open), wanted), newCaller(is, wanted)
	for i := range c.Ports {
		port := &c.Ports[i]
		slices.Sort(port.Workloads)
		for _, p := range proxies {
			reached, err := may.calls(p)
			if err != nil {
				return err
			}
			called, err := does.calls(p)
			if err != nil {
				return err
			}
			if lost := port.loses(p, reached, called, does); lost != nil {
				port.Clients = append(port.Clients, *lost)
			}
		}
	}
	slices.SortFunc(c.Ports, func(a, b strictPort) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Now, b.Now), cmp.Compare(a.By, b.By))
	})
	return nil
}

// add adds the ports of a workload.
func (c *strictCheck) add(was, is *index.PushContext, p *proxy.Proxy) {
	if p.Type != proxy.Sidecar || p.GRPC {
		return
	}
	before, modes := was.Read().PeerModes(p.Namespace, p.Labels), is.Read().PeerModes(p.Namespace, p.Labels)
	class := index.Classify(is, p).LDS
	for _, in := range class.Inbound.Ports() {
		if in.Mode != index.PeerStrict || !listens(class, in) {
			continue
		}
		if c.hypothetical && before.Of(in.Port) == index.PeerStrict {
			c.Already++
			continue
		}
		port := strictPort{Port: in.Port, Now: before.Of(in.Port).String(), By: keyName(modes.By(in.Port)), Clients: []lostClient{}}
		if in.Service != (index.ServiceID{}) {
			port.host = net.JoinHostPort(in.Service.Hostname, strconv.FormatUint(uint64(in.ServicePort), 10))
			port.Service = port.host
		}
		i := slices.IndexFunc(c.Ports, func(o strictPort) bool {
			return o.Service == port.Service && o.Port == port.Port && o.Now == port.Now && o.By == port.By
		})
		if i < 0 {
			i = len(c.Ports)
			port.addresses = map[string]string{}
			c.Ports = append(c.Ports, port)
		}
		of := &c.Ports[i]
		if slices.Contains(of.Workloads, p.ID) {
			continue // the port has several protocols
		}
		of.Workloads = append(of.Workloads, p.ID)
		if p.Certificates() == (proxy.Certificates{}) {
			of.Closed = append(of.Closed, p.ID)
		}
		for _, ip := range p.Addresses() {
			of.addresses[net.JoinHostPort(ip.String(), strconv.FormatUint(uint64(in.Port), 10))] = p.ID
		}
	}
}

// listens reports whether a sidecar listens on a port of its workload: without redirection
// it does so only where a service has the port (MTLS-13).
func listens(class index.LDSClass, in index.InboundPort) bool {
	return !class.Bind || in.Service != (index.ServiceID{})
}

// keyName returns the name of an object without its source.
func keyName(k ident.Key) string {
	if k == (ident.Key{}) {
		return ""
	}
	return k.Namespace + "/" + k.Name
}

// withoutPeers returns a world in which nothing is STRICT.
func withoutPeers(w *world.World) (*world.World, error) {
	var rows []world.RowChange
	for o := range w.Objects(peersKind) {
		rows = append(rows, world.RowChange{Row: o.Key.Row(), Key: o.Key})
	}
	open, _, err := w.Apply(world.Change{Rows: rows})
	return open, err
}

// call is a way in which a client calls an address: by a cluster, in mutual TLS of the
// mesh or not.
type call struct {
	cluster string
	mutual  bool
}

// caller finds out how clients call addresses, from the Clusters and endpoints that they
// would be served.
type caller struct {
	pc      *index.PushContext
	catalog *xds.Catalog
	wanted  map[string]bool // ADDRESS:PORT of endpoints, and HOST:PORT of services
	byClass map[index.ProxyClass]map[string][]call
}

func newCaller(pc *index.PushContext, wanted map[string]bool) *caller {
	return &caller{pc, xds.NewCatalog(pc), wanted, map[index.ProxyClass]map[string][]call{}}
}

// calls returns the calls of a client by address. A cluster without endpoints of its own,
// which calls the address that the application chose, is under HOST:PORT.
func (c *caller) calls(p *proxy.Proxy) (map[string][]call, error) {
	class := index.Classify(c.pc, p)
	both := class.Only(ident.CDS)
	both.EDS = class.EDS
	if known, ok := c.byClass[both]; ok {
		return known, nil
	}
	all := map[string][]call{}
	clusters := map[string]*clusterv3.Cluster{}
	note := func(cl *clusterv3.Cluster, a *endpointv3.ClusterLoadAssignment) {
		for _, group := range a.GetEndpoints() {
			for _, e := range group.GetLbEndpoints() {
				s := e.GetEndpoint().GetAddress().GetSocketAddress()
				at := net.JoinHostPort(s.GetAddress(), strconv.FormatUint(uint64(s.GetPortValue()), 10))
				if c.wanted[at] {
					all[at] = append(all[at], call{cl.GetName(), isMutual(socketFor(cl, e.GetMetadata()), p)})
				}
			}
		}
	}
	for _, r := range c.catalog.Set(class.Only(ident.CDS), ident.CDS).Resources {
		cl := new(clusterv3.Cluster)
		if err := proto.Unmarshal(r.Value(), cl); err != nil {
			return nil, fmt.Errorf("cluster %s: %w", r.Name, err)
		}
		port, host, ok := outbound(cl.GetName())
		if !ok {
			continue
		}
		clusters[cmp.Or(cl.GetEdsClusterConfig().GetServiceName(), cl.GetName())] = cl
		note(cl, cl.GetLoadAssignment())
		if at := net.JoinHostPort(host, port); cl.GetType() == clusterv3.Cluster_ORIGINAL_DST && c.wanted[at] {
			all[at] = append(all[at], call{cl.GetName(), isMutual(cl.GetTransportSocket(), p)})
		}
	}
	for _, r := range c.catalog.Set(class.Only(ident.EDS), ident.EDS).Resources {
		a := new(endpointv3.ClusterLoadAssignment)
		if err := proto.Unmarshal(r.Value(), a); err != nil {
			return nil, fmt.Errorf("endpoints of %s: %w", r.Name, err)
		}
		if cl := clusters[a.GetClusterName()]; cl != nil {
			note(cl, a)
		}
	}
	c.byClass[both] = all
	return all, nil
}

// outbound returns the port and the host in the name of a cluster for a service.
func outbound(cluster string) (port, host string, ok bool) {
	parts := strings.Split(cluster, "|")
	if len(parts) != 4 || parts[0] != "outbound" {
		return "", "", false
	}
	return parts[1], parts[3], true
}

// socketFor returns the transport socket by which Envoy calls an endpoint.
func socketFor(cl *clusterv3.Cluster, of *corev3.Metadata) *corev3.TransportSocket {
	has := of.GetFilterMetadata()["envoy.transport_socket_match"].GetFields()
	for _, m := range cl.GetTransportSocketMatches() {
		fits := true
		for name, want := range m.GetMatch().GetFields() {
			fits = fits && proto.Equal(cmp.Or(has[name], structpb.NewNullValue()), want)
		}
		if fits {
			return m.GetTransportSocket()
		}
	}
	return cl.GetTransportSocket()
}

// isMutual reports whether a transport socket shows the certificate of the mesh.
func isMutual(s *corev3.TransportSocket, p *proxy.Proxy) bool {
	if wrapped := new(proxyprotocolv3.ProxyProtocolUpstreamTransport); s.GetTypedConfig().UnmarshalTo(wrapped) == nil {
		s = wrapped.GetTransportSocket()
	}
	tls := new(tlsv3.UpstreamTlsContext)
	if s.GetTypedConfig().UnmarshalTo(tls) != nil {
		return false
	}
	common := tls.GetCommonTlsContext()
	if common.GetTlsCertificateProviderInstance() != nil {
		return true
	}
	own := secret.MeshPair(p.Certificates()).GetName()
	return slices.ContainsFunc(common.GetTlsCertificateSdsSecretConfigs(), func(s *tlsv3.SdsSecretConfig) bool { return s.GetName() == own })
}

// loses returns why a client that may reach the port cannot call it; nil: it can, or it
// does not reach it.
func (port *strictPort) loses(p *proxy.Proxy, reached, called map[string][]call, by *caller) *lostClient {
	lost := &lostClient{Proxy: p.ID, Type: string(p.Type)}
	if p.GRPC {
		lost.Type = proxy.GRPC
	}
	addresses := []string{port.host}
	for at, of := range port.addresses {
		if of != p.ID {
			addresses = append(addresses, at)
		}
	}
	slices.Sort(addresses)
	for _, at := range addresses {
		for _, r := range reached[at] {
			i := slices.IndexFunc(called[at], func(c call) bool { return c.cluster == r.cluster })
			if i >= 0 && called[at][i].mutual {
				continue
			}
			lost.Cluster = r.cluster
			lost.Why = by.why(p, r.cluster, i < 0)
			return lost
		}
	}
	return nil
}

// why says why a client does not call a cluster in mutual TLS. Absent: it does not get the
// endpoint.
func (c *caller) why(p *proxy.Proxy, cluster string, absent bool) string {
	switch {
	case p.Certificates() == (proxy.Certificates{}) && p.GRPC:
		return "its node names no certificate provider"
	case p.Certificates() == (proxy.Certificates{}):
		return "its node names no agent, socket or files with a certificate"
	case absent:
		return "other endpoints of the cluster take plain text, and gRPC clients call all alike"
	}
	r, scope := c.pc.Read(), index.Classify(c.pc, p).CDS.Scope
	number, host, _ := outbound(cluster)
	if s := r.ServiceByHost(scope, host); s != nil {
		port, err := strconv.ParseUint(number, 10, 32)
		if id, ok := r.Rule(scope, s.Namespace, host); ok && err == nil {
			rule, keys := r.DestinationRule(id)
			if tls := traffic.Of(r.Mesh(), rule, uint32(port)).TLS; tls != nil {
				return fmt.Sprintf("DestinationRule %s has TLS mode %s", keyName(keys[0]), tls.GetMode())
			}
		}
		if s.External {
			return host + " is outside of the mesh (MESH_EXTERNAL)"
		}
	}
	if on := r.Mesh().GetEnableAutoMtls(); on != nil && !on.GetValue() {
		return "MeshConfig has enableAutoMtls false"
	}
	return "no object says that the workload speaks mutual TLS"
}

// losing counts the ports that refuse clients.
func (c *strictCheck) losing() (n int) {
	for _, p := range c.Ports {
		if len(p.Clients) > 0 || len(p.Closed) > 0 {
			n++
		}
	}
	return n
}

func (c *strictCheck) show(out *command.Output) {
	workloads, clients := map[string]bool{}, map[string]bool{}
	t := command.Rows{Head: []string{"PORT", "NOW", "WORKLOADS", "CLIENT", "TYPE", "WHY"}}
	for _, p := range c.Ports {
		for _, w := range p.Workloads {
			workloads[w] = true
		}
		name := cmp.Or(p.Service, fmt.Sprintf("port %d", p.Port))
		row := func(client, kind, why string) {
			t.Add(name, p.Now, command.Some(p.Workloads), command.Cell{Text: client, Color: command.Red}, kind, why)
		}
		for _, w := range p.Closed {
			row("every client", "", w+" has no certificate, and refuses all")
		}
		for _, l := range p.Clients {
			clients[l.Proxy] = true
			row(l.Proxy, l.Type, l.Why)
		}
	}
	losing := t.Len() > 0
	if losing {
		out.Rows(&t)
		out.Line("")
	}
	verb := "is STRICT"
	if c.hypothetical {
		verb = "becomes STRICT"
	}
	switch {
	case len(c.Ports) == 0:
		out.Line("No port of a connected workload %s, of %s.", verb, command.Plural(c.Proxies, "connected proxy", "connected proxies"))
	default:
		if len(c.Ports) > 1 {
			verb = strings.Replace(strings.Replace(verb, "is ", "are ", 1), "becomes", "become", 1)
		}
		end := "every connected client that may call has a certificate and uses it"
		if losing {
			what := "it"
			if len(c.Ports) > 1 {
				what = "all of them"
			}
			end = command.Plural(len(clients), "connected client", "connected clients") + " cannot call " + what
		}
		out.Line("%s of %s %s: %s.", command.Plural(len(c.Ports), "port", "ports"), command.Plural(len(workloads), "workload", "workloads"), verb, end)
	}
	if c.Already > 0 {
		out.Line("%s already; `meshlog certs check` without flags checks them.", command.Plural(c.Already, "port is STRICT", "ports are STRICT"))
	}
	out.Line("\n%s", c.Unseen)
}
