package validate

import (
	"math"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"

	networking "istio.io/api/networking/v1alpha3"
)

const (
	maxBody = 1 << 20 // of a direct response (VS-10)

	claimsHeader = "@request.auth.claims" // VSM-7
)

var (
	backRef = regexp.MustCompile(`\\[0-9]`)

	methods   = []string{"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"}
	redirects = []uint32{301, 302, 303, 307, 308}
	retryOn   = []string{
		"5xx", "gateway-error", "reset", "reset-before-request", "connect-failure", "envoy-ratelimited", "retriable-4xx", "refused-stream",
		"retriable-status-codes", "retriable-headers", "http3-post-connect-failure",
		"cancelled", "deadline-exceeded", "internal", "resource-exhausted", "unavailable",
	}
	grpcStatuses = []string{
		"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
		"RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS",
		"UNAUTHENTICATED",
	}
)

// httpRoute checks an entry of spec.http. A delegate, a VirtualService to which
// others hand requests on, may not use all fields.
func (c *checker) httpRoute(at *fieldPath, r *networking.HTTPRoute, delegate bool) {
	c.httpActions(at, r, delegate)
	for i, m := range r.GetMatch() {
		c.httpMatch(at.field("match").item(i), m)
	}
	c.httpDestinations(at.field("route"), r.GetRoute())
	c.redirect(at.field("redirect"), r)
	c.directResponse(at.field("directResponse"), r.GetDirectResponse())
	c.rewrite(at.field("rewrite"), r)
	c.orZero(at.field("timeout"), r.GetTimeout())
	c.retries(at.field("retries"), r.GetRetries())
	c.delay(at.field("fault.delay"), r.GetFault().GetDelay())
	c.abort(at.field("fault.abort"), r.GetFault().GetAbort())
	c.mirrors(at, r)
	c.cors(at.field("corsPolicy"), r.GetCorsPolicy())
	c.headers(at.field("headers"), r.GetHeaders())
	c.errorIf(r.GetDelegate() != nil && r.GetDelegate().GetName() == "", at.field("delegate.name"), "name the VirtualService", isMissing)
}

// httpActions checks that a route does one thing.
func (c *checker) httpActions(at *fieldPath, r *networking.HTTPRoute, delegate bool) {
	actions := make([]string, 0, 4)
	for _, a := range []struct {
		name string
		set  bool
	}{
		{"route", len(r.GetRoute()) > 0},
		{"redirect", r.GetRedirect() != nil},
		{"directResponse", r.GetDirectResponse() != nil},
		{"delegate", r.GetDelegate() != nil},
	} {
		if a.set {
			actions = append(actions, a.name)
		}
	}
	switch {
	case len(actions) == 0:
		c.errorf(at, "write one of route, redirect, directResponse or delegate", "does nothing with its requests")
		return
	case len(actions) > 1:
		c.errorf(at, keepOne, "has %s at once", strings.Join(actions, " and "))
	case actions[0] == "delegate" && delegate:
		c.errorf(at.field("delegate"), "write the routes here", "a VirtualService without hosts cannot hand requests on")
	}
	if r.GetRedirect() != nil || r.GetDirectResponse() != nil {
		const reason = "does not go with %s"
		last := actions[len(actions)-1]
		c.errorIf(r.GetRewrite() != nil, at.field("rewrite"), "remove it", reason, last)
		c.errorIf(r.GetFault() != nil, at.field("fault"), "remove it", reason, last)
	}
}

