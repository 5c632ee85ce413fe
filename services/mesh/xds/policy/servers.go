package policy

import (
	"fmt"
	"slices"
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	security "istio.io/api/security/v1beta1"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds/authz"
	"meshlog.dev/services/mesh/xds/piece"
)

// Peers is the filter of a gRPC server that refuses clients of other trust domains.
const Peers = "meshlog.authz.peers"

// Servers are the policies of gRPC servers of a class. They are in the listener, because
// gRPC knows no ECDS (MTLS-17).
type Servers struct{ selected index.SelectorSet }

// OfServers returns the policies of a class.
func OfServers(class index.LDSClass) Servers { return Servers{class.Policies} }

// Filters returns the filters that enforce the policies, in the order in which they run.
// verified: clients must show an identity of the mesh. gRPC has no other filter than RBAC,
// so what verifies tokens or asks an authorizer refuses instead.
func (s Servers) Filters(r *index.Reader, verified bool) []*hcmv3.HttpFilter {
	policies := read(r, s.selected)
	var filters []*hcmv3.HttpFilter
	add := func(name string, rules *rbacv3.RBAC) {
		f := &httpv3.RBAC{Rules: rules}
		if len(unreadable(rules)) > 0 {
			f = piece.DenyAll("meshlog:unsupported")
		}
		filters = append(filters, &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: piece.Any(f)}})
	}
	if verified {
		add(Peers, ofTrustDomains(r.TrustDomains()))
	}
	if tokens := tokenHeaders(policies); len(tokens) > 0 {
		add(JWT, withoutHeaders(tokens))
	}
	all := authz.ForHTTP(authorization(policies), options(r, true))
	if rules := all.Custom.GetShadowRules(); rules != nil {
		add(Custom, rules)
	}
	if rules := all.Deny.GetRules(); rules != nil {
		add(Deny, rules)
	}
	if rules := all.Allow.GetRules(); rules != nil {
		add(Allow, rules)
	}
	return filters
}

// Problems returns what gRPC servers cannot do for the policies. It is for information: that
// a service has a port for gRPC does not say that a gRPC server without a proxy is behind it.
func (s Servers) Problems(r *index.Reader) []problem.Diagnostic {
	var ds []problem.Diagnostic
	for _, p := range read(r, s.selected) {
		d := problem.Diagnostic{Severity: problem.Info, Code: "unsupported", Key: p.Key, Advice: "run the server behind a sidecar"}
		m, _ := p.Message.(*security.AuthorizationPolicy)
		if dry, is := p.Message.(*kind.DryRun); is && dry.Enforced() {
			m = dry.Inner
		}
		if _, _, ok := kind.RequestAuthentication(p.Message); ok {
			d.Reason, d.Effect = "gRPC servers without a proxy cannot verify tokens", "they refuse requests that have one"
			ds = append(ds, d)
		}
		if m == nil {
			continue
		}
		switch m.GetAction() {
		case security.AuthorizationPolicy_CUSTOM:
			d.Reason, d.Effect = "gRPC servers without a proxy cannot ask an authorizer", "they refuse requests that the policy matches"
			ds = append(ds, d)
			continue
		case security.AuthorizationPolicy_AUDIT:
			d.Reason, d.Effect = "gRPC servers without a proxy do not audit", "their requests are not audited"
			ds = append(ds, d)
			continue
		}
		all := authz.ForHTTP([]world.Object{{Key: p.Key, Message: m}}, options(r, true))
		if what := append(unreadable(all.Deny.GetRules()), unreadable(all.Allow.GetRules())...); len(what) > 0 {
			d.Reason = "gRPC servers without a proxy do not know " + what[0]
			d.Effect = "they refuse all requests"
			ds = append(ds, d)
		}
	}
	return ds
}

