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
	headerName = regexp.MustCompile("^[-!#$%&'*+.^_`|~0-9A-Za-z]+$")
	// operator is one of Envoy's substitutions in values of headers. Envoy
	// rejects all routes of a port for one that it does not know.
	operator = regexp.MustCompile(`%%|%(?:` + strings.Join(operators, "|") + `)%` +
		`|%START_TIME(?:\([^)]*\))?%` +
		`|%(?:REQ|RESP|TRAILER|ENVIRONMENT|DYNAMIC_METADATA|UPSTREAM_METADATA|FILTER_STATE)\([^)]+\)(?::[0-9]+)?%`)
	operators = []string{
		"HOSTNAME", "PROTOCOL", "REQUESTED_SERVER_NAME", "ROUTE_NAME", "VIRTUAL_CLUSTER_NAME", "CONNECTION_ID", "STREAM_ID",
		"BYTES_RECEIVED", "BYTES_SENT", "DURATION", "REQUEST_DURATION", "RESPONSE_CODE", "RESPONSE_CODE_DETAILS", "RESPONSE_FLAGS",
		"DOWNSTREAM_(?:DIRECT_)?(?:REMOTE|LOCAL)_(?:ADDRESS(?:_WITHOUT_PORT)?|PORT)",
		"DOWNSTREAM_(?:LOCAL|PEER)_(?:SUBJECT|(?:URI|DNS|IP)_SAN)", "DOWNSTREAM_TLS_(?:CIPHER|VERSION|SESSION_ID)",
		"DOWNSTREAM_PEER_(?:ISSUER|SERIAL|FINGERPRINT_1|FINGERPRINT_256|CERT|CERT_V_START|CERT_V_END)",
		"UPSTREAM_(?:CLUSTER|HOST|TRANSPORT_FAILURE_REASON|(?:REMOTE|LOCAL)_(?:ADDRESS(?:_WITHOUT_PORT)?|PORT))",
	}
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

// httpRoute checks an entry of spec.http. Of a delegate, a VirtualService that
// others hand requests on to, not all fields may be used.
func (c *checker) httpRoute(at *fieldPath, r *networking.HTTPRoute, delegate bool) {
	c.httpActions(at, r, delegate)
	for i, m := range r.GetMatch() {
		c.httpMatch(at.field("match").item(i), m, delegate || r.GetDelegate() != nil)
	}
	c.httpDestinations(at.field("route"), r.GetRoute())
	c.redirect(at.field("redirect"), r.GetRedirect())
	c.directResponse(at.field("directResponse"), r.GetDirectResponse())
	c.rewrite(at, r)
	c.orZero(at.field("timeout"), r.GetTimeout())
	c.retries(at.field("retries"), r.GetRetries())
	c.fault(at.field("fault"), r.GetFault())
	c.mirrors(at, r)
	c.cors(at.field("corsPolicy"), r.GetCorsPolicy())
	c.headers(at.field("headers"), r.GetHeaders())
	if d := r.GetDelegate(); d != nil && d.GetName() == "" {
		c.at(at.field("delegate").field("name"), "name the VirtualService", "is missing")
	}
}

// httpActions: a route does one thing.
func (c *checker) httpActions(at *fieldPath, r *networking.HTTPRoute, delegate bool) {
	var actions []string
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
		c.at(at, "write one of route, redirect, directResponse or delegate", "does nothing with its requests")
		return
	case len(actions) > 1:
		c.at(at, "keep one of them", "has %s at once", strings.Join(actions, " and "))
	case actions[0] == "delegate" && delegate:
		c.at(at.field("delegate"), "write the routes here", "a VirtualService without hosts cannot hand on further")
	}
	if r.GetRedirect() != nil || r.GetDirectResponse() != nil {
		if r.GetRewrite() != nil {
			c.at(at.field("rewrite"), "remove it", "does not go with %s", actions[len(actions)-1])
		}
		if r.GetFault() != nil {
			c.at(at.field("fault"), "remove it", "does not go with %s", actions[len(actions)-1])
		}
	}
}

