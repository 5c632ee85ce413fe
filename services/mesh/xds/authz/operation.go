package authz

import (
	"regexp"
	"strconv"
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	uritemplatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/path/match/uri_template/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// withPort matches a host that names a port.
var withPort = regexp.MustCompile(`^(.*):([0-9]+)$`)

func onHeader(name string, m *matcherv3.StringMatcher) *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_Header{Header: header(name, m)}}
}

// host matches the host of a request in any case, with and without a port and a dot
// at its end: a request for the same host has all these forms (POL-7).
func (t *translator) host(v string, _ bool) (*rbacv3.Permission, bool) {
	const authority = ":authority"
	if v == "*" {
		return &rbacv3.Permission{Rule: &rbacv3.Permission_Header{Header: hasHeader(authority)}}, !t.tcp
	}
	end, isSuffix := strings.CutPrefix(v, "*")
	if begin, ok := strings.CutSuffix(v, "*"); ok && !isSuffix {
		m := prefixed(begin)
		m.IgnoreCase = true
		return onHeader(authority, m), !t.tcp
	}
	port := "(:[0-9]+)?"
	if parts := withPort.FindStringSubmatch(end); parts != nil {
		end, port = parts[1], ":"+parts[2]
	}
	expr := "(?i)" + regexp.QuoteMeta(strings.TrimSuffix(end, ".")) + `\.?` + port
	if isSuffix {
		expr = "(?i).*" + strings.TrimPrefix(expr, "(?i)")
	}
	m, ok := t.regex(expr)
	return onHeader(authority, m), ok && !t.tcp
}

func (t *translator) method(v string, _ bool) (*rbacv3.Permission, bool) {
	return onHeader(":method", text(v)), !t.tcp
}

// The operators of path templates, in Istio and in Envoy (POL-7).
var templates = strings.NewReplacer("{**}", "**", "{*}", "*")

func (t *translator) path(v string, _ bool) (*rbacv3.Permission, bool) {
	if strings.ContainsAny(v, "{}") {
		match, ok := extension("envoy.path.match.uri_template.uri_template_matcher", &uritemplatev3.UriTemplateMatchConfig{PathTemplate: templates.Replace(v)})
		return &rbacv3.Permission{Rule: &rbacv3.Permission_UriTemplate{UriTemplate: match}}, ok && !t.tcp
	}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_UrlPath{UrlPath: &matcherv3.PathMatcher{
		Rule: &matcherv3.PathMatcher_Path{Path: text(v)},
	}}}, !t.tcp
}

func (t *translator) port(v string, _ bool) (*rbacv3.Permission, bool) {
	n, err := strconv.ParseUint(v, 10, 16)
	return &rbacv3.Permission{Rule: &rbacv3.Permission_DestinationPort{DestinationPort: uint32(n)}}, err == nil
}

// operationAttribute returns how values of a key of when are matched, or nil if the
// key is not about the operation (AZ-6).
func (t *translator) operationAttribute(key string) func(string, bool) (*rbacv3.Permission, bool) {
	switch key {
	case "destination.ip":
		return func(v string, _ bool) (*rbacv3.Permission, bool) {
			b, ok := block(v)
			return &rbacv3.Permission{Rule: &rbacv3.Permission_DestinationIp{DestinationIp: b}}, ok
		}
	case "destination.port":
		return t.port
	case "connection.sni":
		return func(v string, _ bool) (*rbacv3.Permission, bool) {
			m := text(v)
			m.IgnoreCase = m.GetSafeRegex() == nil
			return &rbacv3.Permission{Rule: &rbacv3.Permission_RequestedServerName{RequestedServerName: m}}, true
		}
	}
	filter, ok := strings.CutPrefix(key, "experimental.")
	filter, name, named := strings.Cut(filter, "[")
	if !ok || !named || !strings.HasPrefix(filter, "envoy.filters.") || !strings.HasSuffix(name, "]") {
		return nil
	}
	path := []string{strings.TrimSuffix(name, "]")}
	return func(v string, _ bool) (*rbacv3.Permission, bool) {
		value := stringValue(text(v))
		if strings.HasPrefix(v, "[") && strings.HasSuffix(v, "]") { // a list that has the value
			value = inList(text(strings.Trim(v, "[]")))
		}
		return &rbacv3.Permission{Rule: &rbacv3.Permission_SourcedMetadata{SourcedMetadata: metadata(filter, path, value)}}, true
	}
}
