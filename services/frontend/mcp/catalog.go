package mcp

import (
	"crypto/sha256"
	"encoding/hex"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/world"
)

const (
	serviceEntryKind = "ServiceEntry"
	policyKind       = "AuthorizationPolicy"
)

// Catalog makes the sets of the served version, when they are asked for, and keeps them until
// they change. It is safe for concurrent use.
type Catalog struct {
	kinds map[string]*kind.Kind // by GROUP/VERSION/KIND

	mu    sync.Mutex // protects what follows; it is not held while sets are made
	now   state
	moved map[*kind.Kind]uint64 // versions that may have changed the kind

	making sync.Mutex // protects what follows
	made   map[*kind.Kind]*collection
}

// state is a version.
type state struct {
	version ident.Position
	world   *world.World // nil: none yet
	index   *index.PushContext
	sinks   []*configv1.McpSink
}

// collection is all that sinks may get of a kind at one version.
type collection struct {
	moved   uint64
	entries []*entry // sorted by name
	known   map[object]made
	sets    map[*configv1.McpSink]*Set
	bytes   map[string]*Set // by version: sinks with equal sets share them
}

// object names what an entry is made of: an object, or a service by its host.
type object struct{ kind, namespace, name string }

// made is an entry and what it was made of, by which a change is noticed.
type made struct {
	of        any // a pointer
	created   time.Time
	endpoints index.Endpoints // compared by identity
	hosts     []string
	name      string
	entry     *entry // nil: there is nothing to send
}

// same reports whether the entries of both are equal.
func (m *made) same(o *made) bool {
	return m.of == o.of && m.created.Equal(o.created) && m.name == o.name && slices.Equal(m.hosts, o.hosts) &&
		reflect.ValueOf(m.endpoints).Pointer() == reflect.ValueOf(o.endpoints).Pointer()
}

// Set is what a sink gets of a kind. It is immutable.
type Set struct {
	Version   string // a hash of its content
	Resources int
	Size      int      // in bytes
	Slices    [][]byte // of the field resources of a response
}

// NewCatalog returns a catalog without a version.
func NewCatalog() *Catalog {
	c := &Catalog{kinds: map[string]*kind.Kind{}, moved: map[*kind.Kind]uint64{}, made: map[*kind.Kind]*collection{}}
	for _, k := range kind.Istio() {
		for _, v := range k.Versions {
			c.kinds[k.Group+"/"+v+"/"+k.DocumentKind()] = k
		}
	}
	return c
}

// Update makes the catalog serve a version; changed are the inputs that differ from the
// version before.
func (c *Catalog) Update(version ident.Position, w *world.World, pc *index.PushContext, changed []index.Input) {
	next := state{version, w, pc, w.Policy().Sinks}
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.now
	c.now = next
	all := was.world == nil || !slices.Equal(was.sinks, next.sinks)
	for _, k := range kind.Istio() {
		if all || next.moves(was, k.Name, changed) {
			c.moved[k]++
		}
	}
}

// moves reports whether the entries of a kind may differ from those of the version before.
func (s *state) moves(was state, kindName string, changed []index.Input) bool {
	same := s.world.SameKind(was.world, kindName)
	switch kindName {
	case policyKind: // it has what takes the place of others
		for _, k := range kind.Istio() {
			same = same && (!k.Security || s.world.SameKind(was.world, k.Name))
		}
	case serviceEntryKind:
		read := s.index.Read()
		same = same && !slices.ContainsFunc(changed, func(in index.Input) bool {
			switch in.Kind {
			case index.InputMesh, index.InputService:
				return true
			case index.InputEndpoints:
				return s.sends(read.Service(index.ServiceID{Namespace: in.A, Hostname: in.B}))
			}
			return false
		})
	}
	return !same
}

// sends reports whether a sink may get a service as a ServiceEntry.
func (s *state) sends(service *index.Service) bool {
	if service == nil || service.Key.Kind != world.ServiceKind || service.AliasOf != "" {
		return false
	}
	return !service.Kubernetes || slices.ContainsFunc(s.sinks, includesKubernetes)
}

// Version returns the version that is served.
func (c *Catalog) Version() ident.Position {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now.version
}

// Sink returns what a client is sent; nil: it is refused (MCP-16).
func (c *Catalog) Sink(namespace, revision string) *configv1.McpSink {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.now.sinks {
		if matches(s.GetNodeNamespace(), namespace) && matches(s.GetNodeRevision(), revision) {
			return s
		}
	}
	return nil
}

// kindOf returns the kind of a type; nil: sinks get nothing of the type.
func (c *Catalog) kindOf(url string) *kind.Kind { return c.kinds[url] }

// changes returns a number that differs if the sets of a kind may have changed.
func (c *Catalog) changes(k *kind.Kind) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.moved[k]
}

// empty is the set of unknown types.
var empty = setOf(nil, hashOf(nil))

