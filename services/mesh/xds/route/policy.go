package route

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	commonfaultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/fault/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	hostsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	prioritiesv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/priority/previous_priorities/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/traffic"
)

// changes of the headers of a message.
type changes struct {
	add    []*corev3.HeaderValueOption
	remove []string
}

// headers are the changes of request and response (VSA-5).
type headers struct {
	request, response changes
	// authority replaces the request's Host, which Envoy does not treat as a
	// header.
	authority string
}

func headerChanges(in *networking.Headers) headers {
	if in == nil { // most routes: iterating over nothing would allocate
		return headers{}
	}
	h := headers{request: headerChange(in.GetRequest()), response: headerChange(in.GetResponse())}
	for _, ops := range []map[string]string{in.GetRequest().GetAdd(), in.GetRequest().GetSet()} { // set wins over add
		for _, name := range slices.Sorted(maps.Keys(ops)) {
			if strings.EqualFold(name, "host") || strings.EqualFold(name, ":authority") {
				h.authority = ops[name]
			}
		}
	}
	return h
}

func headerChange(in *networking.Headers_HeaderOperations) changes {
	var c changes
	option := func(ops map[string]string, action corev3.HeaderValueOption_HeaderAppendAction) {
		for _, name := range slices.Sorted(maps.Keys(ops)) {
			if !internal(name) {
				c.add = append(c.add, &corev3.HeaderValueOption{
					Header: &corev3.HeaderValue{Key: name, Value: ops[name]}, AppendAction: action,
				})
			}
		}
	}
	option(in.GetSet(), corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD)
	option(in.GetAdd(), corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD)
	for _, name := range in.GetRemove() {
		if !internal(name) {
			c.remove = append(c.remove, name)
		}
	}
	return c
}

// internal reports whether Envoy refuses to change a header.
func internal(name string) bool {
	return strings.HasPrefix(name, ":") || strings.EqualFold(name, "host")
}

func (h headers) applyTo(out *routev3.Route) {
	out.RequestHeadersToAdd = append(out.RequestHeadersToAdd, h.request.add...)
	out.RequestHeadersToRemove = append(out.RequestHeadersToRemove, h.request.remove...)
	out.ResponseHeadersToAdd = append(out.ResponseHeadersToAdd, h.response.add...)
	out.ResponseHeadersToRemove = append(out.ResponseHeadersToRemove, h.response.remove...)
}

const byStatus = "retriable-status-codes"

// retryPolicy translates retries (VSA-10); a nil policy has the defaults.
// Requests that consistent hashing binds to a host are tried there again.
func retryPolicy(in *networking.HTTPRetry, sticky bool) *routev3.RetryPolicy {
	out := &routev3.RetryPolicy{
		RetryOn:                       "connect-failure,refused-stream,unavailable,cancelled," + byStatus,
		NumRetries:                    wrapperspb.UInt32(2),
		HostSelectionRetryMaxAttempts: 5,
	}
	otherHosts := !sticky
	if in != nil {
		if in.GetAttempts() <= 0 {
			return nil
		}
		out.NumRetries = wrapperspb.UInt32(uint32(in.GetAttempts()))
		out.PerTryTimeout = in.GetPerTryTimeout()
		if in.GetRetryOn() != "" {
			out.RetryOn, out.RetriableStatusCodes = retryOn(in.GetRetryOn())
		}
		if in.GetRetryIgnorePreviousHosts() != nil {
			otherHosts = in.GetRetryIgnorePreviousHosts().GetValue()
		}
		if in.GetRetryRemoteLocalities().GetValue() {
			out.RetryPriority = &routev3.RetryPolicy_RetryPriority{
				Name: "envoy.retry_priorities.previous_priorities",
				ConfigType: &routev3.RetryPolicy_RetryPriority_TypedConfig{
					TypedConfig: piece.Any(&prioritiesv3.PreviousPrioritiesConfig{UpdateFrequency: 2}),
				},
			}
		}
		if in.GetBackoff() != nil {
			out.RetryBackOff = &routev3.RetryPolicy_RetryBackOff{BaseInterval: in.GetBackoff()}
		}
	}
	if otherHosts {
		out.RetryHostPredicate = []*routev3.RetryPolicy_RetryHostPredicate{{
			Name: "envoy.retry_host_predicates.previous_hosts",
			ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{
				TypedConfig: piece.Any(&hostsv3.PreviousHostsPredicate{}),
			},
		}}
	}
	return out
}

// retryOn splits conditions and status codes.
func retryOn(in string) (string, []uint32) {
	var on []string
	var codes []uint32
	for part := range strings.SplitSeq(in, ",") {
		part = strings.TrimSpace(part)
		if n, err := strconv.ParseUint(part, 10, 32); err == nil {
			if n >= 100 && n < 600 {
				codes = append(codes, uint32(n))
			}
		} else if part != "" {
			on = append(on, part)
		}
	}
	if len(codes) > 0 && !slices.Contains(on, byStatus) {
		on = append(on, byStatus)
	}
	return strings.Join(on, ","), codes
}

// fraction returns a percentage with four decimal places.
func fraction(p *networking.Percent) *typev3.FractionalPercent {
	share := min(max(p.GetValue(), 0), 100)
	return &typev3.FractionalPercent{Numerator: uint32(share * 10_000), Denominator: typev3.FractionalPercent_MILLION}
}

