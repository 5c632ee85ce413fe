package index

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/hostname"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/table"
	"meshlog.dev/services/mesh/world"
)

const destinationRuleKind = "DestinationRule"

// ruleIndex holds the DestinationRules of the world.
type ruleIndex struct {
	byHost    table.Groups[ruleHost, *rule]        // the one that wins first
	merged    table.Table[ruleHost, []*mergedRule] // merged from them, the winner first
	wild      table.Table[string, []string]        // hosts with wildcards of a namespace's rules, the most specific first
	exact     table.Table[string, []string]        // namespaces with rules for a host without wildcard
	scopes    table.Counter                        // namespaces whose view differs from the common one
	reach     table.Table[ruleHost, []string]      // the namespaces that each host's rules add to scopes
	selecting table.Groups[string, *rule]          // by namespace: the rules that select workloads
	// credentials are those of merged that name a credential.
	credentials table.Table[ruleHost, []RuleID]
	// connections are those of merged that say something about connections.
	connections table.Table[ruleHost, []RuleID]
	// placed are those of merged that make proxies prefer endpoints (DR-14), and compared the
	// labels that they compare, by how many.
	placed   table.Table[ruleHost, []RuleID]
	compared table.Counter
	named    table.Counter // trust domains that a rule expects in certificates, with commas
	mutual   int           // rules with TLS mode ISTIO_MUTUAL
	root     string        // the root namespace
}

// ruleHost is the place where rules are merged (DR-2).
type ruleHost struct{ namespace, host string }

type rule struct {
	ident.Key
	created  time.Time
	spec     *networking.DestinationRule // with its host in full
	exportTo Visibility
	// selector is the text of its workloadSelector: only proxies of its own
	// namespace that match have the rule (DR-23); "": all that see it.
	selector string
}

// mergedRule is the merger of rules of one namespace and host that the same
// proxies see.
type mergedRule struct {
	id       RuleID
	exportTo Visibility
	selector string
	spec     *networking.DestinationRule
	rules    []*rule
}

func (r *rule) MemberKey() ident.Key { return r.Key }

// newRule reads a DestinationRule: its host in full (DR-3), the namespaces that
// see it (DR-24) and the workloads that it selects (DR-23).
func (s *settings) newRule(o world.Object, m *networking.DestinationRule) *rule {
	selector := ""
	if m.GetWorkloadSelector() != nil {
		selector = selectorText(m.GetWorkloadSelector().GetMatchLabels())
	}
	host := hostname.Full(m.GetHost(), o.Key.Namespace, s.domainSuffix)
	if host != m.GetHost() {
		m = proto.Clone(m).(*networking.DestinationRule)
		m.Host = host
	}
	return &rule{o.Key, o.Created, m, visibilityOf(m.GetExportTo(), s.ruleExport, o.Key.Namespace), selector}
}

// selectors returns the texts of the workload selectors of a namespace's rules.
func (x *ruleIndex) selectors(namespace string) []string {
	var texts []string
	for _, r := range x.selecting.Get(namespace) {
		texts = append(texts, r.selector)
	}
	return sortUnique(texts)
}

// selected returns the workload selectors of rules that match a proxy.
func (x *ruleIndex) selected(p *proxy.Proxy) SelectorSet {
	var texts []string
	for _, r := range x.selecting.Get(p.Namespace) {
		if matchLabels(r.spec.GetWorkloadSelector().GetMatchLabels(), p.Labels) {
			texts = append(texts, r.selector)
		}
	}
	return setOf(sortUnique(texts))
}

func isWildcard(host string) bool { return strings.HasPrefix(host, "*") }

// find returns the rules that count for a host of a service (DR-1): of the
// client's namespace, else of the service's, else of the root namespace.
func (x *ruleIndex) find(s Scope, serviceNamespace, host string) (RuleID, bool) {
	scope := s.Rules
	if serviceNamespace == "" {
		return RuleID{}, false // no service has it
	}
	if x.wild.Len() == 0 && len(x.exact.Get(host)) == 0 {
		return RuleID{}, false // true of most hosts, and found by one lookup
	}
	if scope != "" {
		// The root namespace has rules for all namespaces. Its own proxies must not
		// find them before those of the service.
		if m := x.match(s, scope, host, scope == x.root); m != nil {
			return m.id, true
		}
	}
	for _, ns := range []string{serviceNamespace, x.root} {
		if m := x.match(s, ns, host, false); m != nil {
			return m.id, true
		}
	}
	return RuleID{}, false
}

