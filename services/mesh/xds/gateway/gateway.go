// Package gateway merges the Gateways that select a router: which of its ports
// serve which hosts (GW-2).
//
// It is pure.
package gateway

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
)

// Port is a port that a router listens on.
type Port struct {
	// Number is where the router listens. The Gateways may name other ports, if a Service
	// in front of the router sends them there (GW-3).
	Number uint32
	Bind   string // an IP
	Form   Form
	// GRPCWeb: one of its servers takes gRPC-Web.
	GRPCWeb bool
	// Servers, the first wins; one for Connections.
	Servers []Server
}

// Form is what the servers of a port do with a connection.
type Form uint8

const (
	// Requests are read: plain HTTP.
	Requests Form = iota
	// Connections are forwarded as they are.
	Connections
	// ServerNames decide which server has a TLS connection: one that decrypts it
	// (GW-9), or one that forwards it as it is (GW-10).
	ServerNames
)

// Named returns the port as the Gateways name it: that of the first server, if a Service
// sends several there.
func (p *Port) Named() uint32 { return p.Servers[0].Number }

// All returns the ports that the Gateways name, sorted.
func (p *Port) All() []uint32 {
	var all []uint32
	for _, s := range p.Servers {
		all = append(all, s.Number)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Routes returns the name of an HTTP port's RouteConfiguration (GW-7).
func (p *Port) Routes() string {
	name := "http." + strconv.FormatUint(uint64(p.Number), 10)
	if p.Bind != anyAddress {
		name += "." + p.Bind
	}
	return name
}

// Server is a server of a Gateway.
type Server struct {
	// Gateway is namespace/name, as VirtualServices write it.
	Gateway string
	Number  uint32 // of the port, as the Gateway names it
	Hosts   []Host
	// HTTPSRedirect: plain HTTP is redirected to HTTPS (GW-8).
	HTTPSRedirect bool
	// TLS has the settings with which connections are decrypted; nil: they are not.
	TLS *networking.ServerTLSSettings
	// Routes is the RouteConfiguration for the requests in decrypted connections; empty:
	// what is decrypted is forwarded as it is.
	Routes string
	// AutoPassthrough: connections in mutual TLS of the mesh are forwarded to the clusters
	// that their server names name, of services that Hosts cover (GW-11).
	AutoPassthrough bool
	// Closed: TLS connections to its hosts cannot be served. They are closed, because
	// they are not for the wildcard of another server.
	Closed bool

	Key   ident.Key // of the Gateway
	Field string    // of the server in it
}

// Host is a host that a server serves (GW-6).
type Host struct {
	// Namespace limits the VirtualServices that may serve it; empty: any.
	Namespace string
	Name      string // a host, or a wildcard
}

// Intersect returns the hosts for which a VirtualService of a namespace counts
// here: of each pair the narrower host, each once, in the order of the
// VirtualService.
func (s Server) Intersect(namespace string, hosts []string) []string {
	var out []string
	for _, host := range hosts {
		host = strings.ToLower(host)
		for _, h := range s.Hosts {
			if h.Namespace != "" && h.Namespace != namespace {
				continue
			}
			both := ""
			switch {
			case h.Name == host || Covers(h.Name, host):
				both = host
			case Covers(host, h.Name):
				both = h.Name
			}
			if both != "" && !slices.Contains(out, both) {
				out = append(out, both)
			}
		}
	}
	return out
}

// Covers reports whether wildcard, if it is one, matches host, which may be a
// narrower wildcard.
func Covers(wildcard, host string) bool {
	return strings.HasPrefix(wildcard, "*") && len(host) >= len(wildcard) && strings.HasSuffix(host, wildcard[1:]) && host != wildcard
}

const anyAddress = "0.0.0.0"

// Ports merges the Gateways whose selectors matched a router that listens for their ports
// as listens says, sorted by number and address. It leaves out what cannot be served and
// reports it.
func Ports(r *index.Reader, selectors index.SelectorSet, listens index.Listens) (ports []*Port, problems []piece.Part) {
	var all []*index.Gateway
	for _, s := range selectors.Selectors() {
		all = append(all, r.Gateways(s)...)
	}
	slices.SortFunc(all, older)
	m := merge{listens: listens, ports: map[address]*merged{}}
	for _, g := range all {
		for i := range g.Spec.GetServers() {
			m.add(g, i)
		}
	}
	for _, p := range m.ports {
		if p.served {
			ports = append(ports, &p.Port)
		}
	}
	slices.SortFunc(ports, func(a, b *Port) int { return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.Bind, b.Bind)) })
	m.redirects(ports)
	return ports, m.problems
}

// Find returns the port of a router with that address and number, or nil.
func Find(r *index.Reader, selectors index.SelectorSet, listens index.Listens, bind string, number uint32) *Port {
	ports, _ := Ports(r, selectors, listens)
	for _, p := range ports {
		if p.Bind == bind && p.Number == number {
			return p
		}
	}
	return nil
}