func (c *checker) httpMatch(at *fieldPath, m *networking.HTTPMatchRequest, delegated bool) {
	for _, f := range []struct {
		name string
		is   *networking.StringMatch
	}{
		{"uri", m.GetUri()}, {"scheme", m.GetScheme()}, {"method", m.GetMethod()}, {"authority", m.GetAuthority()},
	} {
		if f.is == nil {
			continue
		}
		field := at.field(f.name)
		if f.is.GetMatchType() == nil {
			c.at(field, "write one of exact, prefix or regex", "matches nothing in particular")
		}
		c.stringMatch(field, f.is, delegated)
	}
	for _, f := range []struct {
		name string
		are  map[string]*networking.StringMatch
	}{{"headers", m.GetHeaders()}, {"withoutHeaders", m.GetWithoutHeaders()}} {
		for _, name := range sortedKeys(f.are) {
			field := at.field(f.name).entry(name)
			if !headerName.MatchString(strings.TrimPrefix(name, ":")) && !strings.HasPrefix(name, claimsHeader) {
				c.at(field, "use letters, digits and -", "%q is no name of a header", name)
			}
			if f.are[name].GetRegex() != "*" { // any value (VSM-5)
				c.stringMatch(field, f.are[name], delegated)
			}
		}
	}
	for _, name := range sortedKeys(m.GetQueryParams()) {
		field := at.field("queryParams").entry(name)
		if name == "" {
			c.at(field, "name the parameter", "has an empty name")
		}
		c.stringMatch(field, m.GetQueryParams()[name], delegated)
	}
	if m.GetIgnoreUriCase() && m.GetUri().GetRegex() != "" {
		c.warn(at.field("ignoreUriCase"), "begin the expression with (?i)", "does not go with a regex: case counts")
	}
	c.source(at, m)
}

// matcher is what all matches have: whose requests they are about.
type matcher interface {
	GetPort() uint32
	GetSourceLabels() map[string]string
	GetSourceNamespace() string
	GetGateways() []string
}

func (c *checker) source(at *fieldPath, m matcher) {
	if m.GetPort() != 0 {
		c.port(at.field("port"), m.GetPort())
	}
	c.labels(at.field("sourceLabels"), m.GetSourceLabels())
	if ns := m.GetSourceNamespace(); ns != "" {
		c.namespace(at.field("sourceNamespace"), ns)
	}
	c.gateways(at.field("gateways"), m.GetGateways())
}

func (c *checker) stringMatch(at *fieldPath, m *networking.StringMatch, delegated bool) {
	switch t := m.GetMatchType().(type) {
	case *networking.StringMatch_Prefix:
		if t.Prefix == "" {
			c.at(at.field("prefix"), "write the prefix, or leave the match out", "is empty")
		}
	case *networking.StringMatch_Regex:
		c.re2(at.field("regex"), t.Regex)
		if delegated {
			c.at(at.field("regex"), "use exact or prefix", "does not go with a delegate: it cannot be said which matches lie within which")
		}
	}
}

func (c *checker) redirect(at *fieldPath, r *networking.HTTPRedirect) {
	if r == nil {
		return
	}
	if r.GetUri() == "" && r.GetPrefixRewrite() == "" && r.GetAuthority() == "" && r.GetScheme() == "" && r.GetRedirectPort() == nil {
		c.at(at, "write uri, prefixRewrite, authority, scheme or port", "leads back to where the request came to")
	}
	if r.GetUri() != "" && r.GetPrefixRewrite() != "" {
		c.at(at.field("prefixRewrite"), "keep one of them", "does not go with uri")
	}
	if code := r.GetRedirectCode(); code != 0 && !slices.Contains(redirects, code) {
		c.at(at.field("redirectCode"), "use 301, 302, 303, 307 or 308", "%d is no redirect", code)
	}
	if s := r.GetScheme(); s != "" && s != "http" && s != "https" {
		c.at(at.field("scheme"), "use http or https", "%q is no scheme", s)
	}
	if p, ok := r.GetRedirectPort().(*networking.HTTPRedirect_Port); ok {
		c.port(at.field("port"), p.Port)
	}
}

func (c *checker) directResponse(at *fieldPath, r *networking.HTTPDirectResponse) {
	if r == nil {
		return
	}
	c.status(at.field("status"), r.GetStatus())
	if n := max(len(r.GetBody().GetString_()), len(r.GetBody().GetBytes())); n > maxBody {
		c.at(at.field("body"), "serve it from a service", "has %d bytes, and %d are the most", n, maxBody)
	}
}

func (c *checker) status(at *fieldPath, status uint32) {
	if status < 200 || status > 599 {
		c.at(at, "use 200 to 599", "%d is no status of an answer", status)
	}
}