func (c *checker) httpMatch(at *fieldPath, m *networking.HTTPMatchRequest) {
	for _, f := range []struct {
		name string
		is   *networking.StringMatch
	}{{"uri", m.GetUri()}, {"scheme", m.GetScheme()}, {"method", m.GetMethod()}, {"authority", m.GetAuthority()}} {
		if _, isPrefix := f.is.GetMatchType().(*networking.StringMatch_Prefix); f.is == nil || f.name == "uri" && isPrefix {
			continue // an empty prefix matches every path (VSM-2)
		}
		c.stringMatch(at.field(f.name), f.is, true)
	}
	c.headerMatches(at.field("headers"), m.GetHeaders())
	c.headerMatches(at.field("withoutHeaders"), m.GetWithoutHeaders())
	for name, match := range m.GetQueryParams() {
		field := at.field("queryParams").entry(name)
		c.errorIf(name == "", field, "name the parameter", "has an empty name")
		c.tooLong(field, name, maxParameter)
		c.stringMatch(field, match, false)
	}
	if m.GetIgnoreUriCase() && m.GetUri().GetRegex() != "" {
		c.warnf(at.field("ignoreUriCase"), "begin the expression with (?i)", "does not go with a regex, which stays case-sensitive")
	}
	c.source(at, m)
}

func (c *checker) headerMatches(at *fieldPath, matches map[string]*networking.StringMatch) {
	for name, match := range matches {
		field := at.entry(name)
		if claims, is := strings.CutPrefix(name, claimsHeader); is {
			c.errorIf(!isClaim(claims), field, "write "+claimsHeader+".group, or "+claimsHeader+"[group]", "%q names no claim", name)
		} else {
			c.header(field, strings.TrimPrefix(name, ":"))
		}
		if match.GetRegex() != "*" { // any value (VSM-5)
			c.stringMatch(field, match, false)
		}
	}
}

// isClaim reports whether s is .a.b or [a][b], a claim of a token (VSM-7).
func isClaim(s string) bool {
	segments := strings.TrimPrefix(s, ".")
	separator := "."
	if inner, ok := strings.CutPrefix(s, "["); ok {
		segments, ok = strings.CutSuffix(inner, "]")
		if separator = "]["; !ok {
			return false
		}
	} else if segments == s {
		return false
	}
	for segment := range strings.SplitSeq(segments, separator) {
		if segment == "" {
			return false
		}
	}
	return true
}

// matcher is what all matches have in common: the source of the requests.
type matcher interface {
	GetPort() uint32
	GetSourceLabels() map[string]string
	GetSourceNamespace() string
	GetGateways() []string
}

func (c *checker) source(at *fieldPath, m matcher) {
	c.optionalPort(at.field("port"), m.GetPort())
	c.labels(at.field("sourceLabels"), m.GetSourceLabels())
	if ns := m.GetSourceNamespace(); ns != "" {
		c.namespace(at.field("sourceNamespace"), ns)
	}
	c.gateways(at.field("gateways"), m.GetGateways())
}

// stringMatch checks a match of a text; unless it must name a value, an empty
// one matches any.
func (c *checker) stringMatch(at *fieldPath, m *networking.StringMatch, must bool) {
	switch t := m.GetMatchType().(type) {
	case nil:
		c.errorIf(must, at, "write one of exact, prefix or regex", "names no value")
	case *networking.StringMatch_Prefix:
		c.errorIf(t.Prefix == "", at.field("prefix"), "write the prefix, or leave the match out", isEmpty)
	case *networking.StringMatch_Regex:
		c.re2(at.field("regex"), t.Regex)
	}
}

