package validate

import (
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/problem"
)

const anyNamespace = "*"

// Sidecar checks a Sidecar (SC-1 to SC-7).
func Sidecar(m proto.Message) []problem.Diagnostic {
	s := m.(*networking.Sidecar)
	c := checker{kind: "Sidecar"}
	c.labels(root.field("workloadSelector.labels"), s.GetWorkloadSelector().GetLabels())
	if s.GetWorkloadSelector() != nil && len(s.GetWorkloadSelector().GetLabels()) == 0 {
		c.warnf(root.field("workloadSelector"), "name labels, or leave it out", "has no labels, so it is as if it were not there: the Sidecar is for the whole namespace")
	}
	if len(s.GetEgress()) == 0 && len(s.GetIngress()) == 0 && s.GetOutboundTrafficPolicy() == nil && s.GetInboundConnectionPool() == nil {
		c.errorf(root, "write egress, ingress, outboundTrafficPolicy or inboundConnectionPool", isEmpty)
	}
	ports := map[uint32]bool{}
	for i, in := range s.GetIngress() {
		c.ingress(root.field("ingress").item(i), in, ports)
	}
	c.inboundPool(root.field("inboundConnectionPool"), s.GetInboundConnectionPool())
	c.egress(s)
	c.outboundPolicy(root.field("outboundTrafficPolicy"), s.GetOutboundTrafficPolicy())
	return c.result()
}

// egress checks the listeners for calls (SC-2, SC-3).
func (c *checker) egress(s *networking.Sidecar) {
	ports, sockets := map[uint32]bool{}, map[string]bool{}
	for i, e := range s.GetEgress() {
		at := root.field("egress").item(i)
		switch {
		case e.GetPort() == nil:
			c.errorIf(i < len(s.GetEgress())-1, at.field("port"), "put the listener without a port last; there can be one", isMissing)
			c.boundIP(at.field("bind"), e.GetBind())
		case e.GetPort().GetNumber() == 0:
			c.egressSocket(at, e)
			c.errorIf(!first(sockets, e.GetBind()), at.field("bind"), "give each listener a socket of its own", isTwice, e.GetBind())
		default:
			c.sidecarPort(at.field("port"), e.GetPort())
			c.boundIP(at.field("bind"), e.GetBind())
			if n := e.GetPort().GetNumber(); !first(ports, n) {
				c.errorf(at.field("port.number"), "give each listener a port of its own", "%d is there twice", n)
			}
		}
		c.captureMode(at.field("captureMode"), e.GetCaptureMode())
		c.errorIf(len(e.GetHosts()) == 0, at.field("hosts"), "name the hosts, as */* or NAMESPACE/HOST", isEmpty)
		seen := map[string]bool{}
		for j, h := range e.GetHosts() {
			c.importedHost(at.field("hosts").item(j), h)
			if !first(seen, h) {
				c.warnf(at.field("hosts").item(j), leaveOne, isTwice, h)
			}
		}
	}
}

// egressSocket checks a listener on a Unix socket, which nothing redirects to.
func (c *checker) egressSocket(at *fieldPath, e *networking.IstioEgressListener) {
	c.protocol(at.field("port.protocol"), e.GetPort().GetProtocol(), serverProtocols)
	if !strings.HasPrefix(e.GetBind(), unixPrefix) {
		c.errorf(at.field("bind"), "write unix:///path/to/socket, or a port number", "%q is no socket, which a port of number 0 needs", e.GetBind())
	} else {
		c.unix(at.field("bind"), e.GetBind())
		c.socketPath(at.field("bind"), e.GetBind())
	}
	c.errorIf(e.GetCaptureMode() == networking.CaptureMode_IPTABLES, at.field("captureMode"), "use DEFAULT or NONE", "IPTABLES does not go with a Unix socket")
}

// importedHost checks an entry NAMESPACE/HOST of hosts; with a ~ before the namespace it
// takes hosts away.
func (c *checker) importedHost(at *fieldPath, s string) {
	namespace, host, both := strings.Cut(s, "/")
	if !both {
		c.errorf(at, "write NAMESPACE/HOST, such as ./* or */reviews.prod.svc.cluster.local", "%q names no namespace", s)
		return
	}
	of := strings.TrimPrefix(namespace, "~")
	if of != anyNamespace && of != "." && !(of == "" && namespace == "~") && !isNamespace(of) {
		c.errorf(at, "write the name of a namespace, *, . or ~; with ~ before it, its hosts are taken away", "%q is not a namespace", namespace)
	}
	if host != "*" {
		c.host(at, host, true)
	}
}

// ingress checks a listener for calls to the workload (SC-5).
func (c *checker) ingress(at *fieldPath, in *networking.IstioIngressListener, ports map[uint32]bool) {
	c.errorIf(in.GetPort() == nil, at.field("port"), "write number and protocol of the port", isMissing)
	if in.GetPort() != nil {
		c.sidecarPort(at.field("port"), in.GetPort())
		if n := in.GetPort().GetNumber(); !first(ports, n) {
			c.errorf(at.field("port.number"), "give each listener a port of its own", "%d is there twice", n)
		}
	}
	c.boundIP(at.field("bind"), in.GetBind())
	c.captureMode(at.field("captureMode"), in.GetCaptureMode())
	c.defaultEndpoint(at.field("defaultEndpoint"), in.GetDefaultEndpoint())
	c.ingressTLS(at.field("tls"), in)
	c.inboundPool(at.field("connectionPool"), in.GetConnectionPool())
}

