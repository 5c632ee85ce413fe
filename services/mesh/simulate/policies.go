package simulate

import (
	"errors"
	"fmt"
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	extauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	networkauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/ext_authz/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"meshlog.dev/services/mesh/simulate/rbac"
)

// Decision is what a filter of policies says about a call.
type Decision struct {
	Filter string `json:"filter,omitempty"`
	// Action is ALLOW, DENY, AUDIT or CUSTOM, or JWT for the filter that verifies tokens.
	Action string `json:"action,omitempty"`
	// Rule is the rule that matched: ns[NAMESPACE]-policy[NAME]-rule[INDEX], or
	// invalid:NAMESPACE/NAME of a policy of which no value was ever good. It is empty if
	// none did.
	Rule string `json:"rule,omitempty"`
	// Result is what the filter does because of it.
	Result string `json:"result,omitempty"`
	// Provider is the cluster of the external authorizer that the filter asks. The
	// simulation goes on as if it allowed the call. FailOpen: one that does not answer
	// allows it, too.
	Provider string `json:"provider,omitempty"`
	FailOpen bool   `json:"failOpen,omitempty"`
}

// String returns a line such as "DENY ns[shop]-policy[admin]-rule[0]: 403".
func (d Decision) String() string {
	about := d.Action
	if d.Rule != "" {
		about += " " + d.Rule
	}
	return about + ": " + d.Result
}

// The names under which filters write metadata, and the prefix of what CUSTOM policies
// write.
const (
	httpRBAC     = "envoy.filters.http.rbac"
	networkRBAC  = "envoy.filters.network.rbac"
	customPrefix = "istio_ext_authz_"
	shadowResult = "shadow_engine_result"
)

// policies runs the filters of policies for one connection, or one of its requests.
type policies struct {
	request rbac.Request
	o       *Outcome
	// writes is the name under which RBAC filters write metadata.
	writes string
	// status answers a refused request; 0: the connection is closed.
	status uint32
	// rerouted: a filter made the proxy look for the route again.
	rerouted bool
}

// ofConnection returns what the rules about a call's connection look at. decrypted: the
// filter chain ends TLS, so it knows who the client is.
func ofConnection(c Call, decrypted bool, o *Outcome) *policies {
	p := &policies{writes: networkRBAC, o: o, request: rbac.Request{
		Direct: c.From, Remote: c.From, Destination: c.Address, DestinationPort: c.Port,
		TLS: decrypted, Metadata: map[string]map[string]any{},
	}}
	if c.TLS {
		p.request.ServerName = strings.ToLower(c.ServerName)
	}
	if decrypted {
		p.request.Certificate = c.Certificate
	}
	return p
}

// run runs one filter, and reports whether it is one of policies.
func (p *policies) run(name string, filter any) bool {
	switch f := filter.(type) {
	case *httprbacv3.RBAC:
		if f.GetMatcher() != nil || f.GetShadowMatcher() != nil {
			p.unknown(name, errors.New("it has a tree of matchers"))
			return true
		}
		p.shadow(name, f.GetShadowRules(), f.GetShadowRulesStatPrefix())
		p.rules(name, f.GetRules())
	case *networkrbacv3.RBAC:
		if f.GetMatcher() != nil || f.GetShadowMatcher() != nil {
			p.unknown(name, errors.New("it has a tree of matchers"))
			return true
		}
		p.shadow(name, f.GetShadowRules(), f.GetShadowRulesStatPrefix())
		p.rules(name, f.GetRules())
	case *extauthzv3.ExtAuthz:
		cluster := f.GetGrpcService().GetEnvoyGrpc().GetClusterName() + f.GetHttpService().GetServerUri().GetCluster()
		p.ask(name, f.GetFilterEnabledMetadata(), cluster, f.GetFailureModeAllow())
	case *networkauthzv3.ExtAuthz:
		p.ask(name, f.GetFilterEnabledMetadata(), f.GetGrpcService().GetEnvoyGrpc().GetClusterName(), f.GetFailureModeAllow())
	default:
		return false
	}
	return true
}

