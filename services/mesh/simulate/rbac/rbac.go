// Package rbac evaluates the rules of Envoy's RBAC filters for one request or
// connection, as Envoy does.
//
// It knows the matchers that mesh/xds/authz generates and the plain ones beside them.
// Match returns an error for a rule with a matcher that it does not know, or with one
// that looks at something the request does not say: a caller must not take such a
// request as allowed. It is pure.
package rbac

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	uritemplatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/path/match/uri_template/v3"
	mtlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/rbac/principals/mtls_authenticated/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// Request is what rules look at. An address that is the zero Addr is not known, so rules
// that look at it cannot be evaluated.
type Request struct {
	// HTTP: the rules are about a request. Otherwise they are about a connection, which
	// has no headers and no path.
	HTTP bool
	// Header returns the lines of a header by its lower-case name; also of :authority,
	// :method and :path.
	Header func(name string) []string
	// Unknown are the lower-case names of headers whose lines Header cannot tell.
	Unknown []string
	// Path has no query.
	Path string
	// Direct is the address of the connection's other end; Remote that of the caller,
	// which proxies before may have named.
	Direct, Remote  netip.Addr
	Destination     netip.Addr
	DestinationPort uint32
	ServerName      string
	// TLS: the proxy decrypts the connection. Certificate is what the client has shown, and
	// the proxy has verified; nil: none.
	TLS         bool
	Certificate *Certificate
	// Metadata is what earlier filters have written, by the name of the filter.
	Metadata map[string]map[string]any
}

// Certificate is what rules look at of a client's certificate. That of a workload of the mesh
// has one URI, its identity, and nothing else.
type Certificate struct {
	URIs, DNSNames []string
	Subject        string // as in RFC 2253, such as CN=shop
}

// CertificateOf returns the certificate of a workload.
func CertificateOf(identity string) *Certificate { return &Certificate{URIs: []string{identity}} }

// Match returns the name of the first policy that matches the request; "" if none does.
// The caller decides by the action of rules what a match means.
func Match(rules *rbacv3.RBAC, r *Request) (policy string, matched bool, err error) {
	policies := rules.GetPolicies()
	for _, name := range slices.Sorted(maps.Keys(policies)) {
		p := policies[name]
		if p.GetCondition() != nil || p.GetCheckedCondition() != nil || p.GetCelConfig() != nil {
			return "", false, fmt.Errorf("policy %s has a condition in CEL", name)
		}
		ok, err := some(p.GetPermissions(), r.permits)
		if ok && err == nil {
			ok, err = some(p.GetPrincipals(), r.is)
		}
		if err != nil {
			return "", false, fmt.Errorf("policy %s: %w", name, err)
		}
		if ok {
			return name, true, nil
		}
	}
	return "", false, nil
}

