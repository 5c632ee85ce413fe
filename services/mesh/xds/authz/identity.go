package authz

import (
	"regexp"
	"slices"
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	mtlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/rbac/principals/mtls_authenticated/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"meshlog.dev/services/mesh/proxy"
)

const (
	scheme = "spiffe://"
	// localDomain stands for the mesh's own trust domain, as in Istio, unless it is another one
	// that is trusted. Where a match forbids, it is both then.
	localDomain = "cluster.local"
)

// uri matches a URI of the caller's verified certificate (POL-4).
func (t *translator) uri(m *matcherv3.StringMatcher) (*rbacv3.Principal, bool) {
	if t.PrincipalNames {
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_Authenticated_{
			Authenticated: &rbacv3.Principal_Authenticated{PrincipalName: m},
		}}, true
	}
	custom, ok := extension(proxy.MTLSAuthenticated, &mtlsv3.Config{
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

// anyone matches every caller with a certificate if wide is true, and otherwise only one
// that is a workload.
func (t *translator) anyone(wide bool) (*rbacv3.Principal, bool) {
	if !wide {
		return t.uri(prefixed(scheme))
	}
	if t.PrincipalNames {
		return t.uri(present())
	}
	custom, ok := extension(proxy.MTLSAuthenticated, &mtlsv3.Config{AnyValidatedClientCertificate: true})
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_Custom{Custom: custom}}, ok
}

// principal matches an identity without its scheme, with a star at an end or without.
func (t *translator) principal(v string, wide bool) (*rbacv3.Principal, bool) {
	if v == "*" {
		return t.anyone(wide)
	}
	domain, path, whole := strings.Cut(v, "/")
	var some []*rbacv3.Principal
	domains := []string{domain}
	inMesh := t.inMesh(v, wide)
	end, isSuffix := strings.CutPrefix(v, "*")
	if isSuffix {
		one, ok := t.uris(endingWith(end, wide))
		if !ok && !inMesh {
			return nil, false
		}
		if ok {
			some = append(some, one)
		}
		domains = nil
	}
	if inMesh {
		domains = t.TrustDomains // AZ-4: the aliases too
		if t.LocalApart && domain == localDomain {
			domains = append(slices.Clone(domains), localDomain)
		}
	}
	for _, d := range domains {
		if isSuffix && strings.HasSuffix(d, domain[1:]) {
			continue // the star covers it
		}
		if whole {
			d += "/" + path
		}
		begin, isPrefix := strings.CutSuffix(scheme+d, "*")
		m := exactly(begin)
		if isPrefix {
			m = prefixed(begin)
		}
		one, ok := t.uri(m)
		if !ok {
			return nil, false
		}
		some = append(some, one)
	}
	return callers.either(some), len(some) > 0
}

// inMesh reports whether the trust domain of a principal stands for all trust domains of
// the mesh. In a match that allows, it does so only in a whole identity, as in Istio:
// TD/ns/a/* allows no caller from an alias (AZ-4). In a match that forbids, it also does
// so in a prefix of an identity, and with a star at its end.
func (t *translator) inMesh(v string, wide bool) bool {
	domain, _, whole := strings.Cut(v, "/")
	if !whole || domain == "*" || !wide && strings.Count(v, "/") != 4 {
		return false
	}
	return domain == localDomain && (wide || !t.LocalApart) || slices.ContainsFunc(t.TrustDomains, func(d string) bool {
		if end, is := strings.CutPrefix(domain, "*"); is {
			return strings.HasSuffix(d, end)
		}
		begin, is := strings.CutSuffix(domain, "*")
		return d == domain || wide && is && strings.HasPrefix(d, begin)
	})
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
// trust domains, and for identities with more segments than those of the mesh (POL-5).
func (t *translator) workloads(domains []string, namespace, account string, wide bool) (*rbacv3.Principal, bool) {
	if wide {
		expr := scheme + ".*/ns/" + anywhere(namespace) + "/"
		if account == "*" {
			return t.uris([]string{expr + ".*"})
		}
		return t.uris([]string{expr + "(.+/)?sa/" + anywhere(account) + "(/.+)?"})
	}
	path := "/ns/" + within(namespace) + "/sa/" + within(account)
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

// aliases returns trust domains that a rule names. One of the mesh stands for all of
// them, as in Istio.
func (t *translator) aliases(domains []string) []string {
	var all []string
	for _, d := range domains {
		some := []string{d}
		if slices.Contains(t.TrustDomains, d) {
			some = t.TrustDomains
		}
		for _, s := range some {
			if !slices.Contains(all, s) {
				all = append(all, s)
			}
		}
	}
	return all
}

func (t *translator) trustDomain(v string, _ bool) (*rbacv3.Principal, bool) {
	switch {
	case v == "*":
		return t.uri(prefixed(scheme))
	case strings.HasPrefix(v, "*"), strings.HasSuffix(v, "*"):
		return t.uris([]string{scheme + within(v) + "/.*"})
	}
	var some []*rbacv3.Principal
	for _, d := range t.aliases([]string{v}) {
		one, ok := t.uri(prefixed(scheme + d + "/"))
		if !ok {
			return nil, false
		}
		some = append(some, one)
	}
	return callers.either(some), true
}
