package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	networkauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/ext_authz/v3"
	networkv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds/authz"
)

// The names under which RBAC filters write metadata.
const (
	httpRBAC    = "envoy.filters.http.rbac"
	networkRBAC = "envoy.filters.network.rbac"
)

// checkTimeout is how long a request waits for its authorizer if the provider does not
// say, as in Istio.
const checkTimeout = 10 * time.Minute

type (
	httpAuthorizer = meshconfig.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationHttpProvider
	grpcAuthorizer = meshconfig.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationGrpcProvider
	checkedBody    = meshconfig.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationRequestBody
)

// customHTTP returns the filter that asks the authorizer of CUSTOM policies about the
// requests that match has marked. If they have no authorizer that proxies can ask, it
// refuses what match marks, whatever failOpen says (AZ-9). nil: there is no CUSTOM
// policy.
func customHTTP(r *index.Reader, policies []world.Object, match *httpv3.RBAC, from caller) (proto.Message, []problem.Diagnostic) {
	if match == nil {
		return nil, nil
	}
	a, ds := authorizerOf(r, policies, from)
	switch {
	case a == nil:
		return &httpv3.RBAC{Rules: match.GetShadowRules()}, withEffect(ds, "requests that the policy matches are answered with 403")
	case a.http != nil:
		return a.overHTTP(), nil
	}
	return a.overGRPC(), nil
}

// customTCP is customHTTP for connections. Only an authorizer of gRPC can be asked about
// them.
func customTCP(r *index.Reader, policies []world.Object, match *networkv3.RBAC, from caller) (proto.Message, []problem.Diagnostic) {
	if match == nil {
		return nil, nil
	}
	a, ds := authorizerOf(r, policies, from)
	if a != nil && a.http != nil {
		a, ds = nil, complain(customPolicies(policies),
			fmt.Sprintf("the provider %q is asked by HTTP, so it cannot decide about connections of TCP", a.name),
			"use a provider of kind envoyExtAuthzGrpc, or select workloads whose ports are HTTP")
	}
	if a == nil {
		refuse := &networkv3.RBAC{Rules: match.GetShadowRules(), StatPrefix: match.GetStatPrefix()}
		return refuse, withEffect(ds, "connections that the policy matches are closed")
	}
	return &networkauthzv3.ExtAuthz{
		StatPrefix: match.GetStatPrefix(), GrpcService: a.service(), FailureModeAllow: a.grpc.GetFailOpen(),
		FilterEnabledMetadata: matchedBy(networkRBAC), TransportApiVersion: corev3.ApiVersion_V3,
	}, nil
}

// caller is what proxies that ask an authorizer have in common.
type caller struct {
	services index.Scope // in which they see services: Services or Imports
	router   bool
}

// sees names the proxies for people.
func (c caller) sees() string {
	switch {
	case c.services.Imports != "":
		_, home, _ := strings.Cut(c.services.Imports, " ")
		return "namespace " + home
	case c.services.Services == "":
		return "all namespaces"
	}
	return "namespace " + c.services.Services
}

// authorizer is an external authorizer as proxies can ask it.
type authorizer struct {
	name    string
	host    string
	cluster string
	// One of them is set.
	http *httpAuthorizer
	grpc *grpcAuthorizer
}

// overHTTP returns the filter that asks by HTTP.
func (a *authorizer) overHTTP() *extauthzv3.ExtAuthz {
	h := a.http
	service := &extauthzv3.HttpService{
		ServerUri: &corev3.HttpUri{
			Uri: "http://" + a.host, HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: a.cluster}, Timeout: timeoutOf(h.GetTimeout()),
		},
		PathPrefix:            h.GetPathPrefix(),
		AuthorizationResponse: answered(h),
	}
	if extra := h.GetIncludeAdditionalHeadersInCheck(); len(extra) > 0 {
		service.AuthorizationRequest = &extauthzv3.AuthorizationRequest{}
		for _, name := range slices.Sorted(maps.Keys(extra)) {
			service.AuthorizationRequest.HeadersToAdd = append(service.AuthorizationRequest.HeadersToAdd, &corev3.HeaderValue{Key: name, Value: extra[name]})
		}
	}
	f := filterFor(h)
	f.Services = &extauthzv3.ExtAuthz_HttpService{HttpService: service}
	told := h.GetIncludeRequestHeadersInCheck()
	if len(told) == 0 {
		told = h.GetIncludeHeadersInCheck() //nolint:staticcheck // deprecated, and still in use
	}
	f.AllowedHeaders = headers(told)
	return f
}