// some reports whether one of terms matches.
func some[T any](terms []T, match func(T) (bool, error)) (bool, error) {
	for _, t := range terms {
		if ok, err := match(t); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

// every reports whether all of terms match.
func every[T any](terms []T, match func(T) (bool, error)) (bool, error) {
	for _, t := range terms {
		if ok, err := match(t); !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}

func not(ok bool, err error) (bool, error) { return !ok && err == nil, err }

// permits reports whether a permission matches.
func (r *Request) permits(p *rbacv3.Permission) (bool, error) {
	switch p := p.GetRule().(type) {
	case *rbacv3.Permission_Any:
		return p.Any, nil
	case *rbacv3.Permission_AndRules:
		return every(p.AndRules.GetRules(), r.permits)
	case *rbacv3.Permission_OrRules:
		return some(p.OrRules.GetRules(), r.permits)
	case *rbacv3.Permission_NotRule:
		return not(r.permits(p.NotRule))
	case *rbacv3.Permission_Header:
		return r.header(p.Header)
	case *rbacv3.Permission_UrlPath:
		return r.path(p.UrlPath)
	case *rbacv3.Permission_UriTemplate:
		return r.template(p.UriTemplate)
	case *rbacv3.Permission_DestinationIp:
		return inBlock(p.DestinationIp, r.Destination, "destination")
	case *rbacv3.Permission_DestinationPort:
		return p.DestinationPort == r.DestinationPort, nil
	case *rbacv3.Permission_DestinationPortRange:
		port := int64(r.DestinationPort)
		return int64(p.DestinationPortRange.GetStart()) <= port && port < int64(p.DestinationPortRange.GetEnd()), nil
	case *rbacv3.Permission_SourcedMetadata:
		return r.sourced(p.SourcedMetadata)
	case *rbacv3.Permission_Metadata:
		return r.metadata(p.Metadata) //nolint:staticcheck // deprecated, and Envoy knows it
	case *rbacv3.Permission_RequestedServerName:
		return Text(p.RequestedServerName, r.ServerName)
	}
	return false, fmt.Errorf("unknown permission %T", p.GetRule())
}

// is reports whether a principal matches.
func (r *Request) is(p *rbacv3.Principal) (bool, error) {
	switch p := p.GetIdentifier().(type) {
	case *rbacv3.Principal_Any:
		return p.Any, nil
	case *rbacv3.Principal_AndIds:
		return every(p.AndIds.GetIds(), r.is)
	case *rbacv3.Principal_OrIds:
		return some(p.OrIds.GetIds(), r.is)
	case *rbacv3.Principal_NotId:
		return not(r.is(p.NotId))
	case *rbacv3.Principal_Authenticated_:
		return r.authenticated(p.Authenticated.GetPrincipalName())
	case *rbacv3.Principal_Custom:
		return r.verified(p.Custom)
	case *rbacv3.Principal_DirectRemoteIp:
		return inBlock(p.DirectRemoteIp, r.Direct, "caller's")
	case *rbacv3.Principal_RemoteIp:
		return inBlock(p.RemoteIp, r.Remote, "caller's")
	case *rbacv3.Principal_Header:
		return r.header(p.Header)
	case *rbacv3.Principal_UrlPath:
		return r.path(p.UrlPath)
	case *rbacv3.Principal_SourcedMetadata:
		return r.sourced(p.SourcedMetadata)
	case *rbacv3.Principal_Metadata:
		return r.metadata(p.Metadata) //nolint:staticcheck // deprecated, and Envoy knows it
	}
	return false, fmt.Errorf("unknown principal %T", p.GetIdentifier())
}

// authenticated matches by the matcher that looks at the DNS names and the subject of a
// certificate, too (S27).
func (r *Request) authenticated(m *matcherv3.StringMatcher) (bool, error) {
	if m == nil || !r.TLS {
		return r.TLS, nil
	}
	names := []string{""} // of a client without a certificate
	if c := r.Certificate; c != nil {
		names = append(slices.Concat(c.URIs, c.DNSNames), c.Subject)
	}
	return some(names, func(name string) (bool, error) { return Text(m, name) })
}

// verified matches the certificate by an extension, of which any name of the kind can
// match.
func (r *Request) verified(c *corev3.TypedExtensionConfig) (bool, error) {
	var m mtlsv3.Config
	if !c.GetTypedConfig().MessageIs(&m) {
		return false, fmt.Errorf("unknown principal %s", c.GetName())
	}
	if err := c.GetTypedConfig().UnmarshalTo(&m); err != nil {
		return false, err
	}
	switch san := m.GetSanMatcher(); {
	case r.Certificate == nil || !r.TLS:
		return false, nil
	case san == nil:
		return m.GetAnyValidatedClientCertificate(), nil
	case san.GetSanType() == tlsv3.SubjectAltNameMatcher_URI:
		return some(r.Certificate.URIs, func(uri string) (bool, error) { return Text(san.GetMatcher(), uri) })
	case san.GetSanType() == tlsv3.SubjectAltNameMatcher_DNS:
		return some(r.Certificate.DNSNames, func(name string) (bool, error) { return Text(san.GetMatcher(), name) })
	default:
		return false, fmt.Errorf("unknown kind of name %s", san.GetSanType())
	}
}

// header matches a header. Each line of one that a request has several times is matched
// alone.
func (r *Request) header(m *routev3.HeaderMatcher) (bool, error) {
	if !r.HTTP {
		return false, nil
	}
	name := strings.ToLower(m.GetName())
	if slices.Contains(r.Unknown, name) {
		return false, fmt.Errorf("it looks at the header %s, which Envoy writes", name)
	}
	lines := r.Header(name)
	if len(lines) == 0 {
		return Header(m, "", false)
	}
	return some(lines, func(line string) (bool, error) { return Header(m, line, true) })
}

func (r *Request) path(m *matcherv3.PathMatcher) (bool, error) {
	if !r.HTTP {
		return false, nil
	}
	return Text(m.GetPath(), r.Path)
}

func (r *Request) template(c *corev3.TypedExtensionConfig) (bool, error) {
	var m uritemplatev3.UriTemplateMatchConfig
	if !c.GetTypedConfig().MessageIs(&m) {
		return false, fmt.Errorf("unknown matcher of paths %s", c.GetName())
	}
	if err := c.GetTypedConfig().UnmarshalTo(&m); err != nil || !r.HTTP {
		return false, err
	}
	return Template(m.GetPathTemplate(), r.Path)
}

func (r *Request) sourced(m *rbacv3.SourcedMetadata) (bool, error) {
	if s := m.GetMetadataSource(); s != rbacv3.MetadataSource_DYNAMIC {
		return false, fmt.Errorf("unknown source of metadata %s", s)
	}
	return r.metadata(m.GetMetadataMatcher())
}

func (r *Request) metadata(m *matcherv3.MetadataMatcher) (bool, error) {
	return Metadata(m, r.Metadata)
}

// inBlock reports whether a block has an address.
func inBlock(b *corev3.CidrRange, a netip.Addr, whose string) (bool, error) {
	ip, err := netip.ParseAddr(b.GetAddressPrefix())
	switch {
	case err != nil:
		return false, err
	case !a.IsValid():
		return false, fmt.Errorf("it looks at the %s address, which the call does not name", whose)
	}
	return netip.PrefixFrom(ip, int(b.GetPrefixLen().GetValue())).Contains(a.Unmap()), nil
}