func older(a, b *index.Gateway) int {
	switch {
	case a.Created.IsZero() == b.Created.IsZero():
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Key.Namespace, b.Key.Namespace), cmp.Compare(a.Key.Name, b.Key.Name))
	case a.Created.IsZero():
		return 1
	}
	return -1
}

type merge struct {
	listens  index.Listens
	ports    map[address]*merged
	problems []piece.Part
}

type address struct {
	bind   string
	number uint32
}

// merged is a port with the server that came first.
type merged struct {
	Port
	served   bool // one of its servers is
	protocol string
	first    ident.Key
	named    uint32            // the port of first
	names    map[string]string // of ServerNames: the Gateway and server that has each host
}

// add adds server i of g.
func (m *merge) add(g *index.Gateway, i int) {
	s := g.Spec.GetServers()[i]
	at := fmt.Sprintf("spec.servers[%d]", i)
	reject := func(field, reason, advice string) {
		m.problems = append(m.problems, piece.Problem{
			Severity: problem.Warning, Code: "gateway", Key: g.Key, Field: at + field,
			Reason: reason, Advice: advice, Effect: "this server is left out",
		})
	}
	bind := cmp.Or(s.GetBind(), anyAddress)
	if _, err := netip.ParseAddr(bind); err != nil {
		reject(".bind", strconv.Quote(bind)+" is no IP address", "name an address of the router, or leave it out")
		return
	}
	protocol := strings.ToUpper(s.GetPort().GetProtocol())
	form, served := formOf(protocol, s.GetTls())
	number := s.GetPort().GetNumber()
	where := address{bind, m.listens.Of(number)}
	p := m.ports[where]
	if p == nil {
		// A port that cannot be served stays reserved: a plain server must not
		// replace one that was meant to be encrypted.
		p = &merged{Port: Port{Number: where.number, Bind: bind, Form: form}, protocol: protocol, first: g.Key, named: number, names: map[string]string{}}
		m.ports[where] = p
	} else if p.Form != form || form == Connections && (p.served || served) {
		reject(".port", fmt.Sprintf("%s is served as %s by %s", m.place(number, p), p.protocol, p.first), "use another port")
		return
	}
	if !served && form == Connections { // modes that are not supported are reported by validation
		reject(".tls", fmt.Sprintf("mode %v does not go with protocol %s", s.GetTls().GetMode(), protocol), "use protocol TLS, or remove tls")
	}
	if !served && form != ServerNames {
		return
	}
	server := Server{
		Gateway: g.Key.Namespace + "/" + g.Key.Name, Number: number, Hosts: hosts(s.GetHosts(), g.Key.Namespace),
		HTTPSRedirect: form == Requests && s.GetTls().GetHttpsRedirect(), Closed: !served,
		AutoPassthrough: form == ServerNames && s.GetTls().GetMode() == networking.ServerTLSSettings_AUTO_PASSTHROUGH,
		Key:             g.Key, Field: at,
	}
	if form == ServerNames && terminates(s.GetTls()) {
		server.TLS = s.GetTls()
		if protocol == "HTTPS" {
			server.Routes = fmt.Sprintf("https.%d.%s.%s.%s", number, s.GetPort().GetName(), g.Key.Name, g.Key.Namespace)
		}
	}
	if form == ServerNames && !server.AutoPassthrough {
		server.Hosts = slices.DeleteFunc(server.Hosts, func(h Host) bool {
			other, taken := p.names[h.Name]
			if taken && other != g.Key.String()+" "+at {
				m.problems = append(m.problems, piece.Problem{
					Severity: problem.Warning, Code: "gateway", Key: g.Key, Field: at + ".hosts",
					Reason: fmt.Sprintf("another server of %s has %s: one of %s", m.place(number, p), h.Name, other[:strings.LastIndexByte(other, ' ')]),
					Advice: "name each host in one server of a port", Effect: "the other server has the host",
				})
				return true
			}
			p.names[h.Name] = g.Key.String() + " " + at
			return false
		})
		if len(server.Hosts) == 0 { // a server without hosts would have every host
			return
		}
	}
	if p.served && number != p.Named() && form == Requests {
		m.problems = append(m.problems, piece.Problem{
			Severity: problem.Warning, Code: "gateway", Key: g.Key, Field: at + ".port.number",
			Reason: fmt.Sprintf("Services in front send port %d and port %d of the router to port %d, so their requests cannot be told apart", p.Named(), number, where.number),
			Advice: "use one of the two", Effect: fmt.Sprintf("to VirtualServices that match a port all these requests are for port %d", p.Named()),
		})
	}
	p.served = p.served || served
	p.GRPCWeb = p.GRPCWeb || protocol == "GRPC-WEB"
	p.Servers = append(p.Servers, server)
}

