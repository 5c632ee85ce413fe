package patch

import (
	"slices"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/envoyfilter"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
)

const (
	connectionManager = envoyfilter.ConnectionManager
	routerFilter      = "envoy.filters.http.router"
	tcpProxy          = "envoy.filters.network.tcp_proxy"

	// policySlots begins the names of the filters with which policies are enforced, for
	// requests and for connections; domainsFilter is the one that looks at the trust domain.
	policySlots   = "meshlog.authz."
	domainsFilter = "meshlog.trust-domains"
)

func cloned[T proto.Message](m T) T { return proto.Clone(m).(T) }

// filter is a filter in a list of a listener, a filter chain or a connection manager.
type filter interface {
	proto.Message
	GetName() string
	GetTypedConfig() *anypb.Any
}

// patchList applies a patch to a list of filters; name is that of the filter that it matches,
// or empty. No patch of a namespace that may not change what policies decide puts a filter
// among the first filters up to floor, which enforce them: it comes behind these (POL-17).
func patchList[F filter](w *work, p *index.Patch, list []F, name string, floor int) []F {
	find := func() int { return slices.IndexFunc(list, func(f F) bool { return f.GetName() == name }) }
	switch p.Operation {
	case networking.EnvoyFilter_Patch_MERGE, networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST:
		for _, f := range list {
			if name == "" || f.GetName() == name {
				w.mergeFilter(p, f, name != "")
			}
		}
	case networking.EnvoyFilter_Patch_REMOVE:
		if name != "" {
			n := len(list)
			if list = slices.DeleteFunc(slices.Clone(list), func(f F) bool { return f.GetName() == name }); len(list) < n {
				w.done(p)
			}
		}
	case networking.EnvoyFilter_Patch_REPLACE:
		if i := find(); name != "" && i >= 0 {
			w.done(p)
			list = slices.Clone(list)
			list[i] = value[F](p)
		}
	default:
		first := p.Operation == networking.EnvoyFilter_Patch_INSERT_FIRST
		at := place(p.Operation, len(list), name != "" && !first, find)
		if at < 0 {
			return list
		}
		w.done(p)
		if at < floor && !p.Privileged {
			at = floor
			w.note(p, problem.Warning, "touches-policies", "patch.operation",
				"the filter would come before those that enforce policies, where only EnvoyFilters of the root namespace and of those in rawResources of the MeshPolicy may put one",
				"insert it before "+routerFilter+", or add the namespace to rawResources of the MeshPolicy", "the filter comes directly behind policies")
		}
		list = slices.Insert(slices.Clone(list), at, value[F](p))
	}
	return list
}

// mergeFilter merges a patch into a filter, its configuration as a message. A filter with a
// configuration of another type is left alone; if the patch names the filter, that is
// reported.
func (w *work) mergeFilter(p *index.Patch, f filter, named bool) {
	v := p.Value.(filter)
	if is, want := f.GetTypedConfig().GetTypeUrl(), v.GetTypedConfig().GetTypeUrl(); v.GetTypedConfig() != nil && is != want {
		if named {
			w.done(p)
			reason := "the filter has a configuration of type " + is + ", the patch one of type " + want
			if is == "" {
				reason = "the filter gets its configuration from elsewhere, the patch has one of type " + want
			}
			w.note(p, problem.Warning, "patch", "patch.value.typed_config", reason, "write the type of the filter, or use REPLACE", "the filter stays as it is")
		}
		return
	}
	w.done(p)
	merge(f, p)
}

// manager patches the HTTP filters of a connection manager, and the routes that are in it.
func (w *work) manager(c *listenerv3.FilterChain, f *listenerv3.Filter, port uint32) {
	var patches []*index.Patch
	for _, p := range w.of(networking.EnvoyFilter_HTTP_FILTER) {
		of := p.Match.GetListener().GetFilterChain().GetFilter()
		if w.listenerMatch(port, p) && w.chainMatch(c, p) && (of.GetName() == "" || of.GetName() == f.GetName()) {
			patches = append(patches, p)
		}
	}
	routed := slices.ContainsFunc(w.patches, func(p *index.Patch) bool { return envoyfilter.OfRoutes(p.ApplyTo) })
	m := new(hcmv3.HttpConnectionManager)
	if len(patches) == 0 && !routed || f.GetTypedConfig().UnmarshalTo(m) != nil {
		return
	}
	before := len(w.applied)
	each := func(now func(*index.Patch) bool) { // as in Istio, filters that patches insert are merged too
		for _, p := range patches {
			if now(p) {
				name := p.Match.GetListener().GetFilterChain().GetFilter().GetSubFilter().GetName()
				m.HttpFilters = patchList(w, p, m.GetHttpFilters(), name, w.slots(m.GetHttpFilters()))
			}
		}
	}
	each(func(p *index.Patch) bool { return !merges(p) })
	each(merges)
	if m.GetRouteConfig() != nil && routed {
		w.routes(m.GetRouteConfig(), m.GetRouteConfig().GetName())
	}
	if len(patches) > 0 || len(w.applied) > before || routed {
		f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: piece.Any(m)}
	}
}

// slots returns how many HTTP filters there are up to the last one that enforces policies.
func (w *work) slots(filters []*hcmv3.HttpFilter) int {
	for i, f := range slices.Backward(filters) {
		if strings.HasPrefix(f.GetName(), policySlots) {
			return i + 1
		}
	}
	return 0
}

// deciding returns how many network filters there are up to the last one that enforces
// policies for connections.
func (w *work) deciding(filters []*listenerv3.Filter) int {
	for i, f := range slices.Backward(filters) {
		if decides(f) {
			return i + 1
		}
	}
	return 0
}

func decides(f *listenerv3.Filter) bool {
	return strings.HasPrefix(f.GetName(), policySlots) || f.GetName() == domainsFilter
}