func (c *checker) rewrite(at *fieldPath, r *networking.HTTPRoute) {
	w := r.GetRewrite()
	if w == nil {
		return
	}
	field := at.field("rewrite")
	re := w.GetUriRegexRewrite()
	if w.GetUri() == "" && w.GetAuthority() == "" && re == nil {
		c.at(field, "write uri, uriRegexRewrite or authority", "is empty")
	}
	if re != nil {
		if w.GetUri() != "" {
			c.at(field.field("uriRegexRewrite"), "keep one of them", "does not go with uri")
		}
		c.regexRewrite(field.field("uriRegexRewrite"), re)
	}
	if w.GetAuthority() != "" {
		for _, ops := range []map[string]string{r.GetHeaders().GetRequest().GetSet(), r.GetHeaders().GetRequest().GetAdd()} {
			for name := range ops {
				if isAuthority(name) {
					c.at(field.field("authority"), "keep one of them", "headers.request sets %s too", name)
				}
			}
		}
	}
}

func (c *checker) regexRewrite(at *fieldPath, re *networking.RegexRewrite) {
	c.re2(at.field("match"), re.GetMatch())
	expr, err := syntax.Parse(re.GetMatch(), syntax.Perl)
	if err != nil {
		return
	}
	for _, ref := range backRef.FindAllString(re.GetRewrite(), -1) {
		if n, _ := strconv.Atoi(ref[1:]); n > expr.MaxCap() {
			c.at(at.field("rewrite"), "put what is meant in match into parentheses", "%s is a group that match does not have", ref)
		}
	}
}

func (c *checker) retries(at *fieldPath, r *networking.HTTPRetry) {
	if r == nil {
		return
	}
	c.notNegative(at.field("attempts"), r.GetAttempts())
	if r.GetAttempts() == 0 && (r.GetPerTryTimeout() != nil || r.GetRetryOn() != "" || r.GetRetryRemoteLocalities() != nil) {
		c.at(at.field("attempts"), "say how often, or remove the rest", "is 0: nothing is retried")
	}
	c.orZero(at.field("perTryTimeout"), r.GetPerTryTimeout())
	c.atLeast(at.field("backoff"), r.GetBackoff(), time.Millisecond)
	if r.GetRetryOn() == "" {
		return
	}
	for _, on := range strings.Split(r.GetRetryOn(), ",") {
		on = strings.TrimSpace(on)
		if code, err := strconv.Atoi(on); (err != nil || code < 100 || code > 599) && !slices.Contains(retryOn, on) {
			c.at(at.field("retryOn"), "use status codes and "+strings.Join(retryOn, ", "), "%q is no reason to retry", on)
		}
	}
}

func (c *checker) fault(at *fieldPath, f *networking.HTTPFaultInjection) {
	if d := f.GetDelay(); d != nil {
		delay := at.field("delay")
		if d.GetHttpDelayType() == nil {
			c.at(delay.field("fixedDelay"), "say how long", "is missing")
		}
		c.atLeast(delay.field("fixedDelay"), d.GetFixedDelay(), time.Millisecond)
		c.share(delay.field("percentage"), d.GetPercentage())
		c.percent(delay.field("percent"), float64(d.GetPercent())) //nolint:staticcheck // deprecated, and still in use
	}
	if a := f.GetAbort(); a != nil {
		abort := at.field("abort")
		c.share(abort.field("percentage"), a.GetPercentage())
		switch t := a.GetErrorType().(type) {
		case nil:
			c.at(abort, "write httpStatus or grpcStatus", "does not say with what")
		case *networking.HTTPFaultInjection_Abort_HttpStatus:
			c.status(abort.field("httpStatus"), uint32(max(t.HttpStatus, 0)))
		case *networking.HTTPFaultInjection_Abort_GrpcStatus:
			if _, err := strconv.ParseUint(t.GrpcStatus, 10, 32); err != nil && !slices.Contains(grpcStatuses, strings.ToUpper(t.GrpcStatus)) {
				c.at(abort.field("grpcStatus"), "use a name like UNAVAILABLE, or its number", "%q is no status of gRPC", t.GrpcStatus)
			}
		}
	}
}

// share checks a percentage; Envoy counts in millionths.
func (c *checker) share(at *fieldPath, p *networking.Percent) {
	c.percent(at.field("value"), p.GetValue())
	if v := p.GetValue(); v > 0 && v < 0.0001 {
		c.at(at.field("value"), "use 0.0001 or more", "%v percent is too little to be told from none", v)
	}
}

