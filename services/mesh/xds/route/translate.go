package route

import (
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
)

// Mesh is the gateway that means all sidecars (VS-2).
const Mesh = "mesh"

// HTTP filters that routes configure. A connection manager must have them under
// these names.
const (
	FaultFilter = "envoy.filters.http.fault"
	CORSFilter  = "envoy.filters.http.cors"
)

// Options are the further inputs of Translate.
type Options struct {
	// Port of the listener.
	Port uint32
	// Gateway that requests arrive through: Mesh, or namespace/name.
	Gateway string
	// Sources are the selectors of sources that match the caller.
	Sources index.SelectorSet
	// Mesh returns the MeshConfig.
	Mesh func() *meshconfig.MeshConfig
	// GRPC: the client is a gRPC client, which reads timeouts from
	// max_stream_duration only.
	GRPC bool
	// Service returns the service of a host, or nil.
	Service func(host string) *index.Service
	// Rule returns the DestinationRule of a host, or nil.
	Rule func(host string) *networking.DestinationRule
	// ConnectionRule is Rule, or nil if the rule says nothing about connections.
	ConnectionRule func(host string) *networking.DestinationRule
	// Delegate returns the VirtualService that another one names (VS-4), or nil.
	Delegate func(namespace, name string) *networking.VirtualService
}

// Translate returns the routes of a VirtualService in order; none if it has none
// for this port, gateway and caller. The Diagnostics report what
// does not work as written.
func Translate(key ident.Key, vs *networking.VirtualService, o Options) ([]*routev3.Route, []problem.Diagnostic) {
	t := &translation{Options: o, key: key}
	for i, in := range vs.GetHttp() {
		at := field("spec.http", i)
		if in.GetDelegate() == nil {
			if t.add(at, in) {
				break
			}
			continue
		}
		if slices.ContainsFunc(t.delegated(at+".delegate", in), func(leaf *networking.HTTPRoute) bool { return t.add(at+".delegate", leaf) }) {
			break
		}
	}
	return t.routes, t.problems
}

// add adds the routes of in and reports whether they match every request, so
// that no later route counts (VSM-1).
func (t *translation) add(at string, in *networking.HTTPRoute) bool {
	matches := in.GetMatch()
	if len(matches) == 0 {
		matches = []*networking.HTTPMatchRequest{nil}
	}
	for j, m := range matches {
		if !t.Applies(m) {
			continue
		}
		out := t.route(at, field(at+".match", j), in, m)
		t.routes = append(t.routes, out)
		if catchesAll(out.GetMatch()) {
			return true
		}
	}
	return false
}

// translation is the state of one Translate.
type translation struct {
	Options
	key      ident.Key
	routes   []*routev3.Route
	problems []problem.Diagnostic
}

func field(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

func (t *translation) warn(at, reason, advice, effect string) {
	d := problem.Diagnostic{
		Severity: problem.Warning, Code: "route", Key: t.key, Field: at, Reason: reason, Advice: advice, Effect: effect,
	}
	if !slices.Contains(t.problems, d) {
		t.problems = append(t.problems, d)
	}
}

func (t *translation) route(at, matchAt string, in *networking.HTTPRoute, m *networking.HTTPMatchRequest) *routev3.Route {
	out := &routev3.Route{
		Name:       in.GetName(),
		Match:      t.match(matchAt, m),
		Metadata:   configMetadata(t.key),
		StatPrefix: m.GetStatPrefix(),
	}
	if m.GetName() != "" {
		out.Name += "." + m.GetName() // route.match (VSM-11)
	}
	h := headerChanges(in.GetHeaders())
	h.applyTo(out)
	switch {
	case in.GetRedirect() != nil:
		t.redirect(at+".redirect", out, in.GetRedirect())
	case in.GetDirectResponse() != nil:
		directResponse(out, in.GetDirectResponse())
	case len(in.GetRoute()) == 0:
		t.warn(at, "has neither route, redirect nor directResponse", "add one of them", "requests that match are answered with 503")
		unavailable(out)
	default:
		t.forward(at, out, in, h.authority)
	}
	out.Decorator = &routev3.Decorator{Operation: t.operation(out)}
	t.filters(at, out, in)
	return out
}

// operation names the route in traces (VSA-17).
func (t *translation) operation(r *routev3.Route) string {
	path := "/*"
	switch m := r.GetMatch().GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Prefix:
		path = m.Prefix + "*"
	case *routev3.RouteMatch_Path:
		path = m.Path
	case *routev3.RouteMatch_SafeRegex:
		path = m.SafeRegex.GetRegex()
	}
	if parts := strings.Split(r.GetRoute().GetCluster(), "|"); len(parts) == 4 { // its only destination
		return parts[3] + ":" + parts[1] + path
	}
	return t.key.Name + ":" + strconv.FormatUint(uint64(t.Port), 10) + path
}

// configMetadata names the object of a route (VSA-17).
func configMetadata(key ident.Key) *corev3.Metadata {
	config := "/apis/networking.istio.io/v1/namespaces/" + key.Namespace + "/virtual-service/" + key.Name
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		"istio": {Fields: map[string]*structpb.Value{"config": structpb.NewStringValue(config)}},
	}}
}

// filters configures HTTP filters for the route (VSA-12, VSA-14).
func (t *translation) filters(at string, out *routev3.Route, in *networking.HTTPRoute) {
	config := map[string]*anypb.Any{}
	if f := t.fault(at+".fault", in.GetFault()); f != nil {
		config[FaultFilter] = piece.Any(f)
	}
	if c := in.GetCorsPolicy(); c != nil {
		config[CORSFilter] = piece.Any(cors(c))
	}
	if s := t.session(at, in); s != nil {
		config[SessionFilter] = s
	}
	if len(config) > 0 {
		out.TypedPerFilterConfig = config
	}
}
