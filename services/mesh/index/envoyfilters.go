package index

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/envoyfilter"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/table"
	"meshlog.dev/services/mesh/world"
)

const envoyFilterKind = "EnvoyFilter"

// filterIndex holds the patches of EnvoyFilters by the proxies that they are for, and by what
// they change of these, so that a patch that changes concerns nothing that it does not match
// (EF-10).
type filterIndex struct {
	cells table.Groups[patchCell, *Patch]
	// selections has an entry for each thing that a class depends on.
	selections table.Groups[patchSelection, *Patch]
	objects    table.Table[ident.Key, []*Patch]
}

type (
	// patchSelection names the proxies of some kind whose resources of a type a patch is for.
	patchSelection struct {
		text   string // of chooser
		client Client
		t      ident.ResourceType
	}
	// patchCell names what a patch can match of them: At of Patch.
	patchCell struct {
		patchSelection
		at string
	}
)

func (c patchCell) input() Input {
	return Input{Kind: InputEnvoyFilter, A: c.text, B: fmt.Sprintf("%s %s %s", c.client, c.t, c.at)}
}

// PatchID names a patch: the object, and its index in spec.configPatches.
type PatchID struct {
	Key   ident.Key
	Index int
}

// Patch is a patch of an EnvoyFilter. It is immutable, its Value too.
type Patch struct {
	PatchID
	ApplyTo   envoyfilter.ApplyTo
	Operation envoyfilter.Operation
	Context   networking.EnvoyFilter_PatchContext
	Match     *networking.EnvoyFilter_EnvoyConfigObjectMatch
	Value     proto.Message // nil: of REMOVE
	// Privileged: its namespace may change what policies and TLS of the mesh decide (POL-17).
	Privileged bool

	created  time.Time
	priority int32
	root     bool // in the root namespace
	chosen   *chooser
}

// MemberKey returns a key that stands for the patch.
func (p *Patch) MemberKey() ident.Key {
	k := p.Key
	k.Name += " " + strconv.Itoa(p.Index)
	return k
}

// Problem returns a Diagnostic about a field of the patch; "" is the patch itself.
func (p *Patch) Problem(field string) problem.Diagnostic {
	at := fmt.Sprintf("spec.configPatches[%d]", p.Index)
	if field != "" {
		at += "." + field
	}
	return problem.Diagnostic{Severity: problem.Warning, Code: "patch", Key: p.Key, Field: at}
}

