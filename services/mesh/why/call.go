package why

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/simulate"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
)

// CallQuestion asks where a call of a proxy goes, or where it ends and why.
type CallQuestion struct {
	World *world.World
	Proxy *proxy.Proxy
	Call  simulate.Call
}

// End is where a call ends.
type End string

// The ends of calls.
const (
	Passes      End = "passes" // each cluster that it may go to has a healthy endpoint
	Unknown     End = "unknown"
	Denied      End = "denied" // by a policy
	Closed      End = "closed" // the listener closes the connection
	NoListener  End = "no listener"
	NoRoute     End = "no route"
	NotVisible  End = "not visible"
	NotImported End = "not imported" // by the proxy's Sidecar
	NoSuchHost  End = "no such host"
	Answered    End = "answered" // by the proxy
	NoCluster   End = "no cluster"
	NoEndpoint  End = "no endpoint"
	Unhealthy   End = "no healthy endpoint"
	Quarantined End = "quarantined"
)

// CallAnswer says where a call goes or ends.
type CallAnswer struct {
	Outcome simulate.Outcome
	End     End
	Says    string // the end, in a sentence
	// Hidden are the services of the host that the proxy does not see.
	Hidden []ident.Key
	// Changes are changes of one object after which the call would pass, the smallest of
	// each object first. If the call passes, there are none.
	Changes []Change
	// Makers are the objects without which the call would go or end elsewhere.
	Makers []Maker
	// Problems are what the generator reports about objects of the host.
	Problems []problem.Diagnostic
	Tried    int
	// Hosts are the names of the host in objects.
	Hosts []string
}

// Change is the removal of a field or, with Field empty, of an object.
type Change struct {
	Key          ident.Key
	Field, Value string
}

// Maker is an object without which a call would go or end elsewhere.
type Maker struct {
	Key  ident.Key
	Then []string // the outcome without it, in lines
	End  End
}

// caller answers one question.
type caller struct {
	CallQuestion
	pc       *index.PushContext
	class    index.ProxyClass
	catalog  *xds.Catalog
	decoder  simulate.Decoder
	replaced map[string]bool // names of resources that a quarantine replaces
	outcome  simulate.Outcome
	end      End
	key      string // of the outcome
	hosts    []string
	tried    int
}

// callTypes are the types that a call depends on.
var callTypes = []ident.ResourceType{ident.CDS, ident.EDS, ident.LDS, ident.RDS, ident.ECDS}

// WhyNot answers a question about a call.
func WhyNot(q CallQuestion) (*CallAnswer, error) {
	whole, err := newCaller(q)
	if err != nil {
		return nil, err
	}
	c, err := whole.shrink()
	if err != nil {
		return nil, err
	}
	a := &CallAnswer{Outcome: c.outcome, End: c.end, Hosts: c.hosts}
	if c.end == NotVisible || c.end == NotImported {
		a.Hidden = c.hidden(c.pc, c.class)
	}
	a.Says = c.says(a)
	about, err := c.candidates()
	if err != nil {
		return nil, err
	}
	for _, o := range about {
		if err := c.vary(o, a); err != nil {
			return nil, err
		}
	}
	a.Problems = whole.problems(about)
	a.Tried = c.tried
	return a, nil
}

// newCaller simulates the call.
func newCaller(q CallQuestion) (*caller, error) {
	c := &caller{CallQuestion: q, pc: index.NewPushContext(q.World), decoder: simulate.Decoder{}, replaced: map[string]bool{}}
	c.class, c.catalog = index.Classify(c.pc, q.Proxy), xds.NewCatalog(c.pc)
	var err error
	if c.outcome, err = c.simulate(c.pc, c.class, c.replaced); err != nil {
		return nil, err
	}
	c.name()
	c.end, c.key = c.endOf(c.pc, c.class, c.outcome), strings.Join(c.outcome.Lines(), "\n")
	return c, nil
}

// simulate returns the outcome of the call for a class.
func (c *caller) simulate(pc *index.PushContext, class index.ProxyClass, replaced map[string]bool) (simulate.Outcome, error) {
	var sets [ident.ResourceTypes]*xds.Set
	for _, t := range callTypes {
		made := c.catalog.Set(class.Only(t), t)
		served, names := c.catalog.Replace(t, made, pc.Replacements(t, class.Release(t)))
		sets[t] = served
		for _, n := range names {
			if replaced != nil {
				replaced[n] = true
			}
		}
	}
	p, err := c.decoder.Proxy(sets)
	if err != nil {
		return simulate.Outcome{}, err
	}
	return p.Call(c.Call), nil
}

