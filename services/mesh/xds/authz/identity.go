package authz

import (
	"regexp"
	"slices"
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	mtlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/rbac/principals/mtls_authenticated/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

const (
	scheme = "spiffe://"
	// localDomain stands for the mesh's own trust domain, as in Istio.
	localDomain = "cluster.local"
)

// uri matches a URI of the caller's verified certificate (POL-4).
func (t *translator) uri(m *matcherv3.StringMatcher) (*rbacv3.Principal, bool) {
	if t.PrincipalNames {
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_Authenticated_{
			Authenticated: &rbacv3.Principal_Authenticated{PrincipalName: m},
		}}, true
	}
	custom, ok := extension("envoy.rbac.principals.mtls_authenticated", &mtlsv3.Config{
		SanMatcher: &tlsv3.SubjectAltNameMatcher{SanType: tlsv3.SubjectAltNameMatcher_URI, Matcher: m},
	})
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_Custom{Custom: custom}}, ok
}

// uris matches one of several expressions for the URI.
func (t *translator) uris(exprs []string) (*rbacv3.Principal, bool) {
	var some []*rbacv3.Principal
	for _, expr := range exprs {
		m, fits := t.regex(expr)
		if text, whole := literal(expr); whole {
			m, fits = exactly(text), true
		}
		one, ok := t.uri(m)
		if !ok || !fits {
			return nil, false
		}
		some = append(some, one)
	}
	return callers.either(some), true
}

// literal returns the only text that an expression matches, if there is one only.
func literal(expr string) (text string, ok bool) {
	re, err := regexp.Compile(expr)
	if err != nil {
		return "", false
	}
	return re.LiteralPrefix()
}

// principal matches an identity without its scheme, with a star at an end or without.
func (t *translator) principal(v string, wide bool) (*rbacv3.Principal, bool) {
	if v == "*" {
		return t.uri(prefixed(scheme))
	}
	if end, ok := strings.CutPrefix(v, "*"); ok {
		return t.uris(endingWith(end, wide))
	}
	begin, isPrefix := strings.CutSuffix(v, "*")
	domain, path, whole := strings.Cut(begin, "/")
	domains := []string{domain}
	if whole && (domain == localDomain || slices.Contains(t.TrustDomains, domain)) {
		domains = t.TrustDomains // AZ-4: the aliases too
	}
	var some []*rbacv3.Principal
	for _, d := range domains {
		text := scheme + d
		if whole {
			text += "/" + path
		}
		m := exactly(text)
		if isPrefix {
			m = prefixed(text)
		}
		one, ok := t.uri(m)
		if !ok {
			return nil, false
		}
		some = append(some, one)
	}
	return callers.either(some), len(some) > 0
}

// endingWith returns expressions for identities that end with a text. A star covers
// whole segments and a part of one, never a text that only looks like segments: a
// caller may choose the name of its account (S27).
func endingWith(end string, wide bool) []string {
	if wide {
		return []string{scheme + ".*" + regexp.QuoteMeta(end)}
	}
	form := []string{segment, "ns", segment, "sa", segment}
	given := strings.Split(end, "/")
	if len(given) > len(form) {
		return nil
	}
	first := len(form) - len(given)
	for i, s := range given {
		at := first + i
		fixed := form[at] != segment
		switch {
		case fixed && (s == form[at] || i == 0 && strings.HasSuffix(form[at], s)):
		case fixed || s == "" && i > 0:
			return nil
		case i == 0:
			form[at] = within("*" + s)
		default:
			form[at] = regexp.QuoteMeta(s)
		}
	}
	return []string{scheme + strings.Join(form, "/")}
}

// workloads matches the identities of an account of a namespace: in the trust domains
// that the rule names, or else in those of the mesh. A match that forbids holds in all
// trust domains (POL-5).
func (t *translator) workloads(domains []string, namespace, account string, wide bool) (*rbacv3.Principal, bool) {
	path := "/ns/" + within(namespace) + "/sa/" + within(account)
	if wide {
		if account == "*" {
			path = strings.TrimSuffix(path, segment) + ".*"
		}
		return t.uris([]string{scheme + segment + path})
	}
	var exprs []string
	for _, d := range domains {
		exprs = append(exprs, scheme+within(d)+path)
	}
	if len(domains) == 0 {
		for _, d := range t.TrustDomains {
			exprs = append(exprs, scheme+regexp.QuoteMeta(d)+path)
		}
	}
	p, ok := t.uris(exprs)
	return p, ok && len(exprs) > 0
}

func (t *translator) trustDomain(v string, _ bool) (*rbacv3.Principal, bool) {
	if _, ok := strings.CutPrefix(v, "*"); ok && v != "*" {
		return t.uris([]string{scheme + within(v) + "/.*"})
	}
	if begin, ok := strings.CutSuffix(v, "*"); ok {
		return t.uri(prefixed(scheme + begin))
	}
	return t.uri(prefixed(scheme + v + "/"))
}