// match returns the rule of a namespace with the most specific host that covers
// the given one. Of the rules for one host, one that selects the proxy wins.
func (x *ruleIndex) match(s Scope, namespace, host string, private bool) *mergedRule {
	first := func(h string) (found *mergedRule) {
		for _, m := range x.merged.Get(ruleHost{namespace, h}) {
			switch {
			case !m.exportTo.Shows(namespace, s.Rules):
			case m.selector != "":
				if namespace == s.Rules && s.Selected.Has(m.selector) {
					return m
				}
			case found == nil && (!private || m.private()):
				found = m
			}
		}
		return found
	}
	if m := first(host); m != nil {
		return m
	}
	if x.wild.Len() == 0 {
		return nil
	}
	for _, h := range x.wild.Get(namespace) {
		if h != host && strings.HasSuffix(strings.TrimPrefix(host, "*"), h[1:]) {
			if m := first(h); m != nil {
				return m
			}
		}
	}
	return nil
}

// private reports whether only its own namespace sees it.
func (m *mergedRule) private() bool { return len(m.exportTo) == 1 && m.exportTo[0] == exportOwn }

func (x *ruleIndex) rule(id RuleID) (*networking.DestinationRule, []ident.Key) {
	for _, m := range x.merged.Get(ruleHost{id.Namespace, id.Host}) {
		if m.id == id {
			keys := make([]ident.Key, len(m.rules))
			for i, r := range m.rules {
				keys[i] = r.Key
			}
			return m.spec, keys
		}
	}
	return nil, nil
}

// mergeRules merges rules that the same proxies see (DR-2).
func mergeRules(at ruleHost, list []*rule) []*mergedRule {
	var all []*mergedRule
	for _, r := range list {
		i := slices.IndexFunc(all, func(m *mergedRule) bool { return slices.Equal(m.exportTo, r.exportTo) && m.selector == r.selector })
		if i < 0 {
			all = append(all, &mergedRule{
				id: RuleID{at.namespace, at.host, r.Name}, exportTo: r.exportTo, selector: r.selector, spec: r.spec, rules: []*rule{r},
			})
			continue
		}
		all[i].rules = append(all[i].rules, r)
	}
	for _, m := range all {
		if len(m.rules) > 1 {
			m.merge()
		}
	}
	return all
}

func (m *mergedRule) merge() {
	m.spec = proto.Clone(m.spec).(*networking.DestinationRule)
	for _, r := range m.rules[1:] {
		if m.spec.TrafficPolicy == nil {
			m.spec.TrafficPolicy = r.spec.GetTrafficPolicy()
		}
		for _, s := range r.spec.GetSubsets() {
			if !hasSubset(m.spec.Subsets, s.GetName()) {
				m.spec.Subsets = append(m.spec.Subsets, s)
			}
		}
	}
}

func hasSubset(list []*networking.Subset, name string) bool {
	return slices.ContainsFunc(list, func(s *networking.Subset) bool { return s.GetName() == name })
}

// ruleEdit makes one ruleIndex from another.
type ruleEdit struct {
	*transition
	from      ruleIndex
	byHost    *table.GroupsEdit[ruleHost, *rule]
	selecting *table.GroupsEdit[string, *rule]
	mutual    int // how many more rules have mode ISTIO_MUTUAL
}

// next returns the index after changes of DestinationRules, with the new services
// and the hosts whose services differ.
func (x ruleIndex) next(t *transition, changes []change, services *serviceIndex, hosts map[string]struct{}) ruleIndex {
	older := func(a, b *rule) int { return world.Wins(t.priority, a.Key, a.created, b.Key, b.created) }
	e := &ruleEdit{transition: t, from: x, byHost: x.byHost.Edit(older), selecting: x.selecting.Edit(older)}
	for _, c := range changes {
		e.change(c)
	}
	return e.done(services, hosts)
}

// change applies the change of a DestinationRule.
func (e *ruleEdit) change(c change) {
	for o, after := range c.versions() {
		m, ok := o.Message.(*networking.DestinationRule)
		if !ok {
			continue
		}
		r := e.newRule(*o, m)
		e.byHost.Keep(ruleHost{r.Namespace, r.spec.GetHost()}, r, after)
		if r.selector != "" {
			e.selecting.Keep(r.Namespace, r, after)
		}
		switch {
		case !isMutual(m):
		case after:
			e.mutual++
		default:
			e.mutual--
		}
	}
}

// isMutual reports whether a rule has mode ISTIO_MUTUAL somewhere.
func isMutual(m *networking.DestinationRule) bool {
	in := func(tls *networking.ClientTLSSettings) bool {
		return tls.GetMode() == networking.ClientTLSSettings_ISTIO_MUTUAL
	}
	policy := func(p *networking.TrafficPolicy) bool {
		return in(p.GetTls()) || slices.ContainsFunc(p.GetPortLevelSettings(), func(p *networking.TrafficPolicy_PortTrafficPolicy) bool { return in(p.GetTls()) })
	}
	return policy(m.GetTrafficPolicy()) ||
		slices.ContainsFunc(m.GetSubsets(), func(s *networking.Subset) bool { return policy(s.GetTrafficPolicy()) })
}