// set returns what a sink gets of a kind now, and the number of changes for that.
func (c *Catalog) set(k *kind.Kind, sink *configv1.McpSink) (*Set, uint64) {
	c.making.Lock()
	defer c.making.Unlock()
	c.mu.Lock()
	now, moved := c.now, c.moved[k]
	c.mu.Unlock()
	all := c.made[k]
	if all == nil || all.moved != moved {
		all = now.collect(k, all)
		all.moved = moved
		c.made[k] = all
	}
	set := all.sets[sink]
	if set == nil {
		set = all.of(sink)
		all.sets[sink] = set
	}
	return set, moved
}

// collect makes the entries of a kind. It takes those that are the same from before, which may
// be nil.
func (s *state) collect(k *kind.Kind, before *collection) *collection {
	c := &collection{known: map[object]made{}, sets: map[*configv1.McpSink]*Set{}, bytes: map[string]*Set{}}
	if before == nil {
		before = &collection{}
	}
	put := func(id object, m made, encode func() *entry) {
		if was, known := before.known[id]; known && was.same(&m) {
			m.entry = was.entry
		} else {
			m.entry = encode()
		}
		c.known[id] = m
		if m.entry != nil {
			c.entries = append(c.entries, m.entry)
		}
	}
	for o := range s.world.Objects(k.Name) {
		if isClosed(o) && k.Name != policyKind {
			continue
		}
		hosts := ownHosts(o, s.index)
		put(object{k.Name, o.Key.Namespace, o.Key.Name}, made{of: o.Message, created: o.Created, hosts: hosts}, func() *entry { return entryOf(o, k, hosts) })
	}
	switch k.Name {
	case policyKind:
		for _, other := range kind.Istio() {
			if !other.Security || other == k {
				continue
			}
			for o := range s.world.Objects(other.Name) {
				if isClosed(o) {
					put(object{other.Name, o.Key.Namespace, o.Key.Name}, made{of: o.Message, created: o.Created}, func() *entry { return entryOf(o, other, nil) })
				}
			}
		}
	case serviceEntryKind:
		s.services(put)
	}
	slices.SortFunc(c.entries, func(a, b *entry) int { return strings.Compare(a.name, b.name) })
	return c
}

// services puts the services of registries, by the names of their hosts. A host with capital
// letters, such as those of Nacos, is there in small ones too, unless another service has it:
// the routes that istiod makes for a service name its cluster in small letters.
func (s *state) services(put func(object, made, func() *entry)) {
	read := s.index.Read()
	all := s.index.AllServices()
	defined := make(map[string]bool, len(all))
	for _, service := range all {
		defined[service.Hostname] = true
	}
	for _, service := range all {
		if !s.sends(service) {
			continue
		}
		hosts := []string{service.Hostname}
		if lower := strings.ToLower(service.Hostname); !defined[lower] {
			hosts, defined[lower] = append(hosts, lower), true
		}
		endpoints := read.Endpoints(service.ServiceID)
		name := service.Hostname
		for s.world.Winner(ident.Key{Kind: serviceEntryKind, Namespace: service.Namespace, Name: name}) != nil {
			name += ".service" // an object has that name
		}
		put(object{world.ServiceKind, service.Namespace, service.Hostname}, made{of: service, endpoints: endpoints, name: name, hosts: hosts},
			func() *entry { return serviceOf(service, endpoints, name, hosts) })
	}
}

// of returns what a sink gets.
func (c *collection) of(sink *configv1.McpSink) *Set {
	var own []*entry
	for _, e := range c.entries {
		if gets(sink, e) {
			own = append(own, e)
		}
	}
	version := hashOf(own)
	set := c.bytes[version]
	if set == nil {
		set = setOf(own, version)
		c.bytes[version] = set
	}
	return set
}

// hashOf returns a hash of a set.
func hashOf(entries []*entry) string {
	h := sha256.New()
	for _, e := range entries {
		_, _ = h.Write(e.sum[:])
	}
	return hex.EncodeToString(h.Sum(nil)[:versionBytes])
}

// mergedSlice is how large a slice of a set is made: gRPC takes longer to look at a small one
// than to copy it.
const mergedSlice = 64 << 10

func setOf(entries []*entry, version string) *Set {
	s := &Set{Version: version, Resources: len(entries)}
	for _, e := range entries {
		s.Size += len(e.bytes)
	}
	left := s.Size
	var merged []byte
	for _, e := range entries {
		if len(merged)+len(e.bytes) > cap(merged) && len(merged) > 0 {
			s.Slices, merged = append(s.Slices, merged), nil
		}
		if merged == nil {
			merged = make([]byte, 0, max(len(e.bytes), min(left, mergedSlice)))
		}
		merged = append(merged, e.bytes...)
		left -= len(e.bytes)
	}
	if len(merged) > 0 {
		s.Slices = append(s.Slices, merged)
	}
	return s
}