// answered returns which headers of an answer count.
func answered(h *httpAuthorizer) *extauthzv3.AuthorizationResponse {
	r := &extauthzv3.AuthorizationResponse{
		AllowedUpstreamHeaders:        headers(h.GetHeadersToUpstreamOnAllow()),
		AllowedClientHeaders:          headers(h.GetHeadersToDownstreamOnDeny()),
		AllowedClientHeadersOnSuccess: headers(h.GetHeadersToDownstreamOnAllow()),
	}
	if proto.Equal(r, new(extauthzv3.AuthorizationResponse)) {
		return nil
	}
	return r
}

// overGRPC returns the filter that asks by gRPC.
func (a *authorizer) overGRPC() *extauthzv3.ExtAuthz {
	f := filterFor(a.grpc)
	f.Services = &extauthzv3.ExtAuthz_GrpcService{GrpcService: a.service()}
	return f
}

// service returns where an authorizer is asked by gRPC. Its host is the authority:
// Envoy's default is the cluster's name, whose bars servers refuse.
func (a *authorizer) service() *corev3.GrpcService {
	return &corev3.GrpcService{
		TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: a.cluster, Authority: a.host}},
		Timeout:         timeoutOf(a.grpc.GetTimeout()),
	}
}

func timeoutOf(d *durationpb.Duration) *durationpb.Duration {
	return cmp.Or(d, durationpb.New(checkTimeout))
}

// filterFor returns the settings that both kinds of authorizers have.
func filterFor(a interface {
	GetFailOpen() bool
	GetClearRouteCache() bool
	GetStatusOnError() string
	GetIncludeRequestBodyInCheck() *checkedBody
},
) *extauthzv3.ExtAuthz {
	f := &extauthzv3.ExtAuthz{
		TransportApiVersion: corev3.ApiVersion_V3, FailureModeAllow: a.GetFailOpen(), ClearRouteCache: a.GetClearRouteCache(),
		FilterEnabledMetadata: matchedBy(httpRBAC),
	}
	if code, ok := validate.StatusOnError(a.GetStatusOnError()); ok { // Envoy's default is 403
		f.StatusOnError = &typev3.HttpStatus{Code: code}
	}
	if b := a.GetIncludeRequestBodyInCheck(); b != nil {
		f.WithRequestBody = &extauthzv3.BufferSettings{
			MaxRequestBytes: b.GetMaxRequestBytes(), AllowPartialMessage: b.GetAllowPartialMessage(), PackAsBytes: b.GetPackAsBytes(),
		}
	}
	return f
}

// matchedBy matches what the shadow rules of CUSTOM policies match, as the RBAC filter
// of that name writes it.
func matchedBy(filter string) *matcherv3.MetadataMatcher {
	return &matcherv3.MetadataMatcher{
		Filter: filter,
		Path: []*matcherv3.MetadataMatcher_PathSegment{{
			Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: authz.CustomPrefix + "shadow_engine_result"},
		}},
		Value: &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_Exact{Exact: "denied"},
		}}},
	}
}

// headers returns a match for names of headers, each with a star at one end at most;
// nil: there are none.
func headers(patterns []string) *matcherv3.ListStringMatcher {
	if len(patterns) == 0 {
		return nil
	}
	list := &matcherv3.ListStringMatcher{}
	for _, p := range patterns {
		m := &matcherv3.StringMatcher{IgnoreCase: true, MatchPattern: &matcherv3.StringMatcher_Exact{Exact: p}}
		if suffix, ok := strings.CutPrefix(p, "*"); ok {
			m.MatchPattern = &matcherv3.StringMatcher_Suffix{Suffix: suffix}
		} else if prefix, ok := strings.CutSuffix(p, "*"); ok {
			m.MatchPattern = &matcherv3.StringMatcher_Prefix{Prefix: prefix}
		}
		list.Patterns = append(list.Patterns, m)
	}
	return list
}
