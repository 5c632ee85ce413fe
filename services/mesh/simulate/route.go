package simulate

import (
	"cmp"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"meshlog.dev/services/mesh/simulate/rbac"
)

// virtualHost finds the virtual host for a host: by name, then by the longest
// "*.suffix", then by the longest "prefix.*", then "*".
func virtualHost(rc *routev3.RouteConfiguration, host string) *routev3.VirtualHost {
	var found *routev3.VirtualHost
	rank, length := 0, -1
	for _, vh := range rc.GetVirtualHosts() {
		for _, d := range vh.GetDomains() {
			if r := domainRank(strings.ToLower(d), host); r > rank || r == rank && r > 0 && len(d) > length {
				found, rank, length = vh, r, len(d)
			}
		}
	}
	return found
}

func domainRank(domain, host string) int {
	switch {
	case domain == host:
		return 4
	case domain == "*":
		return 1
	case strings.HasPrefix(domain, "*") && strings.HasSuffix(host, domain[1:]) && len(host) > len(domain)-1:
		return 3
	case strings.HasSuffix(domain, "*") && strings.HasPrefix(host, domain[:len(domain)-1]) && len(host) > len(domain)-1:
		return 2
	}
	return 0
}

// matchRoute reports whether a route matches a request; metadata is what filters wrote
// before.
func matchRoute(m *routev3.RouteMatch, c Call, metadata map[string]map[string]any) bool {
	path, rawQuery, _ := strings.Cut(c.Path, "?")
	folded, want := path, m.GetPath()+m.GetPrefix()+m.GetPathSeparatedPrefix()
	if m.GetCaseSensitive() != nil && !m.GetCaseSensitive().GetValue() {
		folded, want = strings.ToLower(path), strings.ToLower(want)
	}
	switch s := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Path:
		if folded != want {
			return false
		}
	case *routev3.RouteMatch_Prefix:
		if !strings.HasPrefix(folded, want) {
			return false
		}
	case *routev3.RouteMatch_PathSeparatedPrefix:
		if folded != want && !strings.HasPrefix(folded, want+"/") {
			return false
		}
	case *routev3.RouteMatch_SafeRegex:
		if !fullMatch(s.SafeRegex.GetRegex(), path) {
			return false
		}
	}
	for _, h := range m.GetHeaders() {
		if !matchHeader(h, c) {
			return false
		}
	}
	query, err := url.ParseQuery(rawQuery)
	for _, q := range m.GetQueryParameters() {
		if err != nil || !matchQuery(q, query) {
			return false
		}
	}
	for _, d := range m.GetDynamicMetadata() {
		if ok, err := rbac.Metadata(d, metadata); !ok || err != nil {
			return false
		}
	}
	return true
}

func matchHeader(m *routev3.HeaderMatcher, c Call) bool {
	lines := c.lines(m.GetName())
	ok, err := rbac.Header(m, strings.Join(lines, ","), len(lines) > 0)
	return ok && err == nil
}

// lines returns the lines of a header.
func (c Call) lines(name string) []string {
	switch name {
	case ":authority", "host":
		return []string{c.Host}
	case ":method":
		return []string{c.Method}
	case ":path":
		return []string{c.Path}
	case ":scheme":
		if c.TLS {
			return []string{"https"}
		}
		return []string{"http"}
	}
	return c.Headers[strings.ToLower(name)]
}

// has reports whether a request has a header.
func (c Call) has(name string) bool { return len(c.lines(name)) > 0 }

func matchQuery(m *routev3.QueryParameterMatcher, query url.Values) bool {
	if !query.Has(m.GetName()) {
		return false
	}
	if s := m.GetStringMatch(); s != nil {
		return matchString(s, query.Get(m.GetName()))
	}
	return true
}

func matchString(m *matcherv3.StringMatcher, s string) bool {
	ok, err := rbac.Text(m, s)
	return ok && err == nil
}

func fullMatch(expr, s string) bool {
	ok, err := rbac.Regex(expr, s)
	return ok && err == nil
}