// place names a port for people, as Gateways name it.
func (m *merge) place(number uint32, p *merged) string {
	switch {
	case p.Number != number:
		return fmt.Sprintf("port %d, to which a Service sends port %d,", p.Number, number)
	case p.named != number:
		return fmt.Sprintf("port %d, to which a Service sends port %d of that one,", number, p.named)
	}
	return fmt.Sprintf("port %d", number)
}

// redirects reports servers that redirect to HTTPS although no server opens HTTPS for
// a host of theirs (GW-8).
func (m *merge) redirects(ports []*Port) {
	for _, p := range ports {
		for _, s := range p.Servers {
			if !s.HTTPSRedirect {
				continue
			}
			i := slices.IndexFunc(s.Hosts, func(h Host) bool { return !encrypted(ports, h.Name) })
			if i < 0 {
				continue
			}
			m.problems = append(m.problems, piece.Problem{
				Severity: problem.Warning, Code: "gateway", Key: s.Key, Field: s.Field + ".tls.httpsRedirect",
				Reason: fmt.Sprintf("requests are redirected to HTTPS, and the router opens no server for HTTPS of %s", s.Hosts[i].Name),
				Advice: "add a server with protocol HTTPS for the host, or remove httpsRedirect",
				Effect: "clients that follow the redirect reach no server",
			})
		}
	}
}

// encrypted reports whether a server takes TLS connections to a host.
func encrypted(ports []*Port, host string) bool {
	for _, p := range ports {
		for _, s := range p.Servers {
			if p.Form == ServerNames && !s.Closed && !s.AutoPassthrough &&
				slices.ContainsFunc(s.Hosts, func(h Host) bool { return h.Name == host || Covers(h.Name, host) }) {
				return true
			}
		}
	}
	return false
}

// formOf returns what a server does with connections (GW-4); ok is false if it
// cannot be served.
func formOf(protocol string, tls *networking.ServerTLSSettings) (form Form, ok bool) {
	switch protocol {
	case "HTTP", "HTTP2", "GRPC", "GRPC-WEB":
		return Requests, true
	case "TCP", "MONGO", "MYSQL", "REDIS":
		if !terminates(tls) {
			return Connections, tls == nil
		}
	}
	switch tls.GetMode() {
	case networking.ServerTLSSettings_PASSTHROUGH, networking.ServerTLSSettings_AUTO_PASSTHROUGH:
		return ServerNames, tls != nil
	}
	return ServerNames, terminates(tls)
}

// terminates reports whether a server decrypts connections (GW-9, GW-12).
func terminates(tls *networking.ServerTLSSettings) bool {
	switch tls.GetMode() {
	case networking.ServerTLSSettings_SIMPLE, networking.ServerTLSSettings_MUTUAL,
		networking.ServerTLSSettings_OPTIONAL_MUTUAL, networking.ServerTLSSettings_ISTIO_MUTUAL:
		return true
	}
	return false
}

// Verifies reports whether a server verifies the certificates of clients.
func Verifies(tls *networking.ServerTLSSettings) bool {
	switch tls.GetMode() {
	case networking.ServerTLSSettings_MUTUAL, networking.ServerTLSSettings_OPTIONAL_MUTUAL, networking.ServerTLSSettings_ISTIO_MUTUAL:
		return true
	}
	return false
}

// Guarded returns the hosts of a port that one server covers and that another one has
// which verifies clients. A request for such a host must not be answered on a connection
// of the first: its client may have no certificate.
func (p *Port) Guarded(server int) []string {
	var hosts []string
	for i, s := range p.Servers {
		if i == server || !Verifies(s.TLS) {
			continue
		}
		for _, h := range s.Hosts {
			if slices.ContainsFunc(p.Servers[server].Hosts, func(o Host) bool { return Covers(o.Name, h.Name) }) && !slices.Contains(hosts, h.Name) {
				hosts = append(hosts, h.Name)
			}
		}
	}
	return hosts
}

// Guards reports whether one of the hosts that are guarded from s, and none of its own, is
// the most specific one for a host.
func (s Server) Guards(guarded []string, host string) bool {
	longest, guards := -1, false
	find := func(name string, guard bool) {
		if (name == host || Covers(name, host)) && len(name) > longest {
			longest, guards = len(name), guard
		}
	}
	for _, h := range s.Hosts {
		find(h.Name, false)
	}
	for _, name := range guarded {
		find(name, true)
	}
	return guards
}

// hosts reads ns/host, ./host, */host and host (GW-6).
func hosts(all []string, namespace string) []Host {
	out := make([]Host, len(all))
	for i, h := range all {
		ns, name, ok := strings.Cut(h, "/")
		switch {
		case !ok:
			ns, name = "", h
		case ns == ".":
			ns = namespace
		case ns == "*":
			ns = ""
		}
		out[i] = Host{ns, strings.ToLower(name)}
	}
	return out
}
