package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rawv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/secret"
)

// The metadata by which Envoy chooses the transport socket of an endpoint (DR-19).
const (
	socketMatch = "envoy.transport_socket_match"
	modeKey     = "tlsMode"
	mutualMode  = "istio"
)

// errNoCertificates: the proxies of the class have no certificate of the mesh (MTLS-16).
var errNoCertificates = errors.New("proxies whose metadata names no certificate of the mesh (SDS_CLUSTER, or TLS_SERVER_CERT_CHAIN and TLS_SERVER_KEY) cannot take part in mutual TLS")

// know reads what mutual TLS of the mesh needs.
func (m *maker) know(r *index.Reader, from proxy.Certificates) {
	if m.certificates = from; from == (proxy.Certificates{}) {
		return
	}
	m.mutual = true
	m.identities, m.trust = r.Identities(m.service.ServiceID), r.Trust()
}

// judge makes m ask which of the endpoints may be called in mutual TLS (PA-4).
func (m *maker) judge(r *index.Reader) {
	m.peer = func(e *index.Endpoint) index.PeerModes {
		return r.PeerModes(cmp.Or(e.WorkloadNamespace, m.service.Namespace), e.Labels)
	}
}

// automatic reports whether clients call a target in mutual TLS of the mesh wherever they
// can, because no rule says otherwise (DR-19).
func (m *maker) automatic(t target) bool {
	on := m.mesh.GetEnableAutoMtls()
	return t.policy.TLS == nil && !m.service.External && (on == nil || on.GetValue())
}

// speaks reports whether clients call an endpoint in mutual TLS of the mesh: both must
// speak it, and no PeerAuthentication may disable it there (PA-4). The TLS mode of a rule
// decides instead of a PeerAuthentication. Gateways between networks do not speak it
// themselves, but clients do.
func (m *maker) speaks(t target, e *index.Endpoint) bool {
	switch {
	case !e.MutualTLS:
		return false
	case t.toNetwork:
	case !m.mutual:
		return false
	case t.policy.TLS != nil:
		return t.policy.TLS.GetMode() == networking.ClientTLSSettings_ISTIO_MUTUAL
	case !m.automatic(t):
		return false
	}
	return m.peerMode(e) != index.PeerDisable
}

// refused reports whether an endpoint demands mutual TLS of clients that have no
// certificate, or of gRPC clients that call the target in plain text. What they would send
// in plain text it would not read (MTLS-16).
func (m *maker) refused(t target, e *index.Endpoint) bool {
	return (!m.mutual || m.grpc) && e.MutualTLS && !t.toNetwork && t.policy.TLS == nil && m.peerMode(e) == index.PeerStrict
}

func (m *maker) peerMode(e *index.Endpoint) index.PeerMode {
	if m.peer == nil {
		return index.PeerPermissive
	}
	return m.peer(e).Of(e.Port)
}

// reportRefused reports that clients do not get an endpoint because it demands mutual TLS:
// once for all services at the PeerAuthentication, or for gRPC clients that could encrypt,
// at the service.
func (m *maker) reportRefused(e *index.Endpoint) {
	if m.mutual {
		m.cannot(m.service.Key, "spec", "some endpoints of "+m.service.Hostname+" demand mutual TLS and others take plain text, and gRPC clients call all endpoints of a cluster alike",
			"give all of them the same mode by PeerAuthentications", "gRPC clients get those that take plain text")
		return
	}
	m.report(problem.Diagnostic{
		Severity: problem.Info, Code: "no-certificate", Key: m.peer(e).By(e.Port), Field: "spec.mtls",
		Reason: "clients whose metadata names no certificate of the mesh (SDS_CLUSTER, TLS_SERVER_CERT_CHAIN and TLS_SERVER_KEY, or GRPC_CERTIFICATE_PROVIDER) cannot call workloads that demand mutual TLS",
		Advice: "give such clients an agent, the socket of SPIRE, files, or a certificate provider",
		Effect: "they do not get the endpoints of the workloads that are STRICT",
	})
}

// matchSockets makes c call the endpoints that speak mutual TLS of the mesh in it, and the
// others in plain text (DR-19). Clusters without such endpoints, and those of proxies without
// certificates, have plain text only. Like in Istio, connections that go to the address
// that the caller chose are not encrypted.
func (m *maker) matchSockets(c *clusterv3.Cluster, t target) {
	if !m.mutual || !m.identities.MutualTLS || !m.automatic(t) || c.GetType() == clusterv3.Cluster_ORIGINAL_DST {
		return
	}
	raw := transportSocket("envoy.transport_sockets.raw_buffer", &rawv3.RawBuffer{})
	c.TransportSocket = nil // a PROXY header is in both
	c.TransportSocketMatches = []*clusterv3.Cluster_TransportSocketMatch{
		{
			Name: "tlsMode-istio", Match: &structpb.Struct{Fields: map[string]*structpb.Value{modeKey: structpb.NewStringValue(mutualMode)}},
			TransportSocket: proxied(m.meshSocket(t), t.policy),
		},
		{Name: "tlsMode-disabled", Match: &structpb.Struct{}, TransportSocket: proxied(raw, t.policy)},
	}
	m.offerHTTP(c, t)
}