func (e *ruleEdit) done(services *serviceIndex, hosts map[string]struct{}) ruleIndex {
	x := e.from
	x.mutual += e.mutual
	touched := make(map[ruleHost]struct{}) // whose reach may differ
	for host := range hosts {
		for _, ns := range x.exact.Get(host) {
			touched[ruleHost{ns, host}] = struct{}{}
		}
	}
	if len(e.byHost.Moved) > 0 {
		x.byHost = e.byHost.Done()
		e.doneMerged(&x)
		for at := range e.byHost.Moved {
			touched[at] = struct{}{}
		}
	}
	if len(touched) > 0 {
		e.doneScopes(&x, services, touched)
	}
	if len(e.selecting.Moved) > 0 {
		x.selecting = e.selecting.Done()
		for ns := range e.selecting.Moved {
			e.reclassify(!slices.Equal(e.from.selectors(ns), x.selectors(ns)))
		}
	}
	e.doneInputs(&x)
	return x
}

func (e *ruleEdit) doneMerged(x *ruleIndex) {
	merged, wild, exact, credentials := x.merged.Edit(), x.wild.Edit(), x.exact.Edit(), x.credentials.Edit()
	named, connections := x.named.Edit(), x.connections.Edit()
	placed, compared := x.placed.Edit(), x.compared.Edit()
	for at := range e.byHost.Moved {
		list := x.byHost.Get(at)
		e.problem(about{destinationRuleKind, at.namespace, at.host}, ruleProblems(at, list))
		rules := mergeRules(at, list)
		countNamed(named, -1, expected(x.merged.Get(at))...)
		countNamed(named, 1, expected(rules)...)
		merged.Keep(at, rules, len(list) > 0)
		if with := credentialed(rules); !slices.Equal(with, x.credentials.Get(at)) {
			credentials.Keep(at, with, len(with) > 0)
			e.changed(Input{Kind: InputCredentialRules})
		}
		compared.Add(-1, comparedLabels(x.merged.Get(at))...)
		compared.Add(1, comparedLabels(rules)...)
		if with := placing(rules); !slices.Equal(with, x.placed.Get(at)) {
			placed.Keep(at, with, len(with) > 0)
			e.changed(Input{Kind: InputPlaces})
		}
		if with := shaping(rules); !slices.Equal(with, x.connections.Get(at)) {
			connections.Keep(at, with, len(with) > 0)
			e.changed(Input{Kind: InputConnectionRules})
		}
		if isWildcard(at.host) {
			setMember(wild, at.namespace, at.host, len(list) > 0, func(a, b string) int {
				return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b))
			})
		} else {
			setMember(exact, at.host, at.namespace, len(list) > 0, strings.Compare)
		}
	}
	x.merged, x.wild, x.exact, x.credentials = merged.Table, wild.Table, exact.Table, credentials.Table
	x.connections, x.named = connections.Table, e.doneNamed(named)
	e.reclassify(e.from.shapeConnections() != x.shapeConnections())
	x.placed = placed.Table
	x.compared, _ = e.counted(compared)
	e.reclassify((e.from.placed.Len() > 0) != (x.placed.Len() > 0))
}

// setMember adds s to a sorted list, or removes it.
func setMember(lists *table.Edit[string, []string], list, s string, is bool, compare func(a, b string) int) {
	old := lists.Get(list)
	i, was := slices.BinarySearchFunc(old, s, compare)
	switch {
	case is == was:
	case is:
		lists.Set(list, slices.Insert(slices.Clone(old), i, s))
	default:
		lists.Keep(list, slices.Delete(slices.Clone(old), i, i+1), len(old) > 1)
	}
}

// doneScopes finds the namespaces whose view differs from the common one.
func (e *ruleEdit) doneScopes(x *ruleIndex, services *serviceIndex, touched map[ruleHost]struct{}) {
	reach, scopes := x.reach.Edit(), x.scopes.Edit()
	for at := range touched {
		scopes.Add(-1, reach.Get(at)...)
		names := x.reaches(at, services)
		scopes.Add(1, names...)
		reach.Keep(at, names, len(names) > 0)
	}
	x.reach = reach.Table
	var moved []string
	x.scopes, moved = e.counted(scopes)
	for _, ns := range moved {
		e.changed(Input{Kind: InputRules, A: ns})
	}
}

