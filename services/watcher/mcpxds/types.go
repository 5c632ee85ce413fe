package mcpxds

import (
	"slices"
	"strings"
	"time"

	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/watcher/registry"
)

// meshConfigType is how sources call the MeshConfig. Its payload is the bare message.
const meshConfigType = "core/v1alpha1/MeshConfig"

// Kinds that differ from others.
const (
	meshConfigKind = "MeshConfig"
	serviceKind    = "ServiceEntry"
)

// set is all that a source has of a kind: the union of its versions (MCP-10).
type set struct {
	kind     *kind.Kind
	versions []*collection // the newest first
	// bodies are the names of the messages that objects of the kind may have: a source
	// may call one message by any version of its package.
	bodies map[string]bool

	first   time.Time // when the first version was answered; zero: none was
	covered bool      // the listing speaks for the kind
	// held: something may be missing that is there, so nothing is removed.
	held bool
	// doubted is when what this run read was doubted first.
	doubted time.Time
	// again is when to read a second time what is held; zero: no new run is needed.
	again time.Time
}

// collection is what a source has under one type.
type collection struct {
	of       *set
	url      string // GROUP/VERSION/KIND
	rank     int    // 0 is the newest version
	answered bool
	accepted string // the version of the last answer without an error
	entries  map[name]entry
	unclear  bool // the last answer had an object without a readable name
	problems problems
}

// name is the name of an object of a kind.
type name struct{ namespace, name string }

func (n name) String() string {
	if n.namespace == "" {
		return n.name
	}
	return n.namespace + "/" + n.name
}

// entry is what is kept of an object: hashes (MCP-11).
type entry struct {
	raw uint64 // of the resource as it came
	sum uint64 // of what is published
	// endpoints of a ServiceEntry.
	endpoints int32
	// plain: nothing is wrong with it, so it needs no second look while raw is the same.
	plain bool
}

// newSets returns the sets to ask for, and their collections by type.
func newSets(meshConfig bool) ([]*set, map[string]*collection) {
	var all []*set
	types := map[string]*collection{}
	add := func(k *kind.Kind, urls []string) {
		s := &set{kind: k, bodies: map[string]bool{}}
		message := strings.TrimPrefix(k.TypeURL, typePrefix)
		s.bodies[message] = true
		for rank, url := range urls {
			c := &collection{of: s, url: url, rank: rank, entries: map[name]entry{}}
			s.versions = append(s.versions, c)
			types[url] = c
		}
		group, _, _ := strings.Cut(k.Group, ".")
		for _, v := range k.Versions {
			s.bodies["istio."+group+"."+v+"."+k.DocumentKind()] = true
		}
		all = append(all, s)
	}
	for _, k := range kind.Istio() {
		var urls []string
		for _, v := range k.Versions {
			urls = append(urls, k.Group+"/"+v+"/"+k.DocumentKind())
		}
		add(k, urls)
	}
	if meshConfig {
		k, _ := kind.ByName(meshConfigKind)
		add(k, []string{meshConfigType})
	}
	return all, types
}

const typePrefix = "type.googleapis.com/"

// awaited reports whether the listing waits for the kind.
func (s *set) awaited() bool { return s.kind.Name != meshConfigKind }

// complete reports whether all versions are answered.
func (s *set) complete() bool {
	return !slices.ContainsFunc(s.versions, func(c *collection) bool { return !c.answered })
}

// unclear reports whether an object of the kind may be one whose name cannot be read.
func (s *set) unclear() bool {
	return slices.ContainsFunc(s.versions, func(c *collection) bool { return c.unclear })
}

// winner returns what the newest version has under a name.
func (s *set) winner(n name) (e entry, rank int, ok bool) {
	for _, c := range s.versions {
		if e, ok = c.entries[n]; ok {
			return e, c.rank, true
		}
	}
	return entry{}, 0, false
}

// total returns how many objects the set has, and endpoints of ServiceEntries.
func (s *set) total() (c registry.Counts) {
	for _, v := range s.versions {
		for n, e := range v.entries {
			if _, rank, _ := s.winner(n); rank == v.rank {
				c.Services++
				c.Instances += int(e.endpoints)
			}
		}
	}
	return c
}

// without returns how many objects the set has if c lacks some of its own.
func (s *set) without(c *collection, lacks []name) int {
	n := s.total().Services
	for _, known := range lacks {
		others := slices.ContainsFunc(s.versions, func(v *collection) bool {
			_, has := v.entries[known]
			return has && v != c
		})
		if !others {
			n--
		}
	}
	return n
}