// compare orders patches as they are applied (EF-7): by priority, those of the root namespace
// first, the oldest object first, then by name. An object without a time of creation counts
// as the youngest.
func (p *Patch) compare(o *Patch) int {
	age := func(at time.Time) int64 {
		if at.IsZero() {
			return 1<<63 - 1
		}
		return at.UnixNano()
	}
	first := func(root bool) int {
		if root {
			return 0
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(p.priority, o.priority), first(p.root)-first(o.root), cmp.Compare(age(p.created), age(o.created)),
		strings.Compare(p.Key.Name, o.Key.Name), strings.Compare(p.Key.Namespace, o.Key.Namespace),
		strings.Compare(p.Key.Row(), o.Key.Row()), cmp.Compare(p.Index, o.Index),
	)
}

func (p *Patch) same(o *Patch) bool {
	return p.PatchID == o.PatchID && p.compare(o) == 0 && p.Privileged == o.Privileged && p.ApplyTo == o.ApplyTo && p.Operation == o.Operation &&
		sameMessage(p.Match, o.Match) && (p.Value == nil) == (o.Value == nil) && (p.Value == nil || sameMessage(p.Value, o.Value))
}

// chooser chooses the proxies that a patch is for (EF-4, EF-8).
type chooser struct {
	namespace string
	labels    map[string]string
	local     bool // only those of the namespace, though it is the root namespace: the target is a Gateway
	version   *regexp.Regexp
	metadata  map[string]string
	text      string // equal choosers have equal texts
}

// newChooser returns a chooser; nil: the expression is none, or too long, so nothing matches.
func newChooser(namespace string, labels map[string]string, local bool, m *networking.EnvoyFilter_ProxyMatch) *chooser {
	c := &chooser{namespace: namespace, labels: labels, local: local, metadata: m.GetMetadata()}
	group := selects{namespace, selectorText(labels), local}
	c.text = group.text()
	if m.GetProxyVersion() == "" && len(m.GetMetadata()) == 0 {
		return c
	}
	if v := m.GetProxyVersion(); v != "" {
		var err error
		if c.version, err = regexp.Compile(v); err != nil || len(v) > envoyfilter.MaxVersion {
			return nil
		}
	}
	b, err := json.Marshal(map[string]any{"version": m.GetProxyVersion(), "metadata": m.GetMetadata()}) // one line, keys sorted
	if err != nil {
		return nil
	}
	c.text += " " + string(b)
	return c
}

// in reports whether proxies of a namespace can be chosen.
func (c *chooser) in(namespace, root string) bool {
	return selects{namespace: c.namespace, local: c.local}.in(namespace, root)
}

func (c *chooser) matches(p *proxy.Proxy, root string) bool {
	if !c.in(p.Namespace, root) || !matchLabels(c.labels, p.Labels) {
		return false
	}
	if c.version != nil {
		if v := p.Text("ISTIO_VERSION"); v == "" || len(v) > envoyfilter.MaxVersion || !c.version.MatchString(v) {
			return false
		}
	}
	for name, value := range c.metadata {
		if p.Text(name) != value {
			return false
		}
	}
	return true
}

// newPatches returns the patches of an object that can do something, once for each thing that
// the object selects, and what is wrong with others.
func (s *settings) newPatches(o *world.Object) (all []*Patch, problems []problem.Diagnostic) {
	f, ok := o.Message.(*networking.EnvoyFilter)
	if !ok {
		return nil, nil
	}
	privileged := s.reach(o.Key.Namespace) == ""
	for i, spec := range f.GetConfigPatches() {
		p := &Patch{
			PatchID: PatchID{o.Key, i}, ApplyTo: spec.GetApplyTo(), Operation: spec.GetPatch().GetOperation(), Context: spec.GetMatch().GetContext(),
			Match: spec.GetMatch(), Privileged: privileged, created: o.Created, priority: f.GetPriority(), root: o.Key.Namespace == s.rootNamespace,
		}
		if !envoyfilter.Works(p.ApplyTo, p.Operation) {
			continue
		}
		if p.Operation != networking.EnvoyFilter_Patch_REMOVE {
			var err error
			if p.Value, _, err = envoyfilter.Value(p.ApplyTo, spec.GetPatch().GetValue()); err != nil { // another build accepted it
				d := p.Problem("patch.value")
				d.Severity, d.Reason, d.Advice, d.Effect = problem.Error, err.Error(), "correct the value", "the patch has no effect"
				problems = append(problems, d)
				continue
			}
		}
		if d := p.touching(); d != nil {
			if problems = append(problems, *d); !privileged {
				continue
			}
		}
		for _, c := range s.choosers(f, o.Key.Namespace, spec.GetMatch().GetProxy()) {
			one := *p
			one.chosen = c
			all = append(all, &one)
		}
	}
	return all, problems
}

// choosers returns what a patch of an object selects (EF-8).
func (s *settings) choosers(f *networking.EnvoyFilter, namespace string, m *networking.EnvoyFilter_ProxyMatch) (all []*chooser) {
	add := func(labels map[string]string, local bool) {
		if c := newChooser(namespace, labels, local, m); c != nil && !slices.ContainsFunc(all, func(o *chooser) bool { return o.text == c.text }) {
			all = append(all, c)
		}
	}
	targets := f.GetTargetRefs()
	for _, t := range targets {
		switch t.GetKind() {
		case "Gateway":
			add(map[string]string{gatewayNameLabel: t.GetName()}, true)
		case "GatewayClass":
			if namespace == s.rootNamespace {
				add(map[string]string{gatewayClassLabel: t.GetName()}, false)
			}
		}
	}
	if len(targets) == 0 {
		add(f.GetWorkloadSelector().GetLabels(), false)
	}
	return all
}

// elsewhere reports targets that select no proxy because of where the object is.
func (s *settings) elsewhere(o *world.Object) (problems []problem.Diagnostic) {
	f, ok := o.Message.(*networking.EnvoyFilter)
	if !ok || o.Key.Namespace == s.rootNamespace {
		return nil
	}
	for i, t := range f.GetTargetRefs() {
		if t.GetKind() == "GatewayClass" {
			problems = append(problems, problem.Diagnostic{
				Severity: problem.Warning, Code: "unreachable", Key: o.Key, Field: fmt.Sprintf("spec.targetRefs[%d].kind", i),
				Reason: "only an EnvoyFilter of the root namespace can select all Gateways of a class",
				Advice: "name a Gateway, or move the object to namespace " + s.rootNamespace, Effect: "the target selects no proxy",
			})
		}
	}
	return problems
}

// touching reports a resource that the patch would add in place of policies or TLS (POL-17).
func (p *Patch) touching() *problem.Diagnostic {
	if !envoyfilter.Whole(p.ApplyTo, p.Operation) {
		return nil
	}
	named, _ := p.Value.(interface{ GetName() string })
	reason := touched(p.Value)
	if p.ApplyTo == networking.EnvoyFilter_EXTENSION_CONFIG && strings.HasPrefix(named.GetName(), policySlots) {
		reason = "it has the name of a slot of policies, " + named.GetName()
	}
	if reason == "" {
		return nil
	}
	d := p.Touches(reason)
	return &d
}

// Touches reports that the patch changes what policies or TLS of the mesh decide: with a
// warning where its namespace may (POL-17).
func (p *Patch) Touches(reason string) problem.Diagnostic {
	d := p.Problem("patch")
	d.Code, d.Reason = "touches-policies", reason
	d.Advice = "write policies into AuthorizationPolicies, RequestAuthentications and PeerAuthentications, or see that the result has all that they say"
	d.Effect = "for the proxies that get it, it decides before or instead of policies"
	if !p.Privileged {
		d.Reason += ", which only EnvoyFilters of the root namespace and of those in rawResources of the MeshPolicy may do"
		d.Advice, d.Effect = "write policies, or add the namespace to rawResources of the MeshPolicy", "the patch has no effect there"
	}
	return d
}

// next returns the index after changes of EnvoyFilters.
func (x filterIndex) next(t *transition, changes []change) filterIndex {
	if len(changes) == 0 {
		return x
	}
	cells, selections, objects := x.cells.Edit((*Patch).compare), x.selections.Edit((*Patch).compare), x.objects.Edit()
	for _, c := range changes {
		var found []problem.Diagnostic
		var patches []*Patch
		for o, after := range c.versions() {
			all, problems := t.newPatches(o)
			for _, p := range all {
				for _, cell := range p.cells() {
					cells.Keep(cell, p, after)
					selections.Keep(cell.patchSelection, p, after)
				}
			}
			if after {
				found, patches = append(problems, t.elsewhere(o)...), all
			}
		}
		objects.Keep(c.Key, patches, len(patches) > 0)
		t.problem(about{envoyFilterKind, "", c.Row()}, found)
	}
	next := filterIndex{cells.Done(), selections.Done(), objects.Table}
	for cell := range cells.Moved {
		if !slices.EqualFunc(x.cells.Get(cell), next.cells.Get(cell), (*Patch).same) {
			t.changed(cell.input())
		}
	}
	for s := range selections.Moved {
		t.reclassify((len(x.selections.Get(s)) == 0) != (len(next.selections.Get(s)) == 0))
	}
	return next
}

// cells returns the cells of the patch.
func (p *Patch) cells() (all []patchCell) {
	add := func(client Client, t ident.ResourceType, at string) {
		all = append(all, patchCell{patchSelection{p.chosen.text, client, t}, at})
	}
	inbound, outbound, routers := p.in()
	switch {
	case p.ApplyTo == networking.EnvoyFilter_EXTENSION_CONFIG:
		if inbound || outbound {
			add(ClientSidecar, ident.ECDS, AtAdd)
		}
		if routers {
			add(ClientRouter, ident.ECDS, AtAdd)
		}
	case envoyfilter.OfRoutes(p.ApplyTo):
		if outbound {
			add(ClientSidecar, ident.RDS, p.at())
		}
		if inbound { // their routes are in the listeners
			add(ClientSidecar, ident.LDS, "")
		}
		if routers {
			add(ClientRouter, ident.RDS, p.at())
		}
	default:
		t := ident.LDS
		if p.ApplyTo == networking.EnvoyFilter_CLUSTER {
			t = ident.CDS
		}
		if inbound || outbound {
			add(ClientSidecar, t, p.at())
		}
		if routers {
			add(ClientRouter, t, p.at())
		}
	}
	return all
}

// in returns the contexts of the patch (EF-3).
func (p *Patch) in() (inbound, outbound, routers bool) {
	switch p.Context {
	case networking.EnvoyFilter_ANY:
		return true, true, true
	case networking.EnvoyFilter_SIDECAR_INBOUND:
		return true, false, false
	case networking.EnvoyFilter_SIDECAR_OUTBOUND:
		return false, true, false
	case networking.EnvoyFilter_GATEWAY:
		return false, false, true
	}
	return false, false, false
}

// AtAdd is the place of patches that add resources.
const AtAdd = "+"

// A place limits which resources a patch can change, so that only these read the patch: the
// resource of a name, the clusters of a host, the listeners and RouteConfigurations of a port,
// or the virtual hosts of a name. AtAdd is the place of patches that add a resource; "" limits
// nothing.

// AtName is the place of patches for the resource of a name.
func AtName(name string) string { return "name " + name }

// AtHost is the place of patches for the clusters of a host.
func AtHost(host string) string { return "host " + host }

// AtPort is the place of patches for the listeners and RouteConfigurations of a port.
func AtPort(port uint32) string { return "port " + strconv.FormatUint(uint64(port), 10) }

// AtVirtualHost is the place of patches for the virtual hosts of a name.
func AtVirtualHost(name string) string { return "virtual host " + name }

// at returns the place of the patch: whatever has not that place does not match.
func (p *Patch) at() string {
	if envoyfilter.Whole(p.ApplyTo, p.Operation) {
		return AtAdd
	}
	if c := p.Match.GetCluster(); c != nil {
		switch {
		case c.GetName() != "":
			return AtName(c.GetName())
		case c.GetService() != "":
			return AtHost(c.GetService())
		}
		return ""
	}
	if l := p.Match.GetListener(); l != nil {
		switch {
		case l.GetName() != "":
			return AtName(l.GetName())
		case l.GetPortNumber() != 0:
			return AtPort(l.GetPortNumber())
		}
		return ""
	}
	rc := p.Match.GetRouteConfiguration()
	inHost := p.ApplyTo == networking.EnvoyFilter_HTTP_ROUTE || p.ApplyTo == networking.EnvoyFilter_VIRTUAL_HOST && p.Operation != networking.EnvoyFilter_Patch_ADD
	switch {
	case rc.GetName() != "":
		return AtName(rc.GetName())
	case inHost && rc.GetVhost().GetName() != "":
		return AtVirtualHost(rc.GetVhost().GetName())
	case rc.GetPortNumber() != 0:
		return AtPort(rc.GetPortNumber())
	}
	return ""
}

// Patches returns the patches for resources of type t of clients of a class, by its Filters,
// that can match something at one of these places, in their order (EF-7).
func (r *Reader) Patches(client Client, t ident.ResourceType, selected SelectorSet, places ...string) (all []*Patch) {
	for _, text := range selected.Selectors() {
		for _, at := range places {
			cell := patchCell{patchSelection{text, client, t}, at}
			r.note(cell.input())
			all = append(all, r.pc.filters.cells.Get(cell)...)
		}
	}
	slices.SortFunc(all, (*Patch).compare)
	return slices.CompactFunc(all, func(a, b *Patch) bool { return a.PatchID == b.PatchID }) // the object selects a proxy twice
}

// Applied records that a patch has matched something.
func (r *Reader) Applied(p *Patch) {
	if r.applied == nil {
		r.applied = map[PatchID]struct{}{}
	}
	r.applied[p.PatchID] = struct{}{}
}

// AppliedPatches returns the patches that have matched something.
func (r *Reader) AppliedPatches() map[PatchID]struct{} { return r.applied }

// Unapplied reports the patches that have matched nothing, if applied knows those that have
// matched something for the classes that Classes returns (EF-9).
func (pc *PushContext) Unapplied(applied func(PatchID) bool) (all []problem.Diagnostic) {
	for _, patches := range pc.filters.objects.All() {
		seen := map[int]bool{}
		for _, p := range patches {
			name := p.Match.GetListener().GetName()
			unredirected := strings.HasPrefix(name, "inbound_") || strings.HasPrefix(name, "127.0.0.1_") // no class of Classes is
			if seen[p.Index] || unredirected || applied(p.PatchID) {
				continue
			}
			seen[p.Index] = true
			d := p.Problem("match")
			d.Code, d.Effect = "unmatched", "the patch has no effect"
			d.Reason = "it matches nothing that is made for the proxies that the object selects"
			d.Advice = "compare it with what `meshlog proxy-config` shows of such a proxy"
			all = append(all, d)
		}
	}
	slices.SortFunc(all, problem.Diagnostic.Compare)
	return all
}