func (c *checker) mirrors(at *fieldPath, r *networking.HTTPRoute) {
	if m := r.GetMirror(); m != nil {
		c.destination(at.field("mirror"), m)
		if len(r.GetMirrors()) > 0 {
			c.at(at.field("mirror"), "write all of them under mirrors", "does not go with mirrors")
		}
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
		field := at.field("allowOrigins").item(i)
		if o.GetMatchType() == nil {
			c.at(field, "write one of exact, prefix or regex", "matches nothing in particular")
		}
		c.stringMatch(field, o, false)
	}
	for i, m := range p.GetAllowMethods() {
		if m != "*" && !slices.Contains(methods, m) {
			c.at(at.field("allowMethods").item(i), "use "+strings.Join(methods, ", ")+" or *", "%q is no method of HTTP", m)
		}
	}
	for _, names := range []struct {
		field string
		are   []string
	}{{"allowHeaders", p.GetAllowHeaders()}, {"exposeHeaders", p.GetExposeHeaders()}} {
		for i, n := range names.are {
			if !headerName.MatchString(n) {
				c.at(at.field(names.field).item(i), "use letters, digits and -", "%q is no name of a header", n)
			}
		}
	}
	c.orZero(at.field("maxAge"), p.GetMaxAge())
	if p.GetMaxAge().GetNanos() != 0 {
		c.at(at.field("maxAge"), "use whole seconds", "%s has a fraction of a second", p.GetMaxAge().AsDuration())
	}
}

// headers checks what is done to headers. The authority may be set, on
// requests; no other name that begins with a colon may.
func (c *checker) headers(at *fieldPath, h *networking.Headers) {
	c.headerOps(at.field("request"), h.GetRequest(), true)
	c.headerOps(at.field("response"), h.GetResponse(), false)
}

func (c *checker) headerOps(at *fieldPath, ops *networking.Headers_HeaderOperations, request bool) {
	for _, values := range []struct {
		field string
		are   map[string]string
	}{{"set", ops.GetSet()}, {"add", ops.GetAdd()}} {
		for _, name := range sortedKeys(values.are) {
			field, value := at.field(values.field).entry(name), values.are[name]
			if !request || !isAuthority(name) {
				c.changedHeader(field, name)
			}
			if strings.ContainsAny(value, "\x00\r\n") {
				c.at(field, "write it on one line", "%q is no value of a header", value)
			} else if strings.Contains(operator.ReplaceAllString(value, ""), "%") {
				c.at(field, "write %% for a percent sign, or one of Envoy's operators, like %REQ(name)%", "%q has a %% that begins nothing", value)
			}
		}
	}
	for i, name := range ops.GetRemove() {
		c.changedHeader(at.field("remove").item(i), name)
	}
}

func (c *checker) changedHeader(at *fieldPath, name string) {
	switch {
	case isAuthority(name) || strings.HasPrefix(name, ":"):
		c.at(at, "use rewrite for host and path", "header %q cannot be changed here", name)
	case !headerName.MatchString(name):
		c.at(at, "use letters, digits and -", "%q is no name of a header", name)
	}
}

func isAuthority(header string) bool {
	return strings.EqualFold(header, ":authority") || strings.EqualFold(header, "host")
}

func (c *checker) httpDestinations(at *fieldPath, ds []*networking.HTTPRouteDestination) {
	weights := make([]int32, len(ds))
	for i, d := range ds {
		c.destination(at.item(i).field("destination"), d.GetDestination())
		c.headers(at.item(i).field("headers"), d.GetHeaders())
		weights[i] = d.GetWeight()
	}
	c.weighted(at, weights)
}

// weighted checks the weights of destinations (VSA-2).
func (c *checker) weighted(at *fieldPath, weights []int32) {
	var sum int64
	for i, w := range weights {
		c.notNegative(at.item(i).field("weight"), w)
		sum += int64(w)
	}
	if len(weights) > 1 && (sum <= 0 || sum > math.MaxUint32) {
		c.at(at, "give weights whose sum is 100", "the weights add up to %d", sum)
	}
}

func (c *checker) destination(at *fieldPath, d *networking.Destination) {
	if d == nil {
		c.at(at, "name the host that requests go to", "is missing")
		return
	}
	if d.GetHost() == "*" {
		c.at(at.field("host"), "name one host", "%q is no destination", d.GetHost())
	} else {
		c.host(at.field("host"), d.GetHost(), true)
	}
	if s := d.GetSubset(); s != "" && !isHostLabel(s) {
		c.at(at.field("subset"), "use letters, digits and -", "%q is no name of a subset", s)
	}
	if d.GetPort() != nil {
		c.port(at.field("port").field("number"), d.GetPort().GetNumber())
	}
}