// ofTrustDomains allows clients with an identity of these domains, as servers of the mesh
// do (MTLS-6): gRPC compares no names of clients in their handshake.
func ofTrustDomains(domains []string) *rbacv3.RBAC {
	p := &rbacv3.Policy{Permissions: []*rbacv3.Permission{{Rule: &rbacv3.Permission_Any{Any: true}}}}
	for _, domain := range domains {
		p.Principals = append(p.Principals, &rbacv3.Principal{Identifier: &rbacv3.Principal_Authenticated_{Authenticated: &rbacv3.Principal_Authenticated{
			PrincipalName: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: "spiffe://" + domain + "/"}},
		}}})
	}
	return &rbacv3.RBAC{Action: rbacv3.RBAC_ALLOW, Policies: map[string]*rbacv3.Policy{"meshlog:peers": p}}
}

// tokenHeaders returns the headers in which policies look for tokens, in lower case. gRPC
// requests have no query.
func tokenHeaders(policies []world.Object) []string {
	var names []string
	for _, p := range policies {
		if p.Key.Kind != "RequestAuthentication" {
			continue
		}
		m, _, _ := kind.RequestAuthentication(p.Message)
		rules := m.GetJwtRules()
		if m == nil {
			names = append(names, "authorization") // no value was ever good
		}
		for _, rule := range rules {
			if len(rule.GetFromHeaders())+len(rule.GetFromParams())+len(rule.GetFromCookies()) == 0 {
				names = append(names, "authorization")
			}
			if len(rule.GetFromCookies()) > 0 {
				names = append(names, "cookie")
			}
			for _, h := range rule.GetFromHeaders() {
				names = append(names, strings.ToLower(h.GetName()))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// withoutHeaders denies requests that have one of the headers.
func withoutHeaders(names []string) *rbacv3.RBAC {
	p := &rbacv3.Policy{Principals: []*rbacv3.Principal{{Identifier: &rbacv3.Principal_Any{Any: true}}}}
	for _, name := range names {
		p.Permissions = append(p.Permissions, &rbacv3.Permission{Rule: &rbacv3.Permission_Header{Header: &routev3.HeaderMatcher{
			Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true},
		}}})
	}
	return &rbacv3.RBAC{Action: rbacv3.RBAC_DENY, Policies: map[string]*rbacv3.Policy{"meshlog:tokens": p}}
}

// readable are the conditions that gRPC servers know (gRFC A41).
var readable = map[protoreflect.FullName][]protoreflect.Name{
	"envoy.config.rbac.v3.Permission": {
		"and_rules", "or_rules", "any", "header", "url_path", "destination_ip", "destination_port", "metadata", "not_rule", "requested_server_name",
	},
	"envoy.config.rbac.v3.Principal": {
		"and_ids", "or_ids", "any", "authenticated", "source_ip", "direct_remote_ip", "remote_ip", "header", "url_path", "metadata", "not_id",
	},
}

// unreadable returns the conditions for which gRPC servers would reject the listener, and
// so keep the policies from before.
func unreadable(rules *rbacv3.RBAC) []string {
	if rules == nil {
		return nil
	}
	var found []string
	var walk func(m protoreflect.Message)
	walk = func(m protoreflect.Message) {
		if h, ok := m.Interface().(*routev3.HeaderMatcher); ok {
			if name := strings.ToLower(h.GetName()); name == ":scheme" || strings.HasPrefix(name, "grpc-") {
				found = append(found, "conditions on the header "+name)
			}
			return
		}
		known := readable[m.Descriptor().FullName()]
		m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			if known != nil && !slices.Contains(known, fd.Name()) {
				found = append(found, fmt.Sprintf("conditions of the kind %s", fd.Name()))
			}
			switch {
			case fd.IsMap():
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					if fd.MapValue().Message() != nil {
						walk(v.Message())
					}
					return true
				})
			case fd.Message() != nil && fd.IsList():
				for i := range v.List().Len() {
					walk(v.List().Get(i).Message())
				}
			case fd.Message() != nil:
				walk(v.Message())
			}
			return true
		})
	}
	walk(proto.Message(rules).ProtoReflect())
	slices.Sort(found)
	return slices.Compact(found)
}