// try returns the outcome and the end of the call in a world in which some rows are others.
func (c *caller) try(rows ...world.RowChange) (simulate.Outcome, End, error) {
	c.tried++
	w, keys, err := c.World.Apply(world.Change{Rows: rows})
	if err != nil {
		return simulate.Outcome{}, "", fmt.Errorf("try another world: %w", err)
	}
	pc, inputs, err := next(c.pc, w, keys)
	if errors.Is(err, errUnread) {
		return c.outcome, c.end, nil
	}
	class := c.class
	if !c.pc.SameClasses(pc) {
		class = index.Classify(pc, c.Proxy)
	}
	c.catalog.Update(pc, inputs)
	o, err := c.simulate(pc, class, nil)
	end := c.endOf(pc, class, o)
	for _, t := range callTypes {
		if class.Only(t) != c.class.Only(t) {
			c.catalog.Drop(class.Only(t), t)
		}
	}
	c.catalog.Update(c.pc, inputs)
	return o, end, err
}

// name finds the names that objects may have for the host of the call.
func (c *caller) name() {
	host := strings.ToLower(hostOnly(c.Call.Host))
	c.hosts = []string{host}
	add := func(h string) {
		if h != "" && !strings.Contains(h, "*") && strings.Contains(h, ".") && !slices.Contains(c.hosts, h) {
			c.hosts = append(c.hosts, h)
		}
	}
	suffix := c.pc.Read().DomainSuffix()
	for _, s := range c.pc.AllServices() {
		short := strings.TrimSuffix(s.Hostname, ".svc."+suffix)
		name, _, _ := strings.Cut(short, ".")
		if s.Kubernetes && (host == short || host == short+".svc" || host == name && s.Namespace == c.Proxy.Namespace) || c.isAddressOf(s) {
			add(s.Hostname)
		}
	}
}

// isAddressOf reports whether the call is for an address of a service.
func (c *caller) isAddressOf(s *index.Service) bool {
	return c.Call.Address.IsValid() && c.Call.Host == "" && slices.Contains(s.Addresses, c.Call.Address.String())
}

func hostOnly(host string) string {
	if i := strings.LastIndexByte(host, ':'); i > 0 && (host[i-1] == ']' || strings.Count(host, ":") == 1) {
		return host[:i]
	}
	return host
}

// hidden returns the objects of the host's services that the proxy does not see.
func (c *caller) hidden(pc *index.PushContext, class index.ProxyClass) (keys []ident.Key) {
	r := pc.Read()
	for _, s := range pc.AllServices() {
		if !slices.Contains(c.hosts, s.Hostname) {
			continue
		}
		if seen := r.ServiceByHost(class.LDS.Scope, s.Hostname); seen != nil && seen.ServiceID == s.ServiceID {
			return nil
		}
		keys = append(keys, s.Key)
	}
	return keys
}

// visible reports whether the namespace of the proxy sees a service of the host, whatever its
// Sidecar imports.
func (c *caller) visible(pc *index.PushContext) bool {
	return slices.ContainsFunc(pc.AllServices(), func(s *index.Service) bool {
		return slices.Contains(c.hosts, s.Hostname) && s.ExportTo.Shows(s.Namespace, c.Proxy.Namespace)
	})
}

// endOf returns where a call ends.
func (c *caller) endOf(pc *index.PushContext, class index.ProxyClass, o simulate.Outcome) End {
	through := slices.ContainsFunc(o.To, func(d simulate.Destination) bool { return d.Cluster == passthrough || d.Cluster == blackHole })
	lost := o.Listener == "" || through || o.Status >= 400 && len(o.To) == 0
	switch {
	case o.Unknown != "":
		return Unknown
	case o.Refused:
		return Denied
	case c.quarantined(o):
		return Quarantined
	case lost && class.LDS.Scope.Imports != "" && len(c.hidden(pc, class)) > 0 && c.visible(pc):
		return NotImported
	case lost && c.Call.Host != "" && len(c.hidden(pc, class)) > 0:
		return NotVisible
	case o.Listener == "":
		return NoListener
	case o.Closed:
		return Closed
	case through:
		return NoSuchHost
	case o.Status == 404 && o.Route == "" && o.Body == "":
		return NoRoute
	case len(o.To) == 0:
		return Answered
	}
	for _, d := range o.To {
		if end := endAt(d); end != Passes {
			return end
		}
	}
	return Passes
}

const (
	passthrough = "PassthroughCluster"
	blackHole   = "BlackHoleCluster"
)

