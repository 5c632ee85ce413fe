package permit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
)

// Any stands for all names in a Names.
const Any = "*"

// Names selects objects of a source by instance, kind and namespace: each is one
// name, or Any.
type Names struct{ Instance, Kind, Namespace string }

// covers reports whether n selects all that m selects.
func (n Names) covers(m Names) bool {
	in := func(wide, narrow string) bool { return wide == Any || wide == narrow }
	return in(n.Instance, m.Instance) && in(n.Kind, m.Kind) && in(n.Namespace, m.Namespace)
}

func (n Names) compare(m Names) int {
	return cmp.Or(cmp.Compare(n.Instance, m.Instance), cmp.Compare(n.Kind, m.Kind), cmp.Compare(n.Namespace, m.Namespace))
}

// Reach bounds what a source may publish, as far as names without globs can say
// it. Forbid forbids every object that no Names of Allow selects, or one of Deny
// does (ACL-3). It may forbid more: FoldOnly says which.
type Reach struct {
	Allow, Deny []Names // sorted; none of Deny selects an object that Forbid permits
	FoldOnly    []Part
	Rules       []int // indexes of the rules about the source or one of its instances
	all         bool
}

// All reports whether r selects all objects of its shard or source.
func (r Reach) All() bool { return r.all }

// Part is a part of the rules that a Reach cannot express.
type Part struct {
	Rule   int    `json:"rule"`  // its index; -1: no rule is about these objects
	Field  string `json:"field"` // path in the MeshPolicy
	Reason string `json:"reason"`
}

// Reach returns the reach of the source of a shard; without an instance, of all
// instances of the source.
func (r *Rules) Reach(sh ident.Shard) Reach {
	b := reach{rules: r.rules, source: sh.Source, instances: []name{{text: sh.Instance}}}
	for i, rule := range r.rules {
		if Match(rule.GetSource(), sh.Source) {
			b.matching = append(b.matching, i)
		}
	}
	if sh.Instance == "" {
		b.instances = b.spelled(nil, func(rule *configv1.SourceRule) []string { return []string{rule.GetInstance()} })
	}
	known := slices.Concat(hostKinds, meshWide, slices.Collect(maps.Keys(sole)), defaults[sh.Source])
	b.kinds = b.spelled(known, (*configv1.SourceRule).GetKinds)
	b.allow()
	b.deny()
	b.parts()
	b.all = len(b.Deny) == 0 && slices.Equal(b.Allow, []Names{{b.instances[len(b.instances)-1].String(), Any, Any}})
	return b.Reach
}

// reach is a Reach in the making.
type reach struct {
	Reach
	rules     []*configv1.SourceRule
	source    string
	matching  []int // indexes of the rules that match the source
	instances []name
	kinds     []name
}

// name is a name that rules or this package spell out, or (other) any other name.
type name struct {
	text  string
	other bool
}

// String returns the name as it is in a Names.
func (n name) String() string {
	if n.other {
		return Any
	}
	return n.text
}

// verdict is whether a rule matches a name.
type verdict int

const (
	no    verdict = iota
	maybe         // it matches some of the other names
	yes
)

func (n name) matches(glob string) verdict {
	switch {
	case whole(glob):
		return yes
	case !n.other && Match(glob, n.text):
		return yes
	case n.other && isGlob(glob):
		return maybe
	}
	return no
}

func isGlob(text string) bool { return strings.Contains(text, "*") }

// spelled returns known names, those that the matching rules spell out, and other.
func (b *reach) spelled(known []string, of func(*configv1.SourceRule) []string) []name {
	all := map[string]bool{}
	for _, text := range known {
		all[text] = true
	}
	for _, i := range b.matching {
		for _, text := range of(b.rules[i]) {
			if text != "" && !isGlob(text) {
				all[text] = true
			}
		}
	}
	var names []name
	for _, text := range slices.Sorted(maps.Keys(all)) {
		names = append(names, name{text: text})
	}
	return append(names, name{other: true})
}

// ruling is what the rules say about a kind of an instance.
type ruling struct {
	namespaces []string // in which objects may be; Any: in all
	by         []int    // indexes of the rules that may decide
}

func (g ruling) permits(namespace string) bool {
	return slices.Contains(g.namespaces, Any) || slices.Contains(g.namespaces, namespace)
}

