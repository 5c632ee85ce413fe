package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/re2"
)

// Type says what a proxy is for.
type Type string

// The types of proxies, as Istio's node ids name them.
const (
	Sidecar Type = "sidecar"
	Router  Type = "router"
)

// Locality is where a proxy runs; empty fields are unknown.
type Locality struct{ Region, Zone, SubZone string }

// Proxy is a connected client, as the node of its first request describes it.
//
// A node id of Istio's form, type~ip~name.namespace~domain with type sidecar or
// router, is read as Istio does. Every other node is a plain Envoy (or gRPC
// client): a router, whose namespace is metadata NAMESPACE, else "default".
// The node selectors of raw resources can select either by cluster, metadata,
// locality and kind of client.
type Proxy struct {
	// ID is the whole node id.
	ID        string
	Type      Type
	Namespace string
	// Domain is the DNS domain that short names are completed with; empty for
	// a plain Envoy without metadata DNS_DOMAIN.
	Domain string
	// Cluster is node.cluster; ClusterID is metadata CLUSTER_ID, the name of
	// the Kubernetes cluster.
	Cluster   string
	ClusterID string
	Labels    map[string]string // metadata LABELS
	Metadata  *structpb.Struct  // must not be changed
	Locality  Locality
	// UserAgent is the name and version that the client gives.
	UserAgent string
	// Identity is what the proxy's certificate proves; zero: nothing.
	Identity Identity
	// GRPC says that the client is a gRPC library, not an Envoy.
	GRPC bool
	// PrincipalNames: the client lists its extensions, and MTLSAuthenticated is not among
	// them, so it takes no rule with that matcher.
	PrincipalNames bool
	// Delta says that the client uses incremental xDS. Its node does not contain
	// that.
	Delta bool
}

// MTLSAuthenticated is the extension of Envoy by which rules match a certificate that it has
// verified (POL-4).
const MTLSAuthenticated = "envoy.rbac.principals.mtls_authenticated"

// Identity names the workload of a proxy, from a certificate in Istio's form.
type Identity struct{ TrustDomain, Namespace, ServiceAccount string }

// Client returns the name, version and protocol that a quarantine names p by:
// clients may reject in one protocol what they apply in the other.
func (p *Proxy) Client() string { return ident.Client(cmp.Or(p.UserAgent, "unknown"), p.Delta) }

// The kinds of clients, as the node selectors of raw resources name them.
const (
	Envoy = "envoy"
	GRPC  = "grpc"
)

// Kind returns the kind of client that p is.
func (p *Proxy) Kind() string {
	if p.GRPC {
		return GRPC
	}
	return Envoy
}

const plainNamespace = "default"

// New reads a node. Its error tells the operator of the client what to set.
func New(node *corev3.Node) (*Proxy, error) {
	if node == nil {
		return nil, errors.New("node is missing: the first request of a stream carries it; set node.id and node.cluster in Envoy's bootstrap")
	}
	if node.GetId() == "" {
		return nil, errors.New("node.id is empty: set node.id in Envoy's bootstrap, or start Envoy with --service-node")
	}
	p := &Proxy{
		ID:       node.GetId(),
		Type:     Router,
		Cluster:  node.GetCluster(),
		Metadata: node.GetMetadata(),
		Locality: Locality{
			Region: node.GetLocality().GetRegion(), Zone: node.GetLocality().GetZone(), SubZone: node.GetLocality().GetSubZone(),
		},
		UserAgent: userAgent(node),
		GRPC:      strings.HasPrefix(node.GetUserAgentName(), "gRPC"),
		PrincipalNames: len(node.GetExtensions()) > 0 && !slices.ContainsFunc(node.GetExtensions(), func(e *corev3.Extension) bool {
			return e.GetName() == MTLSAuthenticated
		}),
	}
	p.ClusterID = p.Text("CLUSTER_ID")
	p.Domain = p.Text("DNS_DOMAIN")
	p.Namespace = p.Text("NAMESPACE")
	for name, v := range p.Metadata.GetFields()["LABELS"].GetStructValue().GetFields() {
		if s, ok := v.GetKind().(*structpb.Value_StringValue); ok {
			if p.Labels == nil {
				p.Labels = make(map[string]string)
			}
			p.Labels[name] = s.StringValue
		}
	}
	p.readIstioID()
	if p.Namespace == "" {
		p.Namespace = plainNamespace
	}
	return p, nil
}