func (c *checker) sidecarPort(at *fieldPath, p *networking.SidecarPort) {
	c.port(at.field("number"), p.GetNumber())
	c.protocol(at.field("protocol"), p.GetProtocol(), serverProtocols)
	c.errorIf(p.GetName() != "" && !isHostLabel(p.GetName()), at.field("name"), useName, "%q is not a port name", p.GetName())
	target := p.GetTargetPort() //nolint:staticcheck // deprecated, and still written
	c.errorIf(target != 0, at.field("targetPort"), "remove it; defaultEndpoint says where the workload listens", "has no meaning in a Sidecar")
}

// boundIP checks an optional address that a listener has. Envoy refuses zones.
func (c *checker) boundIP(at *fieldPath, s string) {
	if s != "" {
		c.ip(at, s)
		c.errorIf(strings.Contains(s, "%"), at, "write an address without a zone", "%q has a zone", s)
	}
}

// maxSocket is the longest path of a Unix socket that Linux, and so Envoy, takes.
const maxSocket = 107

func (c *checker) socketPath(at *fieldPath, s string) {
	c.errorIf(len(strings.TrimPrefix(s, unixPrefix)) > maxSocket, at, "use a shorter path", "the path is longer than 107 letters, which Linux refuses")
}

func (c *checker) captureMode(at *fieldPath, m networking.CaptureMode) {
	if _, known := networking.CaptureMode_name[int32(m)]; !known {
		c.errorf(at, "use DEFAULT, IPTABLES or NONE", "%d is not a mode", m)
	}
}

// endpointHosts are what a defaultEndpoint may name: the workload on loopback, or at the
// address at which it is called.
var endpointHosts = []string{"127.0.0.1:", "0.0.0.0:", "[::1]:", "[::]:"}

func (c *checker) defaultEndpoint(at *fieldPath, s string) {
	if s == "" {
		return
	}
	if strings.HasPrefix(s, unixPrefix) {
		c.unix(at, s)
		c.socketPath(at, s)
		return
	}
	end := strings.LastIndexByte(s, ':') + 1
	n, err := strconv.ParseUint(s[end:], 10, 16)
	if err != nil || n == 0 || !slices.Contains(endpointHosts, s[:end]) {
		c.errorf(at, "write 127.0.0.1:PORT, 0.0.0.0:PORT, [::1]:PORT, [::]:PORT or unix:///path/to/socket", "%q is no endpoint of the workload", s)
	}
}

// ingressTLS checks the TLS that a sidecar ends for callers from outside the mesh. Its
// certificates are files, as in Istio.
func (c *checker) ingressTLS(at *fieldPath, in *networking.IstioIngressListener) {
	tls := in.GetTls()
	if tls == nil {
		return
	}
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"subjectAltNames", len(tls.GetSubjectAltNames()) > 0}, {"httpsRedirect", tls.GetHttpsRedirect()},
		{"credentialName", tls.GetCredentialName() != ""}, {"credentialNames", len(tls.GetCredentialNames()) > 0},
		{"caCertCredentialName", tls.GetCaCertCredentialName() != ""}, {"tlsCertificates", len(tls.GetTlsCertificates()) > 0},
	} {
		c.errorIf(f.set, at.field(f.name), "name files by serverCertificate, privateKey and caCertificates", "does not go with the ingress of a Sidecar")
	}
	mode := tls.GetMode()
	if mode != networking.ServerTLSSettings_SIMPLE && mode != networking.ServerTLSSettings_MUTUAL && mode != networking.ServerTLSSettings_OPTIONAL_MUTUAL {
		c.errorf(at.field("mode"), "use SIMPLE, MUTUAL or OPTIONAL_MUTUAL", "%s does not go with the ingress of a Sidecar", mode)
		return
	}
	p := strings.ToUpper(in.GetPort().GetProtocol())
	c.errorIf(p != "HTTPS" && p != "TLS", at, "use protocol HTTPS or TLS, or remove tls", "does not go with protocol %s", p)
	c.certificates(at, tls, true, false)
	c.parameters(at, tls)
	c.clientCertificates(at, tls, false)
}

// inboundPool checks the limits of connections to the workload (SC-6).
func (c *checker) inboundPool(at *fieldPath, p *networking.ConnectionPoolSettings) {
	if p == nil {
		return
	}
	c.errorIf(p.GetHttp() == nil && p.GetTcp() == nil, at, "write http or tcp", isEmpty)
	c.connectionPool(at, p)
}

// outboundPolicy checks where calls to unknown hosts go (SC-7).
func (c *checker) outboundPolicy(at *fieldPath, p *networking.OutboundTrafficPolicy) {
	if p == nil {
		return
	}
	if _, known := networking.OutboundTrafficPolicy_Mode_name[int32(p.GetMode())]; !known {
		c.errorf(at.field("mode"), "use ALLOW_ANY or REGISTRY_ONLY", "%d is not a mode", p.GetMode())
	}
	to := at.field("egressProxy")
	if d := p.GetEgressProxy(); d != nil {
		c.errorIf(p.GetMode() != networking.OutboundTrafficPolicy_ALLOW_ANY, to, "use mode ALLOW_ANY, or remove it", "goes with mode ALLOW_ANY only")
		c.host(to.field("host"), d.GetHost(), false)
		c.errorIf(d.GetPort() == nil, to.field("port"), "name the port of the proxy", isMissing)
		if d.GetPort() != nil {
			c.port(to.field("port.number"), d.GetPort().GetNumber())
		}
		if d.GetSubset() != "" {
			c.subset(to.field("subset"), d.GetSubset())
		}
	}
}