// fault returns the delays and aborts to inject (VSA-12); nil: none.
func (t *translation) fault(at string, in *networking.HTTPFaultInjection) *faultv3.HTTPFault {
	out := &faultv3.HTTPFault{}
	if d := in.GetDelay(); d != nil {
		share := d.GetPercentage()
		if share == nil {
			share = &networking.Percent{Value: float64(d.GetPercent())} //nolint:staticcheck // users still write it
		}
		if d.GetFixedDelay() != nil { // exponentialDelay has no effect
			out.Delay = &commonfaultv3.FaultDelay{
				Percentage:         fraction(share),
				FaultDelaySecifier: &commonfaultv3.FaultDelay_FixedDelay{FixedDelay: d.GetFixedDelay()},
			}
		}
	}
	if a := in.GetAbort(); a != nil {
		abort := &faultv3.FaultAbort{Percentage: fraction(a.GetPercentage())}
		switch e := a.GetErrorType().(type) {
		case *networking.HTTPFaultInjection_Abort_HttpStatus:
			abort.ErrorType = &faultv3.FaultAbort_HttpStatus{HttpStatus: uint32(e.HttpStatus)}
			out.Abort = abort
		case *networking.HTTPFaultInjection_Abort_GrpcStatus:
			if status, ok := grpcStatus(e.GrpcStatus); ok {
				abort.ErrorType = &faultv3.FaultAbort_GrpcStatus{GrpcStatus: status}
				out.Abort = abort
			} else {
				t.warn(at+".abort.grpcStatus", strconv.Quote(e.GrpcStatus)+" is no gRPC status", "write it like UNAVAILABLE", "nothing is aborted")
			}
		}
	}
	if out.Delay == nil && out.Abort == nil {
		return nil
	}
	return out
}

// grpcStatus reads the name or number of a status.
func grpcStatus(text string) (uint32, bool) {
	if n, err := strconv.ParseUint(text, 10, 32); err == nil {
		return uint32(n), true
	}
	n, ok := code.Code_value[strings.ToUpper(text)]
	return uint32(n), ok
}

// cors configures the answers to browsers' preflight requests (VSA-14).
func cors(in *networking.CorsPolicy) *corsv3.CorsPolicy {
	out := &corsv3.CorsPolicy{
		FilterEnabled: &corev3.RuntimeFractionalPercent{
			DefaultValue: &typev3.FractionalPercent{Numerator: 100, Denominator: typev3.FractionalPercent_HUNDRED},
		},
		AllowMethods:                 strings.Join(in.GetAllowMethods(), ","),
		AllowHeaders:                 strings.Join(in.GetAllowHeaders(), ","),
		ExposeHeaders:                strings.Join(in.GetExposeHeaders(), ","),
		AllowCredentials:             in.GetAllowCredentials(),
		ForwardNotMatchingPreflights: wrapperspb.Bool(in.GetUnmatchedPreflights() != networking.CorsPolicy_IGNORE),
	}
	for _, o := range in.GetAllowOrigins() {
		m := stringMatcher(o)
		if m == nil {
			m = &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: regex(".*")}}
		}
		out.AllowOriginStringMatch = append(out.AllowOriginStringMatch, m)
	}
	if len(in.GetAllowOrigins()) == 0 {
		for _, o := range in.GetAllowOrigin() { //nolint:staticcheck // users still write it
			out.AllowOriginStringMatch = append(out.AllowOriginStringMatch, exactly(o))
		}
	}
	if in.GetMaxAge() != nil {
		out.MaxAge = strconv.FormatInt(in.GetMaxAge().GetSeconds(), 10)
	}
	return out
}

// hashOf returns what requests to a destination are hashed by (VSA-15), from
// the policy that also balances its cluster; nil: they are not hashed.
func hashOf(mesh *meshconfig.MeshConfig, rule *networking.DestinationRule, subset string, port uint32) *networking.LoadBalancerSettings_ConsistentHashLB {
	if rule == nil {
		return nil
	}
	return traffic.Find(mesh, rule, subset, port).Balancer.GetConsistentHash()
}

// hashPolicy translates it; none if requests are not hashed.
func hashPolicy(in *networking.LoadBalancerSettings_ConsistentHashLB) []*routev3.RouteAction_HashPolicy {
	out := &routev3.RouteAction_HashPolicy{}
	switch k := in.GetHashKey().(type) {
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpHeaderName:
		out.PolicySpecifier = &routev3.RouteAction_HashPolicy_Header_{
			Header: &routev3.RouteAction_HashPolicy_Header{HeaderName: k.HttpHeaderName},
		}
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpCookie:
		cookie := &routev3.RouteAction_HashPolicy_Cookie{Name: k.HttpCookie.GetName(), Ttl: k.HttpCookie.GetTtl(), Path: k.HttpCookie.GetPath()}
		for _, a := range k.HttpCookie.GetAttributes() {
			cookie.Attributes = append(cookie.Attributes, &routev3.RouteAction_HashPolicy_CookieAttribute{Name: a.GetName(), Value: a.GetValue()})
		}
		out.PolicySpecifier = &routev3.RouteAction_HashPolicy_Cookie_{Cookie: cookie}
	case *networking.LoadBalancerSettings_ConsistentHashLB_UseSourceIp:
		out.PolicySpecifier = &routev3.RouteAction_HashPolicy_ConnectionProperties_{
			ConnectionProperties: &routev3.RouteAction_HashPolicy_ConnectionProperties{SourceIp: k.UseSourceIp},
		}
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpQueryParameterName:
		out.PolicySpecifier = &routev3.RouteAction_HashPolicy_QueryParameter_{
			QueryParameter: &routev3.RouteAction_HashPolicy_QueryParameter{Name: k.HttpQueryParameterName},
		}
	default:
		return nil
	}
	return []*routev3.RouteAction_HashPolicy{out}
}