// act follows the action of a route.
func (p *Proxy) act(r *routev3.Route, c Call, o *Outcome) {
	fault(r, o)
	switch a := r.GetAction().(type) {
	case *routev3.Route_DirectResponse:
		o.Status, o.Body = a.DirectResponse.GetStatus(), cmp.Or(a.DirectResponse.GetBody().GetInlineString(), string(a.DirectResponse.GetBody().GetInlineBytes()))
	case *routev3.Route_Redirect:
		o.Status, o.Location = redirect(r.GetMatch(), a.Redirect, c)
	case *routev3.Route_Route:
		p.forward(r, a.Route, c, o)
	case *routev3.Route_NonForwardingAction:
		o.note("the server answers itself")
	default:
		o.note("cannot simulate the route's action")
	}
}

func redirect(m *routev3.RouteMatch, a *routev3.RedirectAction, c Call) (uint32, string) {
	status := map[routev3.RedirectAction_RedirectResponseCode]uint32{
		routev3.RedirectAction_MOVED_PERMANENTLY: 301, routev3.RedirectAction_FOUND: 302, routev3.RedirectAction_SEE_OTHER: 303,
		routev3.RedirectAction_TEMPORARY_REDIRECT: 307, routev3.RedirectAction_PERMANENT_REDIRECT: 308,
	}[a.GetResponseCode()]
	scheme, host, path := c.lines(":scheme")[0], cmp.Or(a.GetHostRedirect(), c.Host), c.Path
	if a.GetHttpsRedirect() {
		scheme = "https"
	}
	scheme = cmp.Or(a.GetSchemeRedirect(), scheme)
	if n := a.GetPortRedirect(); n != 0 {
		host = fmt.Sprintf("%s:%d", withoutPort(host), n)
	}
	switch {
	case a.GetPathRedirect() != "":
		path = a.GetPathRedirect()
	case a.GetPrefixRewrite() != "":
		path = a.GetPrefixRewrite() + unmatched(m, path)
	case a.GetRegexRewrite() != nil:
		path = substitute(a.GetRegexRewrite(), path)
	}
	return status, scheme + "://" + host + path
}

func substitute(m *matcherv3.RegexMatchAndSubstitute, s string) string {
	re, err := regexp.Compile(m.GetPattern().GetRegex())
	if err != nil {
		return s
	}
	return re.ReplaceAllString(s, groups.ReplaceAllString(m.GetSubstitution(), "$${$1}"))
}

// unmatched returns the rest of a path behind the part that the route matched. A
// regex matches the whole path.
func unmatched(m *routev3.RouteMatch, path string) string {
	if m.GetSafeRegex() != nil {
		return ""
	}
	matched := m.GetPath() + m.GetPrefix() + m.GetPathSeparatedPrefix()
	return path[min(len(matched), len(path)):]
}

// groups matches RE2's references to groups.
var groups = regexp.MustCompile(`\\(\d)`)

func (p *Proxy) forward(r *routev3.Route, a *routev3.RouteAction, c Call, o *Outcome) {
	switch s := a.GetClusterSpecifier().(type) {
	case *routev3.RouteAction_Cluster:
		o.To = append(o.To, p.destination(s.Cluster, 1))
	case *routev3.RouteAction_WeightedClusters:
		for _, w := range s.WeightedClusters.GetClusters() {
			o.To = append(o.To, p.destination(w.GetName(), w.GetWeight().GetValue()))
		}
	default:
		o.note("cannot simulate how the route chooses the cluster")
	}
	path, _, _ := strings.Cut(c.Path, "?")
	m := r.GetMatch()
	switch {
	case a.GetPrefixRewrite() != "":
		o.note("path %s", a.GetPrefixRewrite()+unmatched(m, path))
	case a.GetRegexRewrite() != nil:
		o.note("path %s", substitute(a.GetRegexRewrite(), path))
	}
	if h := a.GetHostRewriteLiteral(); h != "" {
		o.note("host %s", h)
	}
	if t := a.GetTimeout(); t.AsDuration() > 0 {
		o.note("timeout %s", t.AsDuration())
	}
	for _, m := range a.GetRequestMirrorPolicies() {
		o.note("mirrored to %s", m.GetCluster())
	}
	for _, h := range r.GetRequestHeadersToAdd() {
		o.note("header %s: %s", h.GetHeader().GetKey(), h.GetHeader().GetValue())
	}
	for _, h := range r.GetRequestHeadersToRemove() {
		o.note("without header %s", h)
	}
}
