// Package envoyfilter reads the patches of EnvoyFilters: which message of Envoy's API a
// patch is for, and which operations do something to it (EF-1, EF-2).
//
// It is pure.
package envoyfilter

import (
	"fmt"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/anytype"
)

type (
	// ApplyTo is what a patch is for.
	ApplyTo = networking.EnvoyFilter_ApplyTo
	// Operation is what a patch does.
	Operation = networking.EnvoyFilter_Patch_Operation
)

// MaxVersion is the greatest length of the expression for versions of proxies, and of a
// version that one matches (EF-4).
const MaxVersion = 1024

// ConnectionManager is the name of the network filter that reads requests.
const ConnectionManager = "envoy.filters.network.http_connection_manager"

const (
	merge       = networking.EnvoyFilter_Patch_MERGE
	replaceList = networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST
	add         = networking.EnvoyFilter_Patch_ADD
	remove      = networking.EnvoyFilter_Patch_REMOVE
	before      = networking.EnvoyFilter_Patch_INSERT_BEFORE
	after       = networking.EnvoyFilter_Patch_INSERT_AFTER
	first       = networking.EnvoyFilter_Patch_INSERT_FIRST
	replace     = networking.EnvoyFilter_Patch_REPLACE
)

// target says what the patches of an applyTo may hold: the type of their values, and the
// operations.
type target struct {
	message    func() proto.Message
	operations []Operation
}

var inList = []Operation{merge, replaceList, add, remove, before, after, first, replace}

var targets = map[ApplyTo]target{
	networking.EnvoyFilter_LISTENER: {
		func() proto.Message { return new(listenerv3.Listener) },
		[]Operation{merge, replaceList, add, remove},
	},
	networking.EnvoyFilter_FILTER_CHAIN: {
		func() proto.Message { return new(listenerv3.FilterChain) },
		[]Operation{merge, replaceList, add, remove},
	},
	networking.EnvoyFilter_LISTENER_FILTER: {func() proto.Message { return new(listenerv3.ListenerFilter) }, inList},
	networking.EnvoyFilter_NETWORK_FILTER:  {func() proto.Message { return new(listenerv3.Filter) }, inList},
	networking.EnvoyFilter_HTTP_FILTER:     {func() proto.Message { return new(hcmv3.HttpFilter) }, inList},
	networking.EnvoyFilter_ROUTE_CONFIGURATION: {
		func() proto.Message { return new(routev3.RouteConfiguration) },
		[]Operation{merge, replaceList},
	},
	networking.EnvoyFilter_VIRTUAL_HOST: {
		func() proto.Message { return new(routev3.VirtualHost) },
		[]Operation{merge, replaceList, add, remove, replace},
	},
	networking.EnvoyFilter_HTTP_ROUTE: {
		func() proto.Message { return new(routev3.Route) },
		[]Operation{merge, replaceList, add, remove, before, after, first},
	},
	networking.EnvoyFilter_CLUSTER: {
		func() proto.Message { return new(clusterv3.Cluster) },
		[]Operation{merge, replaceList, add, remove},
	},
	networking.EnvoyFilter_EXTENSION_CONFIG: {
		func() proto.Message { return new(corev3.TypedExtensionConfig) },
		[]Operation{add},
	},
}

// Operations returns the operations that do something to what a patch is for.
func Operations(to ApplyTo) []Operation { return targets[to].operations }

// Works reports whether an operation does something to what a patch is for.
func Works(to ApplyTo, o Operation) bool { return slices.Contains(targets[to].operations, o) }

// InList reports whether a patch is for a filter in a list, which REMOVE, REPLACE and the
// INSERT operations find by its name.
func InList(to ApplyTo) bool {
	switch to {
	case networking.EnvoyFilter_LISTENER_FILTER, networking.EnvoyFilter_NETWORK_FILTER, networking.EnvoyFilter_HTTP_FILTER:
		return true
	}
	return false
}

// OfListener reports whether a patch is for a Listener or for something in it.
func OfListener(to ApplyTo) bool {
	return InList(to) || to == networking.EnvoyFilter_LISTENER || to == networking.EnvoyFilter_FILTER_CHAIN
}

// OfRoutes reports whether a patch is for a RouteConfiguration or for something in it.
func OfRoutes(to ApplyTo) bool {
	switch to {
	case networking.EnvoyFilter_ROUTE_CONFIGURATION, networking.EnvoyFilter_VIRTUAL_HOST, networking.EnvoyFilter_HTTP_ROUTE:
		return true
	}
	return false
}

// Whole reports whether a patch adds a resource: no match for resources counts.
func Whole(to ApplyTo, o Operation) bool {
	return o == add && (to == networking.EnvoyFilter_LISTENER || to == networking.EnvoyFilter_CLUSTER || to == networking.EnvoyFilter_EXTENSION_CONFIG)
}

// Value reads the value of a patch as the message that it is for. Of a value with fields that
// the message does not have, unknown names the first; they are left out.
func Value(to ApplyTo, value *structpb.Struct) (m proto.Message, unknown, err error) {
	t, ok := targets[to]
	if !ok {
		return nil, nil, fmt.Errorf("applyTo %s has no value", to)
	}
	b, err := protojson.Marshal(value)
	if err != nil {
		return nil, nil, plain(err)
	}
	m = t.message()
	unknown = protojson.UnmarshalOptions{Resolver: anytype.Types}.Unmarshal(b, m)
	if unknown == nil {
		return m, nil, nil
	}
	m = t.message()
	if err := (protojson.UnmarshalOptions{Resolver: anytype.Types, DiscardUnknown: true}).Unmarshal(b, m); err != nil {
		return nil, nil, plain(err)
	}
	return m, plain(unknown), nil
}

// plain returns an error of protojson without the position in a text that nobody has seen,
// and without its no-break spaces.
func plain(err error) error {
	s := strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto: ")
	if at, rest, ok := strings.Cut(s, ": "); ok && strings.Contains(at, "(line ") {
		s = rest
	}
	return fmt.Errorf("%s", s)
}

// NamesFilter reports whether a match names the filter that a patch in a list is for.
func NamesFilter(to ApplyTo, m *networking.EnvoyFilter_EnvoyConfigObjectMatch) bool {
	f := m.GetListener().GetFilterChain().GetFilter()
	switch to {
	case networking.EnvoyFilter_LISTENER_FILTER:
		return m.GetListener().GetListenerFilter() != ""
	case networking.EnvoyFilter_NETWORK_FILTER:
		return f != nil
	case networking.EnvoyFilter_HTTP_FILTER:
		return f.GetSubFilter() != nil
	}
	return false
}