// decide adds a decision. refused: it ends the call with that status; 0: the connection
// is closed. The result that d has is the reason then.
func (p *policies) decide(d Decision, refused bool, status uint32) {
	if refused {
		p.o.Refused, p.o.Closed, p.o.Status = true, status == 0, status
		reason := d.Result
		d.Result = "connection closed"
		if status != 0 {
			d.Result = fmt.Sprint(status)
		}
		if reason != "" {
			d.Result += ", " + reason
		}
	}
	p.o.Decisions = append(p.o.Decisions, d)
}

// unknown ends a call of which the simulation cannot say whether it is allowed.
func (p *policies) unknown(filter string, err error) {
	p.o.Unknown = fmt.Sprintf("cannot simulate filter %s: %v", filter, err)
}

// ended reports whether the call goes no further.
func (p *policies) ended() bool { return p.o.Refused || p.o.Unknown != "" }

// rules evaluates the rules of an RBAC filter. One without rules lets all calls pass.
func (p *policies) rules(filter string, rules *rbacv3.RBAC) {
	if rules == nil || p.ended() {
		return
	}
	rule, matched, err := rbac.Match(rules, &p.request)
	d := Decision{Filter: filter, Rule: rule}
	switch {
	case rules.GetAction() == rbacv3.RBAC_LOG:
		d.Action, d.Result = "AUDIT", "audited"
		if err != nil {
			p.o.note("cannot simulate filter %s: %v", filter, err)
		} else if matched {
			p.decide(d, false, 0)
		}
	case err != nil:
		p.unknown(filter, err)
	case rules.GetAction() == rbacv3.RBAC_DENY:
		d.Action = "DENY"
		if matched {
			p.decide(d, true, p.status)
		}
	case rules.GetAction() == rbacv3.RBAC_ALLOW:
		d.Action, d.Result = "ALLOW", "allowed"
		if !matched {
			d.Result = "no rule matches"
		}
		p.decide(d, !matched, p.status)
	default:
		p.unknown(filter, fmt.Errorf("unknown action %s", rules.GetAction()))
	}
}

// shadow evaluates rules that decide nothing and write what they would decide, under a
// prefix. With those of CUSTOM policies, a later filter asks a provider about the calls
// that they would deny; others are a dry run.
func (p *policies) shadow(filter string, rules *rbacv3.RBAC, prefix string) {
	if rules == nil || p.ended() {
		return
	}
	rule, matched, err := rbac.Match(rules, &p.request)
	if err != nil {
		if prefix == customPrefix {
			p.unknown(filter, err)
			return
		}
		p.o.note("cannot simulate the dry run of filter %s: %v", filter, err)
		return
	}
	result := "allowed"
	if matched != (rules.GetAction() == rbacv3.RBAC_ALLOW) && rules.GetAction() != rbacv3.RBAC_LOG {
		result = "denied"
	}
	if p.request.Metadata[p.writes] == nil {
		p.request.Metadata[p.writes] = map[string]any{}
	}
	p.request.Metadata[p.writes][prefix+shadowResult] = result
	switch {
	case prefix == customPrefix && matched:
		p.decide(Decision{Filter: filter, Action: "CUSTOM", Rule: rule, Result: "matches"}, false, 0)
	case prefix != customPrefix:
		p.o.note("dry run of %s: %s", strings.TrimSpace(rules.GetAction().String()+" "+rule), result)
	}
}

// ask adds that a provider is asked about the call.
func (p *policies) ask(filter string, enabled *matcherv3.MetadataMatcher, cluster string, open bool) {
	if p.ended() {
		return
	}
	if enabled != nil {
		ok, err := rbac.Metadata(enabled, p.request.Metadata)
		if err != nil {
			p.unknown(filter, err)
		}
		if !ok || err != nil {
			return
		}
	}
	result := "asks the provider " + cluster + "; if it allows the call:"
	if open {
		result = "asks the provider " + cluster + "; if it allows the call, or does not answer:"
	}
	p.decide(Decision{Filter: filter, Action: "CUSTOM", Result: result, Provider: cluster, FailOpen: open}, false, 0)
}
