// Package permit decides which source may publish which objects (ACL-1, ACL-2), and
// bounds what permissions on the bus can say of that (ACL-3).
//
// It is pure.
package permit

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/hostname"
	"meshlog.dev/services/mesh/problem"
)

// Code of the Diagnostic of a forbidden object.
const Code = "forbidden"

// PolicyKind is the kind of the object that has the rules. Only trusted sources
// publish it, whatever rules say, and no rule decides about the shard of the policy
// that is served, because a policy that forbids itself would end its own rule.
const PolicyKind = "MeshPolicy"

// trusted are the sources that may publish what concerns the whole mesh.
var trusted = []string{"kubernetes", "file", "api", "up"}

// meshWide are the kinds that only trusted sources publish unless a rule allows
// it.
var meshWide = []string{PolicyKind, "MeshConfig", "MeshNetworks", "Resource"}

// sole has the kinds that one source alone publishes, whatever rules say, because
// every proxy trusts what they hold (CA-9, POL-12): with a root of its own, any other
// source could be anyone.
var sole = map[string]string{"TrustBundle": "ca", "Jwks": "jwks"}

// owned reports whether a kind is that of another source alone.
func owned(source, kind string) bool { return sole[kind] != "" && sole[kind] != source }

// defaults are the kinds that a source without rules may publish; sources that
// are not named may publish all that are not mesh-wide (ACL-2).
var defaults = map[string][]string{
	"ca":     {"TrustBundle"},
	"jwks":   {"Jwks"},
	"consul": {"EndpointSlice", "Service", "ServiceEntry"},
	"nacos":  {"EndpointSlice", "Service", "ServiceEntry"},
	"mcpxds": {
		"AuthorizationPolicy", "DestinationRule", "EnvoyFilter", "Gateway", "PeerAuthentication", "ProxyConfig",
		"RequestAuthentication", "ServiceEntry", "Sidecar", "Telemetry", "TrafficExtension", "VirtualService",
		"WasmPlugin", "WorkloadEntry", "WorkloadGroup",
	},
}

// Rules decide what sources may publish. A Rules is immutable.
type Rules struct {
	rules  []*configv1.SourceRule
	domain string
	home   ident.Shard
	// Operators of the policy; none: what operators append needs no signature.
	Operators Operators
}

// New returns the rules of a policy; domain completes the hosts of Kubernetes
// Services, and home is the shard that the policy comes from. Without rules the
// defaults count.
func New(rules []*configv1.SourceRule, domain string, home ident.Shard) *Rules {
	return &Rules{rules: rules, domain: domain, home: home}
}

// Equal reports whether r and other decide alike about all objects.
func (r *Rules) Equal(other *Rules) bool {
	return r.domain == other.domain && r.home == other.home && slices.EqualFunc(r.rules, other.rules, equal)
}

func equal(a, b *configv1.SourceRule) bool { return proto.Equal(a, b) }

// SameFor reports whether r and other decide alike about all objects of a shard.
func (r *Rules) SameFor(other *Rules, sh ident.Shard) bool {
	mine, others := r.of(sh), other.of(sh)
	hosts := func(rule *configv1.SourceRule) bool { return len(rule.GetHosts()) > 0 }
	return slices.EqualFunc(mine, others, equal) &&
		(r.domain == other.domain || !slices.ContainsFunc(mine, hosts)) &&
		(len(mine) == 0 || (r.home == sh) == (other.home == sh))
}

// of returns the rules that match a shard.
func (r *Rules) of(sh ident.Shard) []*configv1.SourceRule {
	var of []*configv1.SourceRule
	for _, rule := range r.rules {
		if Match(rule.GetSource(), sh.Source) && (rule.GetInstance() == "" || Match(rule.GetInstance(), sh.Instance)) {
			of = append(of, rule)
		}
	}
	return of
}

// Forbid returns why the source of k may not publish an object, or nil. A nil
// message is one that could not be decoded: its hosts are not checked, because it
// is not served.
func (r *Rules) Forbid(k ident.Key, m proto.Message) *problem.Diagnostic {
	if owned(k.Source, k.Kind) {
		d := forbidden("", fmt.Sprintf("%s may not publish objects of kind %s", k.Shard(), k.Kind))
		d.Advice = fmt.Sprintf("remove it at its source: only source %s publishes this kind, and no rule allows another one", sole[k.Kind])
		return d
	}
	if k.Kind == PolicyKind {
		if d := byDefault(k); d != nil || k.Shard() == r.home {
			return d
		}
	}
	rule, ruled := r.about(k)
	if !ruled {
		return byDefault(k)
	}
	if rule == nil {
		return forbidden("", fmt.Sprintf("%s may not publish objects of kind %s", k.Shard(), k.Kind))
	}
	if len(rule.GetNamespaces()) > 0 && !matchAny(rule.GetNamespaces(), k.Namespace) {
		return forbidden("metadata.namespace", fmt.Sprintf("%s may not publish objects of kind %s in namespace %q", k.Shard(), k.Kind, k.Namespace))
	}
	if len(rule.GetHosts()) == 0 || m == nil {
		return nil
	}
	if vs, ok := m.(*networking.VirtualService); ok && len(vs.GetHosts()) == 0 {
		d := forbidden("spec.hosts", fmt.Sprintf("%s may publish some hosts only, and a VirtualService without hosts has those of every VirtualService that delegates to it", k.Shard()))
		d.Advice = "give it hosts, or permit delegates of this source by a rule of the kind VirtualService without hosts in sourceRules of MeshPolicy default"
		return d
	}
	for _, h := range r.hosts(k, m) {
		if !matchAny(rule.GetHosts(), h.name) {
			return forbidden(h.field, fmt.Sprintf("%s may not publish the host %q", k.Shard(), h.name))
		}
	}
	return nil
}

