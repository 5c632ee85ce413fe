package validate

import (
	"regexp"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/envoyfilter"
	"meshlog.dev/services/mesh/problem"
)

// EnvoyFilter checks an EnvoyFilter (EF-1 to EF-8). What Envoy would refuse of the resources
// that a patch changes is found where they are made, because most patches are parts of
// messages (EF-9).
func EnvoyFilter(m proto.Message) []problem.Diagnostic {
	f := m.(*networking.EnvoyFilter)
	c := checker{kind: "EnvoyFilter"}
	c.labels(root.field("workloadSelector.labels"), f.GetWorkloadSelector().GetLabels())
	if s := f.GetWorkloadSelector(); s != nil && len(s.GetLabels()) == 0 {
		c.warnf(root.field("workloadSelector"), "name labels, or remove it", "has no labels: it selects all proxies of the namespace")
	}
	c.errorIf(f.GetWorkloadSelector() != nil && len(f.GetTargetRefs()) > 0, root.field("workloadSelector"), keepOne, "does not go with targetRefs")
	for i, t := range f.GetTargetRefs() {
		at := root.field("targetRefs").item(i)
		c.target(at, t)
		if t.GetKind() == "Service" || t.GetKind() == "ServiceEntry" {
			c.noEffect(true, at.field("kind"), t.GetKind())
		}
	}
	for i, p := range f.GetConfigPatches() {
		c.configPatch(root.field("configPatches").item(i), p)
	}
	return c.result()
}

func (c *checker) configPatch(at *fieldPath, p *networking.EnvoyFilter_EnvoyConfigObjectPatch) {
	to := p.GetApplyTo()
	c.applyTo(at.field("applyTo"), to)
	c.patchMatch(at.field("match"), p)
	c.noEffect(p.GetPatch().GetFilterClass() != networking.EnvoyFilter_Patch_UNSPECIFIED, at.field("patch.filterClass"))
	operation := p.GetPatch().GetOperation()
	op := at.field("patch.operation")
	switch _, known := networking.EnvoyFilter_Patch_Operation_name[int32(operation)]; {
	case operation == networking.EnvoyFilter_Patch_INVALID:
		c.errorf(op, "name an operation, such as MERGE", isMissing)
		return
	case !known:
		c.errorf(op, "name an operation, such as MERGE", "%d is not an operation", operation)
		return
	case len(envoyfilter.Operations(to)) > 0 && !envoyfilter.Works(to, operation):
		var names []string
		for _, o := range envoyfilter.Operations(to) {
			names = append(names, o.String())
		}
		c.add(problem.Warning, "no-effect", op, "use "+strings.Join(names, ", "), operation.String()+" does nothing to a "+to.String()+": the patch is ignored")
	}
	c.patchValue(at.field("patch.value"), to, p.GetPatch())
	c.patchFinds(at, p)
}

func (c *checker) applyTo(at *fieldPath, to envoyfilter.ApplyTo) {
	_, known := networking.EnvoyFilter_ApplyTo_name[int32(to)]
	const use = "use CLUSTER, LISTENER, FILTER_CHAIN, LISTENER_FILTER, NETWORK_FILTER, HTTP_FILTER, ROUTE_CONFIGURATION, VIRTUAL_HOST, HTTP_ROUTE or EXTENSION_CONFIG"
	c.errorIf(to == networking.EnvoyFilter_INVALID, at, use, isMissing)
	if !known {
		c.errorf(at, use, "%d is nothing that can be patched", to)
	}
	c.noEffect(to == networking.EnvoyFilter_BOOTSTRAP, at, to.String())
}

// patchValue checks that the value is the message that the patch is for.
func (c *checker) patchValue(at *fieldPath, to envoyfilter.ApplyTo, p *networking.EnvoyFilter_Patch) {
	removes := p.GetOperation() == networking.EnvoyFilter_Patch_REMOVE
	switch {
	case removes && p.GetValue() != nil:
		c.add(problem.Warning, "no-effect", at, "remove it", "REMOVE has no value: it is ignored")
		return
	case removes || len(envoyfilter.Operations(to)) == 0:
		return
	case p.GetValue() == nil:
		c.errorf(at, "write the part of the Envoy resource here", isMissing)
		return
	}
	m, unknown, err := envoyfilter.Value(to, p.GetValue())
	switch {
	case err != nil && strings.Contains(err.Error(), "unable to resolve"):
		c.errorf(at, "use a type of Envoy's v3 API as @type; for one that meshlog does not know, wrap it in type.googleapis.com/xds.type.v3.TypedStruct", "%v", err)
		return
	case err != nil:
		c.errorf(at, "see the message for "+to.String()+" in Envoy's API reference", "%v", err)
		return
	case unknown != nil:
		c.warnf(at, "correct the name of the field; meanwhile it is ignored", "%v", unknown)
	}
	if named, ok := m.(interface{ GetName() string }); ok && envoyfilter.Whole(to, p.GetOperation()) {
		c.errorIf(named.GetName() == "", at.field("name"), "name what is added", isMissing)
	}
	if e, ok := m.(*corev3.TypedExtensionConfig); ok {
		c.errorIf(e.GetTypedConfig() == nil, at.field("typed_config"), "write the configuration of the filter, with its @type", isMissing)
	}
}

