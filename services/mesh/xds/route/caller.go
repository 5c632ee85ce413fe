package route

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/xds/gateway"
)

// HostIndex finds the VirtualService that decides about a host.
type HostIndex struct {
	exact     map[string]*index.VirtualServiceHead // by lower-case host
	wildcards []string                             // the most specific first
}

// NewHostIndex returns the index of VirtualServices. Of several for one host
// the first counts: Readers return the oldest first (VS-5).
func NewHostIndex(heads []*index.VirtualServiceHead) *HostIndex {
	x := &HostIndex{exact: make(map[string]*index.VirtualServiceHead, len(heads))}
	for _, vs := range heads {
		for _, host := range vs.Hosts {
			host = strings.ToLower(host)
			if x.exact[host] != nil {
				continue
			}
			x.exact[host] = vs
			if isWildcard(host) {
				x.wildcards = append(x.wildcards, host)
			}
		}
	}
	slices.SortFunc(x.wildcards, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	return x
}

// Of returns the VirtualService of a host, else that of the longest wildcard
// (VS-1); nil: none.
func (x *HostIndex) Of(host string) *index.VirtualServiceHead {
	host = strings.ToLower(host)
	if vs := x.exact[host]; vs != nil {
		return vs
	}
	for _, w := range x.wildcards {
		if gateway.Covers(w, host) {
			return x.exact[w]
		}
	}
	return nil
}

// Caller holds the properties of proxies that some VirtualServices depend on.
// Classes that differ in other properties have equal Callers, and so share the
// parts that are made for a Caller.
type Caller struct {
	sources index.SelectorSet // source conditions that the proxies match
	scope   index.Scope       // for looking up destinations
}

// CallerOf returns the Caller of a class for the VirtualServices heads. Its
// scope is the least specific one in which their destinations resolve to the
// same services and rules as in scope: mostly the common view.
func CallerOf(r *index.Reader, sources index.SelectorSet, scope index.Scope, heads ...*index.VirtualServiceHead) Caller {
	relevant := slices.DeleteFunc(sources.Selectors(), func(s string) bool {
		return !slices.ContainsFunc(heads, func(vs *index.VirtualServiceHead) bool {
			return vs.Delegates || slices.Contains(vs.Sources, s)
		})
	})
	c := Caller{sources: index.SelectorSet(strings.Join(relevant, "\n"))}
	scope.VirtualServices = ""
	rules := index.Scope{Rules: scope.Rules, Selected: scope.Selected}
	for _, c.scope = range []index.Scope{{}, rules, {Services: scope.Services, Imports: scope.Imports}, scope} {
		if c.scope == scope || looksEqual(r, scope, c.scope, heads) {
			break
		}
	}
	return c
}

func looksEqual(r *index.Reader, a, b index.Scope, heads []*index.VirtualServiceHead) bool {
	for _, vs := range heads {
		if vs.Delegates { // the destinations of delegates are not in heads
			return a == b
		}
		for _, host := range vs.Destinations {
			serviceA, serviceB := r.Destination(a, host), r.Destination(b, host)
			if serviceA != serviceB {
				return false
			}
			namespace := ""
			if serviceA != nil {
				namespace = serviceA.Namespace
			}
			ruleA, _ := r.Rule(a, namespace, host)
			ruleB, _ := r.Rule(b, namespace, host)
			if ruleA != ruleB {
				return false
			}
		}
	}
	return true
}

// Bound is the VirtualServices that route a part of a router.
type Bound struct {
	lines string // each a Gateway, a space and the row of a key
	Caller
}

// Binding is a VirtualService with the Gateway that binds it.
type Binding struct {
	Gateway        string
	VirtualService *index.VirtualServiceHead
}

// Bind returns the VirtualServices that route a part for routers of a class.
func Bind(r *index.Reader, sources index.SelectorSet, scope index.Scope, all []Binding) Bound {
	lines := make([]string, len(all))
	heads := make([]*index.VirtualServiceHead, len(all))
	for i, b := range all {
		lines[i] = b.Gateway + " " + b.VirtualService.Key.Row()
		heads[i] = b.VirtualService
	}
	return Bound{strings.Join(lines, "\n"), CallerOf(r, sources, scope, heads...)}
}

// All iterates over Gateways and the keys of their VirtualServices, in order.
func (b Bound) All() iter.Seq2[string, ident.Key] {
	return func(yield func(string, ident.Key) bool) {
		for line := range strings.SplitSeq(b.lines, "\n") {
			name, row, ok := strings.Cut(line, " ")
			if !ok {
				return // none
			}
			key, _, err := ident.ParseRow(row)
			if err != nil {
				panic(fmt.Sprintf("row %q is a key's: %v", row, err))
			}
			if !yield(name, key) {
				return
			}
		}
	}
}

// NewOptions returns the Options for a port and for requests or connections through
// a gateway. It reads nothing from r: calls of the Options' functions do.
func NewOptions(r *index.Reader, c Caller, port uint32, gateway string) Options {
	o := Options{
		Port: port, Gateway: gateway, Sources: c.sources, Mesh: r.Mesh,
		Service: func(host string) *index.Service { return r.Destination(c.scope, host) },
		Delegate: func(namespace, name string) *networking.VirtualService {
			return r.VirtualService(ident.Key{Namespace: namespace, Name: name})
		},
	}
	o.Rule = func(host string) *networking.DestinationRule {
		namespace := ""
		if s := o.Service(host); s != nil {
			namespace = s.Namespace
		}
		id, ok := r.Rule(c.scope, namespace, host)
		if !ok {
			return nil
		}
		rule, _ := r.DestinationRule(id)
		return rule
	}
	o.ConnectionRule = func(host string) *networking.DestinationRule {
		s := o.Service(host)
		if s == nil {
			return nil
		}
		rule, _ := r.DestinationRule(r.ConnectionRule(c.scope, s.Namespace, host))
		return rule
	}
	return o
}

// Applies decides the conditions of a match that do not depend on the request
// or connection (VSM-9, VSM-10, VST-3). A match that names gateways is not
// restricted by the caller's labels.
func (o *Options) Applies(m interface {
	GetPort() uint32
	GetGateways() []string
	GetSourceLabels() map[string]string
	GetSourceNamespace() string
}) bool {
	if m.GetPort() != 0 && m.GetPort() != o.Port {
		return false
	}
	if len(m.GetGateways()) > 0 {
		return slices.Contains(m.GetGateways(), o.Gateway)
	}
	return o.comesFrom(m)
}

// comesFrom reports whether the caller has the labels and the namespace that a
// match wants.
func (o *Options) comesFrom(m interface {
	GetSourceLabels() map[string]string
	GetSourceNamespace() string
}) bool {
	source := index.SourceSelector(m.GetSourceLabels(), m.GetSourceNamespace())
	return source == "" || o.Sources.Has(source)
}
