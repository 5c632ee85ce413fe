// Package secret names the secrets that Listeners and Clusters ask for by SDS, writes
// the reference by which they ask, and makes the secrets that routers and sidecars may
// have. The rows that it follows are in services/SECURITY.md.
//
// A name says where a credential is:
//
//	kubernetes://NAME                    the certificate and key of the Secret of that name
//	                                     in the namespace of the client, as in Istio
//	kubernetes-gateway://NS/NAME         the same for clients in that namespace
//	kubernetes://NAME-cacert             the CAs for it: of the Secret NAME-cacert, else of NAME
//	configmap://NS/NAME                  the CAs in a ConfigMap
//	file-cert:CERT~KEY                   files on the proxy
//	file-root:CAS, file-root:CAS~CRL     files with CAs on the proxy; file-root:system: those of its system
//	on-demand:kubernetes://NAME          the same certificate, when a client first needs it
//	default, ROOTCA                      the certificate and the CAs of the mesh
//	ROOTCA:DOMAIN,DOMAIN                 the CAs of these trust domains, each for its own names only
//	invalid://                           nothing: it is never answered
//
// A client has credentials of its own namespace, whatever Gateways select it: anybody can
// give a pod the labels that a Gateway selects. It has one of another namespace if a
// ReferenceGrant there permits Gateways or DestinationRules of the client's namespace to
// name it, and one of them does by a name with a scheme: kubernetes-gateway://, configmap://.
//
// It is pure.
package secret

import (
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	staticv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/cert_mappers/static_name/v3"
	ondemandv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/cert_selectors/on_demand_secret/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/gateway"
	"meshlog.dev/services/mesh/xds/piece"
)

// Names that are the same for every object.
const (
	Mesh    = "default" // the certificate of the proxy in the mesh
	Roots   = "ROOTCA"  // the CAs of the mesh
	Invalid = "invalid://"
)

const (
	objectScheme    = "kubernetes-gateway://"
	besideScheme    = "kubernetes://"
	demandScheme    = "on-demand:"
	configMapScheme = "configmap://"
	builtinScheme   = "builtin://"
	certScheme      = "file-cert:"
	rootScheme      = "file-root:"
	caSuffix        = "-cacert"
	system          = "system"
)

// fetchTimeout is how long Envoy keeps a listener or cluster closed that waits for its
// first secret. With 0 it would be for ever (S1).
const fetchTimeout = 5 * time.Second

// Reference returns how a Listener or Cluster asks for a secret. There is no other way
// to write one: Envoy asks only once for each name and ConfigSource, so that a source
// which differs in any byte is never answered, and its connections have no certificate
// (S7).
func Reference(name string) *tlsv3.SdsSecretConfig {
	source := piece.FromADS()
	source.InitialFetchTimeout = durationpb.New(fetchTimeout)
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: source}
}

// Selector returns how a server asks for a certificate when a client first needs it
// (SDS-12). No Listener or Cluster asks for the same name at once: Envoy would not ask
// again (S21).
func Selector(name string) *corev3.TypedExtensionConfig {
	return extension("envoy.tls.certificate_selectors.on_demand_secret", &ondemandv3.Config{
		ConfigSource:      Reference(name).GetSdsConfig(),
		CertificateMapper: extension("envoy.tls.certificate_mappers.static_name", &staticv3.StaticName{Name: name}),
	})
}

func extension(name string, m proto.Message) *corev3.TypedExtensionConfig {
	return &corev3.TypedExtensionConfig{Name: name, TypedConfig: piece.Any(m)}
}

// MeshPair returns how a proxy asks for its certificate of the mesh, by its source of
// certificates. Its own agent is asked, if it has one: then no key passes through here.
func MeshPair(from proxy.Certificates) *tlsv3.SdsSecretConfig {
	switch {
	case from.Agent:
		return agentReference(Mesh)
	case from.Chain != "":
		return Reference(filePair(from.Chain, from.Key))
	}
	return Reference(Mesh)
}

// MeshRoots returns how a proxy asks for the CAs of the mesh, by its source of
// certificates.
func MeshRoots(from proxy.Certificates) *tlsv3.SdsSecretConfig {
	switch {
	case from.Agent:
		return agentReference(Roots)
	case from.Roots != "":
		return Reference(fileRoot(from.Roots, ""))
	}
	return Reference(Roots)
}