// readIstioID takes from an id of Istio's form what the metadata does not say.
func (p *Proxy) readIstioID() {
	parts := strings.Split(p.ID, "~")
	if len(parts) != 4 {
		return
	}
	switch t := Type(parts[0]); t {
	case Sidecar, Router:
		p.Type = t
	default:
		return
	}
	if i := strings.LastIndexByte(parts[2], '.'); i >= 0 && p.Namespace == "" {
		p.Namespace = parts[2][i+1:]
	}
	if p.Domain == "" {
		p.Domain = parts[3]
	}
}

// regexLimit is the metadata with which a bootstrap says to which program size it
// has raised re2.max_program_size.error_level. Envoy itself reports no setting of
// its runtime.
const regexLimit = "RE2_MAX_PROGRAM_SIZE"

// RegexLimit returns the size of the largest RE2 program that an Envoy takes. The
// bootstraps of Istio's proxies raise it without saying so.
func (p *Proxy) RegexLimit() int {
	switch v := p.Metadata.GetFields()[regexLimit].GetKind().(type) {
	case *structpb.Value_NumberValue:
		if v.NumberValue >= 0 && v.NumberValue <= 1e9 {
			return int(v.NumberValue)
		}
	case *structpb.Value_StringValue:
		if n, err := strconv.Atoi(v.StringValue); err == nil {
			return n
		}
	}
	if p.Text("ISTIO_VERSION") != "" {
		return re2.Raised
	}
	return re2.Stock
}

// Text returns the string in a field of the metadata, or "".
func (p *Proxy) Text(field string) string {
	return p.Metadata.GetFields()[field].GetStringValue()
}

func userAgent(node *corev3.Node) string {
	version := node.GetUserAgentVersion()
	if b := node.GetUserAgentBuildVersion().GetVersion(); b != nil {
		version = fmt.Sprintf("%d.%d.%d", b.GetMajorNumber(), b.GetMinorNumber(), b.GetPatch())
	}
	return strings.TrimSpace(node.GetUserAgentName() + " " + version)
}

// Addresses returns the IPs that the proxy names as its own.
func (p *Proxy) Addresses() []netip.Addr {
	texts := strings.Split(p.Text("INSTANCE_IPS"), ",")
	if parts := strings.Split(p.ID, "~"); len(parts) == 4 {
		texts = append([]string{parts[1]}, texts...)
	}
	var ips []netip.Addr
	for _, t := range texts {
		if ip, err := netip.ParseAddr(strings.TrimSpace(t)); err == nil {
			ips = append(ips, ip.Unmap())
		}
	}
	return ips
}

// Names returns the names that the proxy may have as a workload: in an id of Istio's
// form, in the metadata, or as its id.
func (p *Proxy) Names() []string {
	names := []string{p.ID}
	if parts := strings.Split(p.ID, "~"); len(parts) == 4 {
		names = []string{strings.TrimSuffix(parts[2], "."+p.Namespace)}
	}
	if name := p.Text("NAME"); name != "" {
		names = append(names, name)
	}
	return names
}

// Node returns a node from which New makes an equal Proxy: the part of the
// client's node that decides what it is served.
func (p *Proxy) Node() *corev3.Node {
	n := &corev3.Node{Id: p.ID, Cluster: p.Cluster, Metadata: p.Metadata}
	if p.Locality != (Locality{}) {
		n.Locality = &corev3.Locality{Region: p.Locality.Region, Zone: p.Locality.Zone, SubZone: p.Locality.SubZone}
	}
	if p.PrincipalNames {
		n.Extensions = []*corev3.Extension{{Name: "envoy.filters.http.rbac"}} // a list without the matcher
	}
	name, version, _ := strings.Cut(p.UserAgent, " ")
	n.UserAgentName = name
	if version != "" {
		n.UserAgentVersionType = &corev3.Node_UserAgentVersion{UserAgentVersion: version}
	}
	return n
}
