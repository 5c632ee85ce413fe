package validate

import (
	"slices"
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
	if mode := s.GetTls().GetMode(); mode != networking.ServerTLSSettings_PASSTHROUGH {
		c.noEffect(true, at.field("tls.mode"), mode.String())
	}
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

func (c *checker) serverTLS(at *fieldPath, s *networking.Server) {
	field, tls := at.field("tls"), s.GetTls()
	protocol := strings.ToUpper(s.GetPort().GetProtocol())
	encrypted := protocol == "HTTPS" || protocol == "TLS"
	http := slices.Contains([]string{"HTTP", "HTTP2", "GRPC", "GRPC-WEB"}, protocol)
	files := tls.GetServerCertificate() != "" || tls.GetPrivateKey() != "" || tls.GetCaCertificates() != "" || len(tls.GetTlsCertificates()) > 0
	named := tls.GetCredentialName() != "" || len(tls.GetCredentialNames()) > 0
	switch {
	case tls == nil:
		c.errorIf(encrypted, field, "add tls with its mode and certificates", "is missing: the protocol is %s", protocol)
		return
	case http && (files || named || tls.GetMode() != networking.ServerTLSSettings_PASSTHROUGH):
		c.errorf(field, "use protocol HTTPS, or leave nothing but httpsRedirect", "does not go with protocol %s", protocol)
		return
	case !http && !encrypted:
		c.errorf(field, "use protocol TLS, or remove tls", "does not go with protocol %s", protocol)
		return
	}
	if tls.GetHttpsRedirect() && !http {
		c.warnf(field.field("httpsRedirect"), "put it on the server with protocol HTTP", "has no effect with protocol %s", protocol)
	}
	switch tls.GetMode() {
	case networking.ServerTLSSettings_SIMPLE, networking.ServerTLSSettings_MUTUAL, networking.ServerTLSSettings_OPTIONAL_MUTUAL:
		if files && named {
			c.warnf(field.field("credentialName"), keepOne, "takes precedence over the certificates in files, which are not read")
		}
		if named || len(tls.GetTlsCertificates()) > 0 {
			return
		}
		c.file(field.field("serverCertificate"), tls.GetServerCertificate())
		c.file(field.field("privateKey"), tls.GetPrivateKey())
		if tls.GetMode() != networking.ServerTLSSettings_SIMPLE && tls.GetCaCertCredentialName() == "" {
			c.file(field.field("caCertificates"), tls.GetCaCertificates())
		}
	case networking.ServerTLSSettings_ISTIO_MUTUAL:
		c.errorIf(files || named, field, useMutual, meshCertificates)
	}
}