// agentReference asks the agent on the proxy's host, or SPIRE (CA-12). An agent that does
// not answer holds the listener for the timeout only (S24).
func agentReference(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
		ResourceApiVersion:  corev3.ApiVersion_V3,
		InitialFetchTimeout: durationpb.New(fetchTimeout),
		ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
			ApiType: corev3.ApiConfigSource_GRPC, TransportApiVersion: corev3.ApiVersion_V3, SetNodeOnFirstMessageOnly: true,
			GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
				EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: proxy.SDSCluster},
			}}},
		}},
	}}
}

// Names are the secrets that a server or a client asks for.
type Names struct {
	Pairs []string // certificates with their keys
	CA    string   // the CAs by which it verifies the other side; empty: it does not
	// OnDemand: the one certificate is asked for when a client first needs it.
	OnDemand bool
}

// OfServer returns the secrets of a server that decrypts connections, of a Gateway in a
// namespace (GW-13). Named credentials take precedence over files. On demand, one named
// credential is asked for later (SDS-12); of several, Envoy has to have all at once.
func OfServer(namespace string, tls *networking.ServerTLSSettings, onDemand bool) Names {
	if tls.GetMode() == networking.ServerTLSSettings_ISTIO_MUTUAL {
		return Names{Pairs: []string{Mesh}, CA: Roots}
	}
	var n Names
	var ca string // Invalid if there are none: then no client may pass (S16)
	switch credentials := credentialNames(tls); {
	case len(credentials) > 0:
		for _, c := range credentials {
			n.Pairs = append(n.Pairs, pair(namespace, c))
		}
		ca = authorities(namespace, credentials[0])
	case len(tls.GetTlsCertificates()) > 0:
		for _, c := range tls.GetTlsCertificates() {
			n.Pairs = append(n.Pairs, filePair(c.GetServerCertificate(), c.GetPrivateKey()))
		}
		ca = fileRoot(tls.GetCaCertificates(), tls.GetCaCrl())
		if tls.GetCaCertificates() == "" {
			ca = fileRoot(tls.GetTlsCertificates()[0].GetCaCertificates(), tls.GetCaCrl())
		}
	default:
		n.Pairs = []string{filePair(tls.GetServerCertificate(), tls.GetPrivateKey())}
		ca = fileRoot(tls.GetCaCertificates(), tls.GetCaCrl())
	}
	if c := tls.GetCaCertCredentialName(); c != "" {
		ca = authorities(namespace, c)
	}
	if gateway.Verifies(tls) {
		n.CA = ca
	}
	if onDemand && len(n.Pairs) == 1 && placeOf(n.Pairs[0], namespace).kind == secretPair {
		n.Pairs[0], n.OnDemand = demandScheme+n.Pairs[0], true
	}
	return n
}

func credentialNames(tls *networking.ServerTLSSettings) []string {
	if all := tls.GetCredentialNames(); len(all) > 0 {
		return all
	}
	if name := tls.GetCredentialName(); name != "" {
		return []string{name}
	}
	return nil
}

// OfClient returns the secrets of a client whose DestinationRule in a namespace names a
// credential (DR-17); none if it names none.
func OfClient(namespace string, tls *networking.ClientTLSSettings) Names {
	var n Names
	if tls.GetCredentialName() == "" {
		return n
	}
	switch tls.GetMode() {
	case networking.ClientTLSSettings_MUTUAL:
		n.Pairs = []string{pair(namespace, tls.GetCredentialName())}
	case networking.ClientTLSSettings_SIMPLE:
	default:
		return n
	}
	if !tls.GetInsecureSkipVerify().GetValue() {
		n.CA = authorities(namespace, tls.GetCredentialName())
	}
	return n
}

// pair returns the name of a credential's certificate and key.
func pair(namespace, credential string) string {
	if strings.HasPrefix(credential, builtinScheme) {
		return Mesh
	}
	at, ok := object(namespace, credential)
	if !ok || strings.HasSuffix(at, caSuffix) { // that would be the name of CAs
		return Invalid
	}
	return at
}