// reaches returns the namespaces for which the rules of one namespace and host
// change the common view. A public rule does so for its own namespace only, and
// only if the host is a service of another one: proxies of that namespace find
// it before the service's own rule.
func (x *ruleIndex) reaches(at ruleHost, services *serviceIndex) []string {
	var names []string
	for _, m := range x.merged.Get(at) {
		if m.selector != "" {
			names = append(names, at.namespace)
			continue
		}
		if !m.exportTo.Public() {
			names = append(names, m.exportTo.namespaces(at.namespace)...)
			continue
		}
		if at.namespace == x.root {
			continue
		}
		elsewhere := func(s *Service) bool { return s.Namespace != at.namespace }
		if isWildcard(at.host) || slices.ContainsFunc(services.byHost.Get(at.host), elsewhere) {
			names = append(names, at.namespace)
		}
	}
	return sortUnique(names)
}

// doneInputs records what differs by the rules that changed.
func (e *ruleEdit) doneInputs(x *ruleIndex) {
	for at := range e.byHost.Moved {
		was, is := e.from.merged.Get(at), x.merged.Get(at)
		if !slices.EqualFunc(was, is, (*mergedRule).same) {
			e.changed(Input{Kind: InputRule, A: at.namespace, B: at.host})
		}
		if slices.EqualFunc(was, is, (*mergedRule).sameHead) {
			continue
		}
		for _, m := range append(slices.Clone(was), is...) {
			if m.selector != "" {
				e.changed(Input{Kind: InputRules, A: at.namespace})
				continue
			}
			if !m.exportTo.Public() {
				for _, ns := range m.exportTo.namespaces(at.namespace) {
					e.changed(Input{Kind: InputRules, A: ns})
				}
				continue
			}
			e.changed(Input{Kind: InputRules})
			for ns := range x.scopes.All() {
				e.changed(Input{Kind: InputRules, A: ns})
			}
		}
	}
}

func (m *mergedRule) sameHead(o *mergedRule) bool {
	return m.id == o.id && slices.Equal(m.exportTo, o.exportTo) && m.selector == o.selector
}

func (m *mergedRule) same(o *mergedRule) bool {
	return m.sameHead(o) && sameMessage(m.spec, o.spec) &&
		slices.EqualFunc(m.rules, o.rules, func(a, b *rule) bool { return a.Key == b.Key })
}

// ruleProblems reports rules for one host that do not count.
func ruleProblems(at ruleHost, list []*rule) []problem.Diagnostic {
	var ds []problem.Diagnostic
	for _, m := range mergeRules(at, list) {
		var seen []*networking.Subset
		policy := false
		for _, r := range m.rules {
			for _, s := range r.spec.GetSubsets() {
				if hasSubset(seen, s.GetName()) {
					ds = append(ds, ruleProblem(r, "spec.subsets", "subset "+s.GetName()+" of host "+at.host+" is defined before",
						"give the subset another name, or remove one of the two", "the first definition counts"))
				}
				seen = append(seen, s)
			}
			if policy && r.spec.GetTrafficPolicy() != nil {
				ds = append(ds, ruleProblem(r, "spec.trafficPolicy", "another rule for host "+at.host+" has a policy, "+m.id.Name+" being the first of them",
					"put the policy into one rule", "this policy has no effect"))
			}
			policy = policy || r.spec.GetTrafficPolicy() != nil
		}
	}
	first := map[string]*rule{}
	for _, r := range list {
		if r.selector != "" && len(r.spec.GetExportTo()) > 0 && !slices.Equal(r.exportTo, Visibility{exportOwn}) {
			ds = append(ds, ruleProblem(r, "spec.exportTo", "a rule with a workloadSelector counts for proxies of its own namespace only",
				`leave exportTo out, or write exportTo: ["."]`, otherNamespaces(r)))
		}
		if first[r.selector] == nil {
			first[r.selector] = r
		}
		if other := first[r.selector]; !slices.Equal(r.exportTo, other.exportTo) {
			ds = append(ds, ruleProblem(r, "spec.exportTo", "rules for host "+at.host+" that differ in exportTo are not merged",
				"export all rules of a host to the same namespaces", "proxies that see several use "+other.Key.String()+" first"))
		}
	}
	return ds
}

// otherNamespaces says what the exportTo of a rule with a workloadSelector does.
func otherNamespaces(r *rule) string {
	if !r.exportTo.Shows(r.Namespace, r.Namespace) {
		return "the rule has no effect"
	}
	return "proxies of other namespaces do not have the rule"
}

func ruleProblem(r *rule, field, reason, advice, effect string) problem.Diagnostic {
	return problem.Diagnostic{Severity: problem.Warning, Code: "conflict", Key: r.Key, Field: field, Reason: reason, Advice: advice, Effect: effect}
}
