package route

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	networking "istio.io/api/networking/v1alpha3"
)

// delegated returns the routes of the VirtualService that a route delegates to,
// restricted to the requests that the root delegates (VS-4).
func (t *translation) delegated(at string, root *networking.HTTPRoute) []*networking.HTTPRoute {
	namespace := cmp.Or(root.GetDelegate().GetNamespace(), t.key.Namespace)
	name := root.GetDelegate().GetName()
	const effect = "the route is left out"
	vs := t.Delegate(namespace, name)
	switch {
	case vs == nil:
		t.warn(at, "there is no VirtualService "+namespace+"/"+name, "correct the name, or add it", effect)
		return nil
	case len(vs.GetHosts()) > 0:
		t.warn(at, "VirtualService "+namespace+"/"+name+" has hosts of its own", "delegate to one without hosts", effect)
		return nil
	case !t.exported(vs, namespace):
		t.warn(at, "VirtualService "+namespace+"/"+name+" is not exported to "+t.key.Namespace, "add the namespace to its exportTo", effect)
		return nil
	}
	var all []*networking.HTTPRoute
	for i, leaf := range vs.GetHttp() {
		merged, ok := t.mergeRoutes(root, leaf)
		switch {
		case leaf.GetDelegate() != nil:
			t.warn(at, "VirtualService "+namespace+"/"+name+" delegates too", "delegate once only", "its route is left out")
		case !ok:
			t.warn(at, field("spec.http", i)+".match of VirtualService "+namespace+"/"+name+" matches requests that the root does not hand over",
				"match a part of what the root matches; where both match one thing, neither may do it by regex", "its route is left out")
		case merged != nil:
			all = append(all, merged)
		}
	}
	return all
}

// exported reports whether the root's namespace may see a delegate.
func (t *translation) exported(vs *networking.VirtualService, namespace string) bool {
	to := vs.GetExportTo()
	if len(to) == 0 {
		to = t.Mesh().GetDefaultVirtualServiceExportTo()
	}
	return slices.Contains(to, "*") || slices.Contains(to, t.key.Namespace) ||
		namespace == t.key.Namespace && !slices.Contains(to, "~")
}

// mergeRoutes returns leaf with the fields that only the root sets; nil: no
// request of this caller reaches both. It reports false if no request of any
// caller does.
func (t *translation) mergeRoutes(root, leaf *networking.HTTPRoute) (*networking.HTTPRoute, bool) {
	matches, ok := t.mergeMatches(root.GetMatch(), leaf.GetMatch())
	if !ok {
		return nil, false
	}
	if len(matches) == 0 && len(root.GetMatch())+len(leaf.GetMatch()) > 0 {
		return nil, true
	}
	out := proto.Clone(leaf).(*networking.HTTPRoute)
	inherit(out, root, "delegate", "route", "redirect")
	out.Match, out.Name = matches, joinNames(root.GetName(), leaf.GetName())
	return out, true
}

// inherit sets the fields of leaf that only root sets, except the named ones.
func inherit(leaf, root proto.Message, except ...protoreflect.Name) {
	out := leaf.ProtoReflect()
	root.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if !out.Has(field) && !slices.Contains(except, field.Name()) {
			out.Set(field, v)
		}
		return true
	})
}

func joinNames(root, leaf string) string {
	if root == "" || leaf == "" {
		return root + leaf
	}
	return root + "-" + leaf
}

// mergeMatches returns the matches of leaf that lie within one of root's and
// whose conditions on the caller hold in both. It reports false if one of leaf's
// lies within none.
func (t *translation) mergeMatches(root, leaf []*networking.HTTPMatchRequest) ([]*networking.HTTPMatchRequest, bool) {
	if len(root) == 0 {
		return leaf, true
	}
	if len(leaf) == 0 {
		return root, true
	}
	var all []*networking.HTTPMatchRequest
	for _, l := range leaf {
		meets := false
		for _, r := range root {
			if !within(r, l) {
				continue
			}
			meets = true
			m := mergeMatch(r, l)
			if len(m.GetGateways()) > 0 || t.comesFrom(r) && t.comesFrom(l) {
				all = append(all, m)
			}
		}
		if !meets {
			return nil, false
		}
	}
	return all, true
}