// ByHost reports whether Forbid needs the message of an object.
func (r *Rules) ByHost(k ident.Key) bool {
	rule, _ := r.about(k)
	return len(rule.GetHosts()) > 0
}

// about returns the rule that decides about objects of k's kind, nil if none
// allows them. Ruled is false if the defaults decide.
func (r *Rules) about(k ident.Key) (rule *configv1.SourceRule, ruled bool) {
	rules := r.of(k.Shard())
	if i := slices.IndexFunc(rules, func(rule *configv1.SourceRule) bool { return covers(rule, k.Kind) }); i >= 0 {
		rule = rules[i]
	}
	return rule, len(rules) > 0
}

func byDefault(k ident.Key) *problem.Diagnostic {
	kinds, listed := defaults[k.Source]
	switch {
	case listed && !slices.Contains(kinds, k.Kind), !listed && slices.Contains(meshWide, k.Kind) && !slices.Contains(trusted, k.Source):
		d := forbidden("", fmt.Sprintf("%s may not publish objects of kind %s", k.Shard(), k.Kind))
		if k.Kind == PolicyKind {
			d.Advice = "publish it from one of these sources: " + strings.Join(trusted, ", ")
		}
		return d
	}
	return nil
}

func forbidden(field, reason string) *problem.Diagnostic {
	return &problem.Diagnostic{
		Severity: problem.Error, Code: Code, Field: field, Reason: reason,
		Advice: "remove it at its source, or allow it in sourceRules of MeshPolicy default",
	}
}

// covers reports whether a rule decides about objects of a kind.
func covers(rule *configv1.SourceRule, kind string) bool {
	if len(rule.GetKinds()) > 0 {
		return matchAny(rule.GetKinds(), kind)
	}
	return len(rule.GetHosts()) == 0 || slices.Contains(hostKinds, kind)
}

// hostKinds are the kinds of which hosts returns hosts.
var hostKinds = []string{"DestinationRule", "Gateway", "Service", "ServiceEntry", "VirtualService"}

// host is a host of an object, and the field that names it.
type host struct{ field, name string }

// hosts returns the hosts that an object claims, in full.
func (r *Rules) hosts(k ident.Key, m proto.Message) (all []host) {
	add := func(field, name string) { all = append(all, host{field, strings.ToLower(name)}) }
	switch m := m.(type) {
	case *networking.DestinationRule:
		add("spec.host", hostname.Full(m.GetHost(), k.Namespace, r.domain))
	case *networking.VirtualService:
		for i, h := range m.GetHosts() {
			add(fmt.Sprintf("spec.hosts[%d]", i), hostname.Full(h, k.Namespace, r.domain))
		}
	case *networking.ServiceEntry:
		for i, h := range m.GetHosts() {
			add(fmt.Sprintf("spec.hosts[%d]", i), h)
		}
	case *networking.Gateway:
		for i, s := range m.GetServers() {
			for j, h := range s.GetHosts() {
				if _, name, ok := strings.Cut(h, "/"); ok {
					h = name
				}
				add(fmt.Sprintf("spec.servers[%d].hosts[%d]", i, j), h)
			}
		}
	case *registryv1.Service:
		add("", hostname.OfService(k, m, r.domain))
	}
	return all
}

func matchAny(globs []string, text string) bool {
	return slices.ContainsFunc(globs, func(glob string) bool { return Match(glob, text) })
}

// Match reports whether text matches a glob, in which * stands for any characters,
// also none.
func Match(glob, text string) bool {
	parts := strings.Split(glob, "*")
	if len(parts) == 1 {
		return glob == text
	}
	text, ok := strings.CutPrefix(text, parts[0])
	if !ok {
		return false
	}
	last := parts[len(parts)-1]
	if text, ok = strings.CutSuffix(text, last); !ok {
		return false
	}
	for _, part := range parts[1 : len(parts)-1] {
		i := strings.Index(text, part)
		if i < 0 {
			return false
		}
		text = text[i+len(part):]
	}
	return true
}
