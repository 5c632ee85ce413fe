package validate

import (
	"strings"

	"google.golang.org/protobuf/proto"

	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/problem"
)

// serverProtocols are the protocols of a Gateway's servers (GW-4).
var serverProtocols = []string{"GRPC", "GRPC-WEB", "HTTP", "HTTP2", "HTTPS", "MONGO", "MYSQL", "REDIS", "TCP", "TLS"}

// Gateway checks a Gateway.
func Gateway(m proto.Message) []problem.Diagnostic {
	g := m.(*networking.Gateway)
	c := checker{kind: "Gateway"}
	c.errorIf(len(g.GetServers()) == 0, root.field("servers"), "add a server", isEmpty)
	c.labels(root.field("selector"), g.GetSelector())
	names := map[string]bool{}
	for i, s := range g.GetServers() {
		at := root.field("servers").item(i)
		c.server(at, s)
		c.portName(at.field("port.name"), s.GetPort().GetName(), names)
	}
	return c.result()
}

func (c *checker) server(at *fieldPath, s *networking.Server) {
	number, protocol := at.field("port.number"), at.field("port.protocol")
	c.protocol(protocol, s.GetPort().GetProtocol(), serverProtocols)
	bind := at.field("bind")
	if b := s.GetBind(); strings.HasPrefix(b, unixPrefix) {
		c.unix(bind, b)
		c.errorIf(s.GetPort().GetNumber() != 0, number, "use 0", "a socket has no port")
	} else {
		c.errorIf(b != "" && !isIP(b), bind, "write an IP address of the proxy, or leave it out", "%q is not an IP address", b)
		c.port(number, s.GetPort().GetNumber())
	}
	c.errorIf(len(s.GetHosts()) == 0, at.field("hosts"), "name the hosts, or * for all", isEmpty)
	for i, h := range s.GetHosts() {
		c.serverHost(at.field("hosts").item(i), h)
	}
	c.serverTLS(at, s)
	c.noEffect(s.GetTls().GetInsecureSkipVerify() != nil, at.field("tls.insecureSkipVerify"))
	c.noEffect(s.GetPort().GetTargetPort() != 0, at.field("port.targetPort")) //nolint:staticcheck // deprecated, and still in use
	c.noEffect(s.GetDefaultEndpoint() != "", at.field("defaultEndpoint"))
}

// serverHost checks namespace/host (GW-6).
func (c *checker) serverHost(at *fieldPath, h string) {
	ns, host, ok := strings.Cut(h, "/")
	if !ok {
		ns, host = "*", h
	}
	if ns != "*" && ns != "." {
		c.namespace(at, ns)
	}
	switch {
	case host == "*":
	case isHost(host, true) && !strings.Contains(host, "."):
		c.errorf(at, "write it in full, like reviews.prod.svc.cluster.local", "%q is a short name, which a Gateway does not complete", host)
	default:
		c.hostOrIP(at, host, true)
	}
}