// rule decides as Forbid does, but lets each rule permit objects that it may match.
// The policy that is served may come from any trusted shard, so none lacks it.
func (b *reach) rule(instance, kind name) (g ruling) {
	if owned(b.source, kind.text) { // an other kind has an empty name, which no source owns
		return g
	}
	if !kind.is(PolicyKind) {
		return b.ruled(instance, kind)
	}
	if b.byDefault(kind) {
		g.namespaces = []string{Any}
	}
	return g
}

func (b *reach) ruled(instance, kind name) (g ruling) {
	hasRules := false // each such instance has one
	for _, i := range b.matching {
		rule := b.rules[i]
		in := instance.matchesInstance(rule)
		hasRules = hasRules || in == yes
		v := min(in, kind.coveredBy(rule))
		if v == no {
			continue
		}
		g.by = append(g.by, i)
		g.namespaces = append(g.namespaces, reachable(rule.GetNamespaces())...)
		if v == yes {
			return g.tidy()
		}
	}
	if !hasRules && b.byDefault(kind) {
		g.namespaces = []string{Any}
	}
	return g.tidy()
}

// byDefault reports whether the source may publish a kind without rules.
func (b *reach) byDefault(kind name) bool {
	return byDefault(ident.Key{Source: b.source, Kind: kind.text}) == nil // an other kind has an empty name, which no list has
}

func (n name) is(text string) bool { return !n.other && n.text == text }

func (n name) matchesInstance(rule *configv1.SourceRule) verdict {
	if rule.GetInstance() == "" {
		return yes
	}
	return n.matches(rule.GetInstance())
}

// coveredBy is covers for a name.
func (n name) coveredBy(rule *configv1.SourceRule) verdict {
	if len(rule.GetKinds()) == 0 && n.other {
		if len(rule.GetHosts()) > 0 {
			return no // all kinds with hosts are spelled
		}
		return yes
	}
	if !n.other {
		if covers(rule, n.text) {
			return yes
		}
		return no
	}
	v := no
	for _, glob := range rule.GetKinds() {
		v = max(v, n.matches(glob))
	}
	return v
}

// reachable returns namespaces that cover globs.
func reachable(globs []string) []string {
	if len(globs) == 0 || slices.ContainsFunc(globs, isGlob) {
		return []string{Any}
	}
	return globs
}

func (g ruling) tidy() ruling {
	if slices.Contains(g.namespaces, Any) {
		g.namespaces = []string{Any}
	}
	slices.Sort(g.namespaces)
	g.namespaces = slices.Compact(g.namespaces)
	return g
}

// allow sets Allow to the union of all rulings, without the Names that others cover.
func (b *reach) allow() {
	all := map[Names]bool{}
	var wide []Names
	for _, instance := range b.instances {
		for _, kind := range b.kinds {
			for _, namespace := range b.rule(instance, kind).namespaces {
				n := Names{instance.String(), kind.String(), namespace}
				all[n] = true
				if n.Instance == Any || n.Kind == Any || n.Namespace == Any {
					wide = append(wide, n)
				}
			}
		}
	}
	for n := range all {
		if !slices.ContainsFunc(wide, func(m Names) bool { return m != n && m.covers(n) }) {
			b.Allow = append(b.Allow, n)
		}
	}
	slices.SortFunc(b.Allow, Names.compare)
}

// deny sets Deny to the kinds that are forbidden wholly although Allow selects them.
func (b *reach) deny() {
	for _, kind := range b.kinds {
		if kind.other {
			continue
		}
		var forbid []Names
		everywhere := true
		for _, instance := range b.instances {
			if len(b.rule(instance, kind).namespaces) > 0 {
				everywhere = false
			} else if !instance.other {
				forbid = append(forbid, Names{instance.text, kind.text, Any})
			}
		}
		if everywhere && b.instances[len(b.instances)-1].other {
			forbid = []Names{{Any, kind.text, Any}}
		}
		for _, n := range forbid {
			overlaps := func(m Names) bool {
				return (m.Instance == Any || n.Instance == Any || m.Instance == n.Instance) && (m.Kind == Any || m.Kind == n.Kind)
			}
			if slices.ContainsFunc(b.Allow, overlaps) {
				b.Deny = append(b.Deny, n)
			}
		}
	}
	slices.SortFunc(b.Deny, Names.compare)
}

