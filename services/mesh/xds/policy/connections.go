package policy

import (
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/authz"
	"meshlog.dev/services/mesh/xds/callee"
	"meshlog.dev/services/mesh/xds/piece"
)

// Connections are the AuthorizationPolicies that hold for the connections of a class that
// carry no requests. The zero value holds for none.
type Connections struct {
	selected       index.SelectorSet
	principalNames bool // as in index.LDSClass
	from           callee.Caller
}

// OfConnections returns the policies of a class.
func OfConnections(class index.LDSClass) Connections {
	if class.Policies == "" {
		return Connections{}
	}
	return Connections{class.Policies, class.PrincipalNames, callee.From(class.Scope.Services, class.Scope.Imports, class.Client == index.ClientRouter)}
}

// Filters returns the network filters that enforce the policies, in the order in which
// they run; none without policies. They are in the listener, so a connection that stands
// keeps the policies that it began with until its chain has drained (POL-3).
func (c Connections) Filters(r *index.Reader) ([]*listenerv3.Filter, []problem.Diagnostic) {
	if c.selected == "" {
		return nil, nil
	}
	policies := authorization(read(r, c.selected))
	all := authz.ForTCP(policies, options(r, c.principalNames))
	var filters []*listenerv3.Filter
	add := func(name string, f proto.Message) {
		filters = append(filters, &listenerv3.Filter{Name: name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: piece.Any(f)}})
	}
	custom, problems := customTCP(r, policies, all.Custom, c.from)
	if custom != nil {
		add(CustomMatch, all.Custom)
		add(Custom, custom)
	}
	if all.Audit != nil {
		add(Audit, all.Audit)
	}
	if all.Deny != nil {
		add(Deny, all.Deny)
	}
	if all.Allow != nil {
		add(Allow, all.Allow)
	}
	return filters, problems
}