func endAt(d simulate.Destination) End {
	switch {
	case d.Missing:
		return NoCluster
	case len(d.Endpoints) == 0:
		return NoEndpoint
	case !d.Healthy():
		return Unhealthy
	}
	return Passes
}

// quarantined reports whether a resource on the way of a call that does not pass is replaced.
func (c *caller) quarantined(o simulate.Outcome) bool {
	if len(c.replaced) == 0 {
		return false
	}
	passes := len(o.To) > 0 && !slices.ContainsFunc(o.To, func(d simulate.Destination) bool { return endAt(d) != Passes })
	return !passes && slices.ContainsFunc(way(o), func(n named) bool { return c.replaced[n.name] })
}

type named struct {
	t    ident.ResourceType
	name string
}

// way returns the resources on the way of a call.
func way(o simulate.Outcome) []named {
	all := []named{{ident.LDS, o.Listener}, {ident.RDS, o.RouteConfiguration}}
	for _, d := range o.Decisions {
		all = append(all, named{ident.ECDS, d.Filter})
	}
	for _, d := range o.To {
		all = append(all, named{ident.CDS, d.Cluster}, named{ident.EDS, d.Cluster})
	}
	return all
}

// candidates returns the objects that name the host, and those that made what is on the way
// of the call.
func (c *caller) candidates() (about []*object, err error) {
	var parts []index.Input
	for _, n := range way(c.outcome) {
		read, _ := c.catalog.Inputs(c.class, n.t, n.name)
		parts = append(parts, read...)
	}
	slices.SortFunc(parts, index.Input.Compare)
	parts = slices.Compact(parts)
	s := &scene{world: c.World, pc: c.pc}
	var readers []*object
	for _, k := range kind.All() {
		for o := range c.World.Objects(k.Name) {
			if c.mentions(o) || c.importsBy(o) {
				about = append(about, newObject(o.Key, o.Value))
				continue
			}
			inputs, err := s.read([]world.RowChange{{Row: o.Key.Row(), Key: o.Key}})
			if err != nil {
				return nil, err
			}
			if overlap(inputs, parts) {
				readers = append(readers, newObject(o.Key, o.Value))
			}
		}
	}
	makers, err := bisect(readers, func(some []*object) (bool, error) {
		var rows []world.RowChange
		for _, o := range some {
			rows = append(rows, o.without())
		}
		o, _, err := c.try(rows...)
		return strings.Join(o.Lines(), "\n") != c.key, err
	})
	return slices.Concat(about, makers), err
}

// importsBy reports whether an object is the Sidecar that does not import the host.
func (c *caller) importsBy(o world.Object) bool {
	s := c.pc.Sidecar(c.Proxy)
	return c.end == NotImported && s != nil && s.Key == o.Key
}

func nameOf(s *index.Sidecar) string { return s.Key.Namespace + "/" + s.Key.Name }

// mentions reports whether an object has a name of the host.
func (c *caller) mentions(o world.Object) bool { return Mentions(c.hosts, o.Key, o.Value) }

// Mentions reports whether an object has one of some names of a host.
func Mentions(hosts []string, k ident.Key, v ident.Value) bool {
	for _, h := range hosts {
		name, rest, _ := strings.Cut(h, ".")
		ns, rest, isService := strings.Cut(rest, ".")
		isService = isService && strings.HasPrefix(rest, "svc")
		switch {
		case h == "":
		case bytes.Contains(v.Bytes, []byte(h)):
			return true
		case !isService:
		case k.Namespace == ns && (k.Kind == world.ServiceKind && k.Name == name || k.Kind != world.ServiceKind && bytes.Contains(v.Bytes, []byte(name))):
			return true
		case bytes.Contains(v.Bytes, []byte(name+"."+ns)):
			return true
		}
	}
	return false
}

// mostFields is how many fields of an object are tried.
const mostFields = 2000

// vary finds out what the call would do without an object and, if it does not pass, without
// a field of it.
func (c *caller) vary(o *object, a *CallAnswer) error {
	then, end, err := c.try(o.without())
	if err != nil {
		return err
	}
	if lines := then.Lines(); strings.Join(lines, "\n") != c.key {
		a.Makers = append(a.Makers, Maker{o.key, lines, end})
	}
	if c.end == Passes || c.end == Unknown {
		return nil
	}
	var found []Change
	if o.fields != nil {
		fields := fieldsIn(o)
		for _, l := range fields[:min(mostFields, len(fields))] {
			if slices.ContainsFunc(found, func(f Change) bool { return within(f.Field, l.path) }) {
				continue // what is in it is enough
			}
			if l.ways > 1 {
				continue // without an enum its object means something else: ALLOW in place of DENY
			}
			row, v, err := o.varied([]leaf{l}, cleared)
			if err != nil || !isValid(o.key, v) {
				continue
			}
			if _, end, err := c.try(row); err != nil {
				return err
			} else if end == Passes {
				found = append(found, Change{o.key, l.path, l.text})
			}
		}
	}
	if end == Passes && len(found) == 0 {
		found = append(found, Change{Key: o.key})
	}
	a.Changes = append(a.Changes, found...)
	return nil
}

