package simulate

import (
	"cmp"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
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

// route follows the first route that matches.
func (p *Proxy) route(vh *routev3.VirtualHost, c Call, o *Outcome) {
	if vh.GetRequireTls() != routev3.VirtualHost_NONE {
		o.Status, o.Location = 301, "https://"+c.Host+c.Path
		return
	}
	for _, r := range vh.GetRoutes() {
		if !matchRoute(r.GetMatch(), c) {
			continue
		}
		o.Route = r.GetName()
		p.act(r, c, o)
		return
	}
	o.note("no route matches")
	o.Status = 404
}

func matchRoute(m *routev3.RouteMatch, c Call) bool {
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
	return true
}

func matchHeader(m *routev3.HeaderMatcher, c Call) bool {
	value, there := c.header(m.GetName())
	there = there || m.GetTreatMissingHeaderAsEmpty()
	var ok bool
	switch s := m.GetHeaderMatchSpecifier().(type) {
	case *routev3.HeaderMatcher_PresentMatch:
		ok = there == s.PresentMatch
	case *routev3.HeaderMatcher_StringMatch:
		if !there {
			return false // a missing header does not match, inverted or not
		}
		ok = matchString(s.StringMatch, value)
	default:
		ok = there
	}
	return ok != m.GetInvertMatch()
}

func (c Call) header(name string) (string, bool) {
	switch name {
	case ":authority", "host":
		return c.Host, true
	case ":method":
		return c.Method, true
	case ":path":
		return c.Path, true
	case ":scheme":
		return "http", true
	}
	v, ok := c.Headers[strings.ToLower(name)]
	return v, ok
}

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
	fold := func(s string) string {
		if m.GetIgnoreCase() {
			return strings.ToLower(s)
		}
		return s
	}
	switch p := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		return fold(s) == fold(p.Exact)
	case *matcherv3.StringMatcher_Prefix:
		return strings.HasPrefix(fold(s), fold(p.Prefix))
	case *matcherv3.StringMatcher_Suffix:
		return strings.HasSuffix(fold(s), fold(p.Suffix))
	case *matcherv3.StringMatcher_Contains:
		return strings.Contains(fold(s), fold(p.Contains))
	case *matcherv3.StringMatcher_SafeRegex:
		return fullMatch(p.SafeRegex.GetRegex(), s)
	}
	return false
}

func fullMatch(expr, s string) bool {
	re, err := regexp.Compile("^(?:" + expr + ")$")
	return err == nil && re.MatchString(s)
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
	scheme, host, path := "http", cmp.Or(a.GetHostRedirect(), c.Host), c.Path
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