// mergeMatch returns leaf with the conditions that only root sets. It has no
// conditions on the caller: a class knows those of each match, and not those of
// two together, so mergeMatches decides them one by one.
func mergeMatch(root, leaf *networking.HTTPMatchRequest) *networking.HTTPMatchRequest {
	out := proto.Clone(leaf).(*networking.HTTPMatchRequest)
	inherit(out, root)
	out.Name = joinNames(root.GetName(), leaf.GetName())
	out.Headers = union(root.GetHeaders(), leaf.GetHeaders())
	out.WithoutHeaders = union(root.GetWithoutHeaders(), leaf.GetWithoutHeaders())
	out.QueryParams = union(root.GetQueryParams(), leaf.GetQueryParams())
	out.SourceLabels, out.SourceNamespace = nil, ""
	return out
}

// union returns the entries of leaf, and those that only root has.
func union[V any](root, leaf map[string]V) map[string]V {
	if len(root) == 0 {
		return leaf
	}
	all := maps.Clone(root)
	maps.Copy(all, leaf)
	return all
}

// within reports whether leaf narrows root and contradicts it nowhere.
func within(root, leaf *networking.HTTPMatchRequest) bool {
	same := func(a, b string) bool { return a == "" || b == "" || a == b }
	labels := true
	for k, v := range leaf.GetSourceLabels() {
		if have, ok := root.GetSourceLabels()[k]; ok && have != v {
			labels = false
		}
	}
	return narrows(root.GetUri(), leaf.GetUri()) && narrows(root.GetScheme(), leaf.GetScheme()) &&
		narrows(root.GetMethod(), leaf.GetMethod()) && narrows(root.GetAuthority(), leaf.GetAuthority()) &&
		narrowsAll(root.GetHeaders(), leaf.GetHeaders()) &&
		narrowsAll(root.GetWithoutHeaders(), leaf.GetWithoutHeaders()) &&
		narrowsAll(root.GetQueryParams(), leaf.GetQueryParams()) &&
		root.GetIgnoreUriCase() == leaf.GetIgnoreUriCase() &&
		(root.GetPort() == 0 || leaf.GetPort() == 0 || root.GetPort() == leaf.GetPort()) &&
		same(root.GetSourceNamespace(), leaf.GetSourceNamespace()) && labels &&
		(len(root.GetGateways()) == 0 || !slices.ContainsFunc(leaf.GetGateways(), func(g string) bool { return !slices.Contains(root.GetGateways(), g) }))
}

func narrowsAll(root, leaf map[string]*networking.StringMatch) bool {
	for k, l := range leaf {
		if r, ok := root[k]; ok && !narrows(r, l) {
			return false
		}
	}
	return true
}

// narrows reports whether root matches every text that leaf matches. A match
// that one of them leaves open is no contradiction. Regexes cannot be compared,
// so only one of the two may have one.
func narrows(root, leaf *networking.StringMatch) bool {
	if root.GetMatchType() == nil || leaf.GetMatchType() == nil {
		return true
	}
	switch r := root.GetMatchType().(type) {
	case *networking.StringMatch_Exact:
		l, ok := leaf.GetMatchType().(*networking.StringMatch_Exact)
		return ok && l.Exact == r.Exact
	case *networking.StringMatch_Prefix:
		switch l := leaf.GetMatchType().(type) {
		case *networking.StringMatch_Exact:
			return strings.HasPrefix(l.Exact, r.Prefix)
		case *networking.StringMatch_Prefix:
			return strings.HasPrefix(l.Prefix, r.Prefix)
		}
	}
	return false
}