func (c *checker) redirect(at *fieldPath, of *networking.HTTPRoute) {
	r := of.GetRedirect()
	if r == nil {
		return
	}
	c.errorIf(r.GetPrefixRewrite() != "" && slices.ContainsFunc(of.GetMatch(), matchesWholePath), at.field("prefixRewrite"),
		"match the uri by prefix, or write uri", "replaces a matched prefix, and the route matches the uri by exact or regex")
	c.errorIf(r.GetUri() == "" && r.GetPrefixRewrite() == "" && r.GetAuthority() == "" && r.GetScheme() == "" && r.GetRedirectPort() == nil,
		at, "write uri, prefixRewrite, authority, scheme or port", "redirects requests to where they went")
	c.errorIf(r.GetUri() != "" && r.GetPrefixRewrite() != "", at.field("prefixRewrite"), keepOne, "does not go with uri")
	c.oneLine(at.field("uri"), r.GetUri())
	c.oneLine(at.field("prefixRewrite"), r.GetPrefixRewrite())
	c.oneLine(at.field("authority"), r.GetAuthority())
	if code := r.GetRedirectCode(); code != 0 && !slices.Contains(redirects, code) {
		c.errorf(at.field("redirectCode"), "use 301, 302, 303, 307 or 308", "%d is not a redirect", code)
	}
	s := r.GetScheme()
	c.errorIf(s != "" && s != "http" && s != "https", at.field("scheme"), "use http or https", "%q is not a scheme", s)
	if p, ok := r.GetRedirectPort().(*networking.HTTPRedirect_Port); ok {
		c.port(at.field("port"), p.Port)
	}
}

// matchesWholePath reports whether a match leaves no prefix to replace.
func matchesWholePath(m *networking.HTTPMatchRequest) bool {
	switch m.GetUri().GetMatchType().(type) {
	case *networking.StringMatch_Exact, *networking.StringMatch_Regex:
		return true
	}
	return false
}

func (c *checker) directResponse(at *fieldPath, r *networking.HTTPDirectResponse) {
	if r == nil {
		return
	}
	c.status(at.field("status"), r.GetStatus())
	if n := max(len(r.GetBody().GetString_()), len(r.GetBody().GetBytes())); n > maxBody {
		c.errorf(at.field("body"), "serve it from a service", "has %d bytes, more than %d", n, maxBody)
	}
}

func (c *checker) status(at *fieldPath, status uint32) {
	if status < 200 || status > 599 {
		c.errorf(at, "use 200 to 599", "%d is not a response status", status)
	}
}

func (c *checker) rewrite(at *fieldPath, r *networking.HTTPRoute) {
	w := r.GetRewrite()
	if w == nil {
		return
	}
	c.oneLine(at.field("uri"), w.GetUri())
	c.oneLine(at.field("authority"), w.GetAuthority())
	re := w.GetUriRegexRewrite()
	c.errorIf(w.GetUri() == "" && w.GetAuthority() == "" && re == nil, at, "write uri, uriRegexRewrite or authority", isEmpty)
	if re != nil {
		c.errorIf(w.GetUri() != "", at.field("uriRegexRewrite"), keepOne, "does not go with uri")
		c.regexRewrite(at.field("uriRegexRewrite"), re)
	}
	if w.GetAuthority() != "" {
		ops := r.GetHeaders().GetRequest()
		c.errorIf(setsAuthority(ops.GetSet()) || setsAuthority(ops.GetAdd()), at.field("authority"), keepOne, "headers.request sets the host too")
	}
}

func setsAuthority(headers map[string]string) bool {
	for name := range headers {
		if isAuthority(name) {
			return true
		}
	}
	return false
}

func (c *checker) regexRewrite(at *fieldPath, re *networking.RegexRewrite) {
	c.errorIf(re.GetRewrite() == "", at.field("rewrite"), "write what replaces the match", isMissing)
	c.oneLine(at.field("rewrite"), re.GetRewrite())
	c.re2(at.field("match"), re.GetMatch())
	expr, err := syntax.Parse(re.GetMatch(), syntax.Perl)
	if err != nil {
		return
	}
	for _, ref := range backRef.FindAllString(re.GetRewrite(), -1) {
		n, _ := strconv.Atoi(ref[1:])
		c.errorIf(n > expr.MaxCap(), at.field("rewrite"), "put this part of match into parentheses", "%s is a group that match does not have", ref)
	}
}

