package validate

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/problem"
)

// serverProtocols are those of a Gateway's servers (GW-4).
var serverProtocols = []string{"GRPC", "GRPC-WEB", "HTTP", "HTTP2", "HTTPS", "MONGO", "MYSQL", "REDIS", "TCP", "TLS"}

func Gateway(m proto.Message) []problem.Problem {
	g := m.(*networking.Gateway)
	c := checker{}
	if len(g.GetServers()) == 0 {
		c.at(root.field("servers"), "add a server", "is empty")
	}
	c.labels(root.field("selector"), g.GetSelector())
	names := map[string]bool{}
	for i, s := range g.GetServers() {
		at := root.field("servers").item(i)
		c.server(at, s)
		c.portName(at.field("port").field("name"), s.GetPort().GetName(), names)
		names[s.GetPort().GetName()] = true
	}
	c.noEffect("Gateway", m)
	return c.result()
}

func (c *checker) server(at *fieldPath, s *networking.Server) {
	port := at.field("port")
	c.protocol(port.field("protocol"), s.GetPort().GetProtocol(), serverProtocols)
	bind := at.field("bind")
	switch b := s.GetBind(); {
	case strings.HasPrefix(b, unixPrefix):
		c.unix(bind, b)
		if s.GetPort().GetNumber() != 0 {
			c.at(port.field("number"), "use 0", "a socket has no port")
		}
	case b != "" && !isIP(b):
		c.at(bind, "write an IP address of the proxy, or leave it out", "%q is no IP address", b)
		fallthrough
	default:
		c.port(port.field("number"), s.GetPort().GetNumber())
	}
	if len(s.GetHosts()) == 0 {
		c.at(at.field("hosts"), "name the hosts, or * for all", "is empty")
	}
	for i, h := range s.GetHosts() {
		c.serverHost(at.field("hosts").item(i), h)
	}
	c.serverTLS(at, s)
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
	if host != "*" && !isIP(host) {
		c.host(at, host, true)
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
		if encrypted {
			c.at(field, "add tls with its mode and certificates", "is missing: the protocol is %s", protocol)
		}
		return
	case http && (files || named || tls.GetMode() != networking.ServerTLSSettings_PASSTHROUGH):
		c.at(field, "use protocol HTTPS, or leave nothing but httpsRedirect", "does not go with protocol %s", protocol)
		return
	case !http && !encrypted:
		c.at(field, "use protocol TLS, or remove tls", "does not go with protocol %s", protocol)
		return
	}
	if tls.GetHttpsRedirect() && !http {
		c.at(field.field("httpsRedirect"), "put it on the server with protocol HTTP", "does not go with protocol %s", protocol)
	}
	if files && named {
		c.at(field.field("credentialName"), "keep one of them", "does not go with certificates in files")
	}
	switch tls.GetMode() {
	case networking.ServerTLSSettings_SIMPLE, networking.ServerTLSSettings_MUTUAL, networking.ServerTLSSettings_OPTIONAL_MUTUAL:
		if named || len(tls.GetTlsCertificates()) > 0 {
			return
		}
		c.required(field.field("serverCertificate"), tls.GetServerCertificate())
		c.required(field.field("privateKey"), tls.GetPrivateKey())
		if tls.GetMode() != networking.ServerTLSSettings_SIMPLE && tls.GetCaCertCredentialName() == "" {
			c.required(field.field("caCertificates"), tls.GetCaCertificates())
		}
	case networking.ServerTLSSettings_ISTIO_MUTUAL:
		if files || named {
			c.at(field, "remove the certificates, or use mode MUTUAL", "mode ISTIO_MUTUAL takes the certificates of the mesh")
		}
	}
}