// parts sets FoldOnly.
func (b *reach) parts() {
	seen := map[Part]bool{}
	add := func(rule int, field, reason string) {
		if p := (Part{rule, field, reason}); !seen[p] {
			seen[p] = true
			b.FoldOnly = append(b.FoldOnly, p)
		}
	}
	const noGlobs = "a permission is for one %s or for all, so %q allows all"
	for _, i := range b.matching {
		rule, at := b.rules[i], field(i)
		if !slices.ContainsFunc(b.instances, func(n name) bool { return n.matchesInstance(rule) != no }) {
			continue
		}
		b.Rules = append(b.Rules, i)
		if partial(rule.GetInstance()) && b.instances[len(b.instances)-1].other {
			add(i, at+".instance", fmt.Sprintf(noGlobs, "instance", rule.GetInstance()))
		}
		for j, glob := range rule.GetKinds() {
			if partial(glob) {
				add(i, fmt.Sprintf("%s.kinds[%d]", at, j), fmt.Sprintf(noGlobs, "kind", glob))
			}
		}
		for j, glob := range rule.GetNamespaces() {
			if partial(glob) && !slices.ContainsFunc(rule.GetNamespaces(), whole) {
				add(i, fmt.Sprintf("%s.namespaces[%d]", at, j), fmt.Sprintf(noGlobs, "namespace", glob))
			}
		}
		if len(rule.GetHosts()) > 0 {
			add(i, at+".hosts", "the subject of a record names no host")
		}
	}
	b.leaks(add)
	policy := name{text: PolicyKind}
	for _, instance := range b.instances {
		if g := b.ruled(instance, policy); b.byDefault(policy) && !g.permits(Any) {
			rule := slices.Max(append([]int{-1}, g.by...))
			add(rule, field(rule), "MeshPolicy: the bus allows this, because the policy that is served may come from here")
		}
	}
}

func whole(glob string) bool { return glob != "" && strings.Trim(glob, "*") == "" }

func partial(glob string) bool { return isGlob(glob) && !whole(glob) }

// leak is what a rule forbids to objects of some kinds, and the Names of another
// ruling allow.
type leak struct {
	rule   int
	where  string
	allows Names
}

// leaks finds what a ruling forbids and the Names of another one allow.
func (b *reach) leaks(add func(rule int, field, reason string)) {
	kinds := map[leak][]string{}
	var order []leak
	for _, instance := range b.instances {
		for _, kind := range b.kinds {
			if b.denied(instance, kind) {
				continue
			}
			g := b.rule(instance, kind)
			for _, n := range b.Allow {
				if n.Instance != Any && !instance.is(n.Instance) || n.Kind != Any && !kind.is(n.Kind) || g.permits(n.Namespace) {
					continue
				}
				l := leak{slices.Max(append([]int{-1}, g.by...)), b.where(instance, g, n), n}
				if kinds[l] == nil {
					order = append(order, l)
				}
				text := kind.text
				if kind.other {
					text = "other kinds"
				}
				kinds[l] = append(kinds[l], text)
			}
		}
	}
	for _, l := range order {
		add(l.rule, field(l.rule), fmt.Sprintf("%s%s: the bus allows this, because %s needs it and a permission has no exceptions",
			strings.Join(kinds[l], ", "), l.where, b.cause(l.allows)))
	}
}

// where returns of which instance and in which namespaces n allows what g forbids.
func (b *reach) where(instance name, g ruling, n Names) string {
	where := ""
	switch {
	case len(b.instances) == 1:
	case instance.other:
		where = " of other instances"
	default:
		where = " of instance " + instance.text
	}
	switch {
	case n.Namespace != Any:
		where += " in namespace " + n.Namespace
	case len(g.namespaces) > 0:
		where += " in other namespaces"
	}
	return where
}

// field returns the path of a rule, of all rules for -1.
func field(rule int) string {
	if rule < 0 {
		return "sourceRules"
	}
	return fmt.Sprintf("sourceRules[%d]", rule)
}

// cause returns the rules that need an element of Allow.
func (b *reach) cause(n Names) string {
	var by []int
	for _, instance := range b.instances {
		for _, kind := range b.kinds {
			if g := b.rule(instance, kind); instance.String() == n.Instance && kind.String() == n.Kind && slices.Contains(g.namespaces, n.Namespace) {
				by = append(by, g.by...)
			}
		}
	}
	slices.Sort(by)
	var fields []string
	for _, i := range slices.Compact(by) {
		fields = append(fields, field(i))
	}
	return cmp.Or(strings.Join(fields, " or "), "the default")
}

func (b *reach) denied(instance, kind name) bool {
	return slices.ContainsFunc(b.Deny, func(n Names) bool {
		return kind.is(n.Kind) && (n.Instance == Any || instance.is(n.Instance))
	})
}