// patchMatch checks what a patch matches.
func (c *checker) patchMatch(at *fieldPath, p *networking.EnvoyFilter_EnvoyConfigObjectPatch) {
	m, to := p.GetMatch(), p.GetApplyTo()
	if _, known := networking.EnvoyFilter_PatchContext_name[int32(m.GetContext())]; !known {
		c.errorf(at.field("context"), "use ANY, SIDECAR_INBOUND, SIDECAR_OUTBOUND or GATEWAY", "%d is not a context", m.GetContext())
	}
	waypoint := m.GetContext() == networking.EnvoyFilter_WAYPOINT
	c.noEffect(waypoint, at.field("context"), m.GetContext().String())
	c.noEffect(m.GetWaypoint() != nil, at.field("waypoint"))
	if v := m.GetProxy().GetProxyVersion(); v != "" {
		version := at.field("proxy.proxyVersion")
		if len(v) > envoyfilter.MaxVersion {
			c.errorf(version, "write a shorter expression", "has %d characters, more than %d", len(v), envoyfilter.MaxVersion)
		} else if _, err := regexp.Compile(v); err != nil {
			c.errorf(version, useRE2, "%v", err)
		}
	}
	const matching = "match what the patch is for"
	l, r, cl := m.GetListener(), m.GetRouteConfiguration(), m.GetCluster()
	c.errorIf(l != nil && (envoyfilter.OfRoutes(to) || to == networking.EnvoyFilter_CLUSTER), at.field("listener"), matching, "does not go with applyTo "+to.String())
	c.errorIf(r != nil && (envoyfilter.OfListener(to) || to == networking.EnvoyFilter_CLUSTER), at.field("routeConfiguration"), matching, "does not go with applyTo "+to.String())
	c.errorIf(cl != nil && (envoyfilter.OfListener(to) || envoyfilter.OfRoutes(to)), at.field("cluster"), matching, "does not go with applyTo "+to.String())
	c.noEffect(l.GetPortName() != "", at.field("listener.portName"))
	c.filterMatch(at.field("listener.filterChain.filter"), to, l.GetFilterChain().GetFilter())
	if cl.GetService() != "" && cl.GetName() == "" && m.GetContext() == networking.EnvoyFilter_SIDECAR_INBOUND {
		c.add(problem.Warning, "no-effect", at.field("cluster.service"), "match portNumber, the port of the workload", "clusters of the own workload are named by its ports only: the patch matches none")
	}
}

func (c *checker) filterMatch(at *fieldPath, to envoyfilter.ApplyTo, f *networking.EnvoyFilter_ListenerMatch_FilterMatch) {
	if f == nil {
		return
	}
	c.errorIf(f.GetName() == "", at.field("name"), "name the filter", isMissing)
	sub := at.field("subFilter")
	switch {
	case f.GetSubFilter() == nil:
	case to != networking.EnvoyFilter_HTTP_FILTER:
		c.errorf(sub, "remove it, or patch an HTTP_FILTER", "goes with applyTo HTTP_FILTER only")
	case f.GetName() != "" && f.GetName() != envoyfilter.ConnectionManager:
		c.errorf(sub, "match filter "+envoyfilter.ConnectionManager, "%q has no HTTP filters", f.GetName())
	default:
		c.errorIf(f.GetSubFilter().GetName() == "", sub.field("name"), "name the HTTP filter", isMissing)
	}
	if to == networking.EnvoyFilter_LISTENER || to == networking.EnvoyFilter_FILTER_CHAIN || to == networking.EnvoyFilter_LISTENER_FILTER {
		c.add(problem.Warning, "no-effect", at, "remove it", "a "+to.String()+" is not found by its filters: it is ignored")
	}
}

// patchFinds warns of a match that the operation needs and does not have, or does not look at.
func (c *checker) patchFinds(at *fieldPath, p *networking.EnvoyFilter_EnvoyConfigObjectPatch) {
	to, m := p.GetApplyTo(), p.GetMatch()
	switch p.GetPatch().GetOperation() {
	case networking.EnvoyFilter_Patch_REMOVE, networking.EnvoyFilter_Patch_REPLACE:
		if envoyfilter.InList(to) && !envoyfilter.NamesFilter(to, m) {
			c.add(problem.Warning, "no-effect", at.field("match"), "match the filter by its name", "names no filter: the patch is ignored")
		}
	case networking.EnvoyFilter_Patch_ADD:
		if envoyfilter.Whole(to, p.GetPatch().GetOperation()) && m.GetObjectTypes() != nil {
			c.add(problem.Warning, "no-effect", at.field("match"), "keep context and proxy only", "what is added is matched with nothing: the match of a resource is ignored")
		}
	}
}