// fieldsIn returns the leaves of an object, and then what they are in: the innermost first.
func fieldsIn(o *object) []leaf {
	all := slices.Clone(o.leaves)
	seen := map[string]bool{}
	var outer []leaf
	for _, l := range o.leaves {
		for n := len(l.steps) - 1; n > 0; n-- {
			last := l.steps[n-1]
			if last.isAny || last.field != nil && (last.field.IsList() || last.field.IsMap()) {
				continue
			}
			if path := pathOf(o.prefix, l.steps[:n]); !seen[path] && path != l.path {
				seen[path] = true
				outer = append(outer, leaf{path: path, steps: l.steps[:n]})
			}
		}
	}
	slices.SortStableFunc(outer, func(a, b leaf) int { return cmp.Compare(len(b.steps), len(a.steps)) })
	return append(all, outer...)
}

// problems returns what is reported about objects of the host.
func (c *caller) problems(about []*object) []problem.Diagnostic {
	all := slices.Concat(c.pc.Diagnostics(), c.catalog.Diagnostics(), c.World.Diagnostics())
	all = slices.DeleteFunc(all, func(d problem.Diagnostic) bool {
		return !slices.ContainsFunc(about, func(o *object) bool { return o.key == d.Key }) && !slices.ContainsFunc(c.hosts, func(h string) bool { return h != "" && strings.Contains(d.Reason, h) })
	})
	slices.SortFunc(all, problem.Diagnostic.Compare)
	return slices.Compact(all)
}

// says describes the end in a sentence.
func (c *caller) says(a *CallAnswer) string {
	o, host := a.Outcome, hostOnly(c.Call.Host)
	bad := simulate.Destination{}
	for _, d := range o.To {
		if endAt(d) == a.End {
			bad = d
		}
	}
	switch a.End {
	case Passes:
		return "The call passes."
	case Unknown:
		return "The simulation cannot tell: " + o.Unknown
	case Denied:
		d := o.Decisions[len(o.Decisions)-1]
		if d.Rule == "" {
			return fmt.Sprintf("A policy denies the call: no rule of the filter %s matches.", d.Filter)
		}
		return fmt.Sprintf("A policy denies the call: rule %s of the filter %s matches.", d.Rule, d.Filter)
	case Closed:
		return "The listener closes the connection: " + strings.Join(o.Notes, "; ")
	case NoListener:
		return fmt.Sprintf("The proxy has no listener for port %d.", c.Call.Port)
	case NoRoute:
		if o.VirtualHost == "" {
			return fmt.Sprintf("No virtual host of %s has the host %q.", o.RouteConfiguration, host)
		}
		return fmt.Sprintf("No route of the virtual host %s matches.", o.VirtualHost)
	case NotImported:
		return fmt.Sprintf("The host %q is not imported by Sidecar %s: none of its egress hosts has it, or one takes it away.", cmp.Or(host, c.Call.Address.String()), nameOf(c.pc.Sidecar(c.Proxy)))
	case NotVisible:
		return fmt.Sprintf("A service has the host %q, and namespace %s does not see it.", host, c.Proxy.Namespace)
	case NoSuchHost:
		return fmt.Sprintf("No service that the proxy sees has the host %q on port %d, so the call leaves the mesh or fails.", cmp.Or(host, c.Call.Address.String()), c.Call.Port)
	case Answered:
		return fmt.Sprintf("The proxy answers the call itself, with %d.", o.Status)
	case NoCluster:
		return fmt.Sprintf("The route names the cluster %s, which does not exist: 503.", bad.Cluster)
	case NoEndpoint:
		return fmt.Sprintf("The cluster %s has no endpoints: 503.", bad.Cluster)
	case Unhealthy:
		return fmt.Sprintf("The cluster %s has no healthy endpoint.", bad.Cluster)
	case Quarantined:
		return "A quarantine replaces a resource on the way of the call."
	}
	return ""
}