func (c *checker) retries(at *fieldPath, r *networking.HTTPRetry) {
	c.notNegative(at.field("attempts"), r.GetAttempts())
	c.errorIf(r.GetAttempts() == 0 && (r.GetPerTryTimeout() != nil || r.GetRetryOn() != "" || r.GetRetryRemoteLocalities() != nil),
		at.field("attempts"), "write how often, or remove the rest", "is 0: there are no retries")
	c.orZero(at.field("perTryTimeout"), r.GetPerTryTimeout())
	c.atLeast(at.field("backoff"), r.GetBackoff(), time.Millisecond)
	for rest, more := r.GetRetryOn(), r.GetRetryOn() != ""; more; {
		var on string
		on, rest, more = strings.Cut(rest, ",")
		if on = strings.TrimSpace(on); slices.Contains(retryOn, on) {
			continue
		}
		if code, err := strconv.Atoi(on); err != nil || code < 100 || code > 599 {
			c.errorf(at.field("retryOn"), "use status codes and "+strings.Join(retryOn, ", "), "%q is not a reason to retry", on)
		}
	}
}

func (c *checker) delay(at *fieldPath, d *networking.HTTPFaultInjection_Delay) {
	if d == nil {
		return
	}
	c.errorIf(d.GetHttpDelayType() == nil, at.field("fixedDelay"), "write how long", isMissing)
	c.atLeast(at.field("fixedDelay"), d.GetFixedDelay(), time.Millisecond)
	c.noEffect(d.GetExponentialDelay() != nil, at.field("exponentialDelay"))
	c.share(at.field("percentage"), d.GetPercentage())
	c.percent(at.field("percent"), float64(d.GetPercent())) //nolint:staticcheck // deprecated, and still in use
}

func (c *checker) abort(at *fieldPath, a *networking.HTTPFaultInjection_Abort) {
	if a == nil {
		return
	}
	c.share(at.field("percentage"), a.GetPercentage())
	switch t := a.GetErrorType().(type) {
	case nil:
		c.errorf(at, "write httpStatus or grpcStatus", "names no status")
	case *networking.HTTPFaultInjection_Abort_HttpStatus:
		c.status(at.field("httpStatus"), uint32(max(t.HttpStatus, 0)))
	case *networking.HTTPFaultInjection_Abort_GrpcStatus:
		if slices.Contains(grpcStatuses, strings.ToUpper(t.GrpcStatus)) {
			break
		}
		_, err := strconv.ParseUint(t.GrpcStatus, 10, 32)
		c.errorIf(err != nil, at.field("grpcStatus"), "use a name like UNAVAILABLE, or its number", "%q is not a gRPC status", t.GrpcStatus)
	case *networking.HTTPFaultInjection_Abort_Http2Error:
		c.noEffect(true, at.field("http2Error"))
	}
}

// share checks a percentage; Envoy counts in millionths.
func (c *checker) share(at *fieldPath, p *networking.Percent) {
	c.percent(at.field("value"), p.GetValue())
	if v := p.GetValue(); v > 0 && v < 0.0001 {
		c.errorf(at.field("value"), "use 0.0001 or more", "Envoy rounds %v percent to 0", v)
	}
}

func (c *checker) mirrors(at *fieldPath, r *networking.HTTPRoute) {
	if m := r.GetMirror(); m != nil {
		c.destination(at.field("mirror"), m)
		c.errorIf(len(r.GetMirrors()) > 0, at.field("mirror"), "write all of them under mirrors", "does not go with mirrors")
	}
	c.share(at.field("mirrorPercentage"), r.GetMirrorPercentage())
	c.percent(at.field("mirrorPercent"), float64(r.GetMirrorPercent().GetValue())) //nolint:staticcheck // deprecated, and still in use
	for i, m := range r.GetMirrors() {
		field := at.field("mirrors").item(i)
		c.destination(field.field("destination"), m.GetDestination())
		c.share(field.field("percentage"), m.GetPercentage())
	}
}