// authorities returns the name of a credential's CAs.
func authorities(namespace, credential string) string {
	if strings.HasPrefix(credential, builtinScheme) {
		return Roots
	}
	if name, ok := strings.CutPrefix(credential, configMapScheme); ok {
		if ns, rest, ok := strings.Cut(strings.TrimSuffix(name, caSuffix), "/"); ok && isName(ns) && isName(rest) {
			return configMapScheme + ns + "/" + rest
		}
		return Invalid
	}
	at, ok := object(namespace, strings.TrimSuffix(credential, caSuffix))
	if !ok {
		return Invalid
	}
	return at + caSuffix
}

// object returns the name of a Secret that is named by its name, by its namespace and
// name, or by a name of SDS. Only with kubernetes-gateway:// it may be of another namespace
// than the object that names it, as in Istio: ReferenceGrants decide about those.
func object(namespace, name string) (string, bool) {
	name, granted := strings.CutPrefix(name, objectScheme)
	if !granted {
		name = strings.TrimPrefix(name, besideScheme)
	}
	if ns, rest, ok := strings.Cut(name, "/"); ok {
		return objectScheme + name, (ns == namespace || granted && isName(ns)) && isName(rest)
	}
	return besideScheme + name, isName(name)
}

func isName(name string) bool { return name != "" && !strings.ContainsAny(name, "/:") }

func filePair(certificate, key string) string {
	if certificate == "" || key == "" || strings.Contains(certificate, "~") {
		return Invalid
	}
	return certScheme + certificate + "~" + key
}

func fileRoot(cas, crl string) string {
	switch {
	case cas == "" || strings.Contains(cas, "~"):
		return Invalid
	case crl == "":
		return rootScheme + cas
	}
	return rootScheme + cas + "~" + crl
}

// InFiles reports whether a secret of that name is in files on the machine of the client.
func InFiles(name string) bool {
	return strings.HasPrefix(name, certScheme) || strings.HasPrefix(name, rootScheme)
}

// place is what a name says to a client.
type place struct {
	kind            kind
	namespace, name string // of the object
	absolute        bool   // the name has the namespace
	first, second   string // certificate and key, or CAs and CRL, of files
}

type kind uint8

const (
	elsewhere  kind = iota // not made here: of the mesh, or nothing
	secretPair             // of a Secret
	secretCAs
	configMapCAs
	filesPair
	filesCAs
	meshCAs
)

// placeOf reads a name for clients in a namespace.
func placeOf(name, namespace string) place {
	name = strings.TrimPrefix(name, demandScheme)
	rest, of := strings.CutPrefix(name, besideScheme)
	p := place{namespace: namespace, name: rest}
	if !of {
		if rest, of = strings.CutPrefix(name, objectScheme); of {
			p.absolute = true
			p.namespace, p.name, _ = strings.Cut(rest, "/")
		}
	}
	if of {
		p.kind = secretPair
		if stripped, ok := strings.CutSuffix(p.name, caSuffix); ok {
			p.kind, p.name = secretCAs, stripped
		}
		return p
	}
	if rest, ok := strings.CutPrefix(name, configMapScheme); ok {
		namespace, object, _ := strings.Cut(rest, "/")
		return place{kind: configMapCAs, namespace: namespace, name: object, absolute: true}
	}
	if rest, ok := strings.CutPrefix(name, certScheme); ok {
		certificate, key, _ := strings.Cut(rest, "~")
		return place{kind: filesPair, first: certificate, second: key}
	}
	if rest, ok := strings.CutPrefix(name, rootScheme); ok {
		cas, crl, _ := strings.Cut(rest, "~")
		return place{kind: filesCAs, first: cas, second: crl}
	}
	if name == Roots {
		return place{kind: meshCAs}
	}
	return place{}
}

// ofObject reports whether a credential is that of an object.
func (p place) ofObject() bool {
	return p.kind == secretPair || p.kind == secretCAs || p.kind == configMapCAs
}

func (p place) String() string {
	return p.objectKind() + " " + p.namespace + "/" + p.name
}

func text(s string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: s}}
}

func file(path string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
}