// meshSocket returns the transport socket of mutual TLS of the mesh (DR-18, MTLS-6 to 8).
func (m *maker) meshSocket(t target) *corev3.TransportSocket {
	tls := t.policy.TLS
	accepted, trusted := m.peers(tls)
	m.reportNames(t, accepted, trusted)
	common := secret.MeshContext(m.mesh, m.certificates, trusted, &tlsv3.CertificateValidationContext{MatchTypedSubjectAltNames: accepted})
	common.AlpnProtocols = []string{"istio"}
	if t.port.Protocol.IsHTTP() {
		common.AlpnProtocols = []string{"istio-http/1.1", "istio"}
	}
	return transportSocket("envoy.transport_sockets.tls", &tlsv3.UpstreamTlsContext{
		Sni:              cmp.Or(tls.GetSni(), piece.ServerName(m.service.Hostname, t.subset.GetName(), t.port.Number)),
		MaxSessionKeys:   wrapperspb.UInt32(0), // a server does not know the caller of a resumed session (S44)
		CommonTlsContext: common,
	})
}

// reportNames reports names that do not count: of servers of several trust domains Envoy looks
// at the URIs only.
func (m *maker) reportNames(t target, accepted []*tlsv3.SubjectAltNameMatcher, trusted index.TrustSet) {
	if len(trusted.Domains()) < 2 || !slices.ContainsFunc(accepted, func(n *tlsv3.SubjectAltNameMatcher) bool { return n.GetSanType() != tlsv3.SubjectAltNameMatcher_URI }) {
		return
	}
	key, field := m.namedAt(t)
	m.report(problem.Diagnostic{
		Severity: problem.Warning, Code: "trust-domain", Key: key, Field: field,
		Reason: "of servers of several trust domains clients look at URIs only, and some names are none",
		Advice: "write identities such as spiffe://" + m.trust.Mesh()[0] + "/ns/NAMESPACE/sa/NAME", Effect: "clients refuse servers that have only such a name",
	})
}

// offerHTTP makes requests to a port whose protocol is detected offer the name for HTTP, as
// the filter of outbound listeners reads it (MTLS-7).
func (m *maker) offerHTTP(c *clusterv3.Cluster, t target) {
	if t.port.Protocol != index.Sniffed {
		return
	}
	if c.Metadata == nil {
		c.Metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{}}
	}
	c.Metadata.FilterMetadata[piece.ALPNMetadata] = &structpb.Struct{Fields: map[string]*structpb.Value{
		piece.ALPNKey: structpb.NewStringValue("istio-http/1.1,istio"),
	}}
}

// peers returns which identities clients accept: those that the rule names, else those of
// all service accounts behind the service, and the names of its ServiceEntry (SE-12) or of a
// Service's annotations (SVC-14), else any of the trust domain (MTLS-8), and the trust domains that these identities are in. The roots
// of no other domain count, because a certificate with several URIs has the identity of each:
// the root of one domain could stand for a server of another (CA-13).
func (m *maker) peers(tls *networking.ClientTLSSettings) (accepted []*tlsv3.SubjectAltNameMatcher, trusted index.TrustSet) {
	names := tls.GetSubjectAltNames()
	if len(names) == 0 {
		for _, domain := range m.trust.Mesh() {
			for _, account := range m.accounts() {
				names = append(names, identity(domain, account))
			}
		}
		for _, name := range slices.Concat(m.service.SubjectAltNames, m.service.Identities) {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	for _, name := range names {
		accepted = append(accepted, secret.SubjectAltName(name))
	}
	if len(names) > 0 {
		return accepted, m.trust.Of(names)
	}
	if m.identities.MutualTLS {
		m.report(problem.Diagnostic{
			Severity: problem.Warning, Code: "identity", Key: m.service.Key, Field: "spec",
			Reason: "no endpoint of " + m.service.Hostname + " has a known service account",
			Advice: "name the serviceAccount of its workloads, or write subjectAltNames",
			Effect: fmt.Sprintf("clients accept every workload of the trust domain %s in its place", m.trust.Mesh()[0]),
		})
	}
	return secret.OfTrustDomains(m.trust.Mesh()), m.trust.OfMesh()
}

// accounts returns the service accounts of the endpoints and those that the Service names.
func (m *maker) accounts() []string {
	if len(m.service.Accounts) == 0 {
		return m.identities.Accounts
	}
	all := slices.Concat(m.identities.Accounts, m.service.Accounts)
	slices.Sort(all)
	return slices.Compact(all)
}

// identity returns the URI of a service account, NAMESPACE/NAME (CA-1).
func identity(domain, account string) string {
	namespace, name, _ := strings.Cut(account, "/")
	return "spiffe://" + domain + "/ns/" + namespace + "/sa/" + name
}