func (c *checker) cors(at *fieldPath, p *networking.CorsPolicy) {
	for i, o := range p.GetAllowOrigins() {
		c.stringMatch(at.field("allowOrigins").item(i), o, true)
	}
	for i, m := range p.GetAllowMethods() {
		if m != "*" && !slices.Contains(methods, m) {
			c.errorf(at.field("allowMethods").item(i), "use "+strings.Join(methods, ", ")+" or *", "%q is not an HTTP method", m)
		}
	}
	for i, name := range p.GetAllowHeaders() {
		c.header(at.field("allowHeaders").item(i), name)
	}
	for i, name := range p.GetExposeHeaders() {
		c.header(at.field("exposeHeaders").item(i), name)
	}
	c.orZero(at.field("maxAge"), p.GetMaxAge())
	if p.GetMaxAge().GetNanos() != 0 {
		c.errorf(at.field("maxAge"), "use whole seconds", "%s has a fraction of a second", p.GetMaxAge().AsDuration())
	}
}

// headers checks changes of headers. A request's authority may be set; no other
// header whose name begins with a colon may.
func (c *checker) headers(at *fieldPath, h *networking.Headers) {
	c.headerOps(at.field("request"), h.GetRequest(), true)
	c.headerOps(at.field("response"), h.GetResponse(), false)
}

func (c *checker) headerOps(at *fieldPath, ops *networking.Headers_HeaderOperations, request bool) {
	c.headerValues(at.field("set"), ops.GetSet(), request)
	c.headerValues(at.field("add"), ops.GetAdd(), request)
	for i, name := range ops.GetRemove() {
		c.changedHeader(at.field("remove").item(i), name)
	}
}

func (c *checker) headerValues(at *fieldPath, values map[string]string, request bool) {
	for name, value := range values {
		field := at.entry(name)
		if !request || !isAuthority(name) {
			c.changedHeader(field, name)
		}
		c.oneLine(field, value)
		if strings.Contains(value, "%") && strings.Contains(operator.ReplaceAllString(value, ""), "%") {
			c.errorf(field, "write %% for a percent sign, or one of Envoy's operators, like %REQ(name)%", "%q has a %% that begins no operator", value)
		}
	}
}

func (c *checker) changedHeader(at *fieldPath, name string) {
	if isAuthority(name) || strings.HasPrefix(name, ":") {
		c.errorf(at, "use rewrite for host and path", "header %q cannot be changed here", name)
		return
	}
	c.header(at, name)
}

func isAuthority(header string) bool {
	return strings.EqualFold(header, ":authority") || strings.EqualFold(header, "host")
}

func (c *checker) httpDestinations(at *fieldPath, ds []*networking.HTTPRouteDestination) {
	for i, d := range ds {
		c.destination(at.item(i).field("destination"), d.GetDestination())
		c.headers(at.item(i).field("headers"), d.GetHeaders())
	}
	weighted(c, at, ds)
}

// weighted checks the weights of destinations (VSA-2).
func weighted[D interface{ GetWeight() int32 }](c *checker, at *fieldPath, ds []D) {
	var sum int64
	for i, d := range ds {
		c.notNegative(at.item(i).field("weight"), d.GetWeight())
		sum += int64(d.GetWeight())
	}
	if len(ds) > 1 && (sum <= 0 || sum > math.MaxUint32) {
		c.errorf(at, weightsOf100, weightsAddUp, sum)
	}
}

func (c *checker) destination(at *fieldPath, d *networking.Destination) {
	if d == nil {
		c.errorf(at, "name the host that requests go to", isMissing)
		return
	}
	if d.GetHost() == "*" {
		c.errorf(at.field("host"), "name one host", "%q is not a destination", d.GetHost())
	} else {
		c.host(at.field("host"), d.GetHost(), true)
	}
	if d.GetSubset() != "" {
		c.subset(at.field("subset"), d.GetSubset())
	}
	if d.GetPort() != nil {
		c.port(at.field("port.number"), d.GetPort().GetNumber())
	}
}
