package ident

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// OverlayKind says which process writes an overlay and what it is for. The
// numbers are those on the log.
type OverlayKind uint8

// The kinds of overlays.
const (
	Rollback   OverlayKind = 1 // an operator serves earlier values
	Hold       OverlayKind = 2 // the builder's guard keeps what a mass removal would take away
	Quarantine OverlayKind = 3 // the builder keeps a resource from clients of a version that rejects it
	Freeze     OverlayKind = 4 // an operator keeps the objects of a source as they are
	Pin        OverlayKind = 5 // an operator keeps some proxies on earlier values
	Rollout    OverlayKind = 6 // the builder gives new values to some proxies before the others
)

// Proxies selects proxies: those that match every field that is set.
type Proxies struct {
	ID        string // the whole node id
	Namespace string
	Cluster   string            // node.cluster
	Labels    map[string]string // that a proxy has, with these values
}

// String returns the selector as operators write it: terms with commas.
func (p Proxies) String() string {
	var terms []string
	for _, t := range [][2]string{{"id", p.ID}, {"namespace", p.Namespace}, {"cluster", p.Cluster}} {
		if t[1] != "" {
			terms = append(terms, t[0]+"="+t[1])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Labels)) {
		terms = append(terms, name+"="+p.Labels[name])
	}
	return strings.Join(terms, ",")
}

// ParseProxies reads what String returns. A term without "=" is a node id.
func ParseProxies(text string) (p Proxies, err error) {
	for term := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(term, "=")
		if !ok {
			name, value = "id", term
		}
		if name == "" || value == "" {
			return Proxies{}, fmt.Errorf("selector %q: want terms such as id=NODE, namespace=NAME, cluster=NAME or LABEL=VALUE, with commas between them", text)
		}
		switch name {
		case "id":
			p.ID = value
		case "namespace":
			p.Namespace = value
		case "cluster":
			p.Cluster = value
		default:
			if p.Labels == nil {
				p.Labels = map[string]string{}
			}
			p.Labels[name] = value
		}
	}
	return p, nil
}

// Scope is what an overlay keeps as it is until it is removed: the objects of a
// shard, or configuration of all sources.
type Scope struct {
	Shard     Shard
	Config    bool
	Namespace string // of Config; empty: all
}

// Covers reports whether s has k in it; config: k's kind is configuration.
func (s Scope) Covers(k Key, config bool) bool {
	if !s.Config {
		return k.Shard() == s.Shard
	}
	return config && (s.Namespace == "" || s.Namespace == k.Namespace)
}

// String returns s in words.
func (s Scope) String() string {
	switch {
	case !s.Config:
		return s.Shard.String()
	case s.Namespace != "":
		return "the configuration of namespace " + s.Namespace
	}
	return "all configuration"
}

// OverlayValue is served for Key: of a Hold while the key's source offers Base, of a
// Rollback until it is removed, of a Pin to its Proxies until it is removed,
// of a Rollout to the proxies that it has not reached. That of a Quarantine is served in the place of Resource.
type OverlayValue struct {
	Key      Key
	Base     Hash      // content hash of what the source offers; zero: it offers nothing
	Resource *Resource // instead of Key and Base, in a Quarantine
	Value    *Value    // nil: the key, or the resource, is not served
	// Kept: the fold added it to a Pin, when the value changed for all other proxies.
	Kept bool
}

// Rejected names one content of an xDS resource that clients of one version
// rejected. It is comparable.
type Rejected struct {
	Type   string // type URL
	Name   string
	Sum    [16]byte // of name and content: another content of that name is not meant
	Client string   // name, version and protocol of the clients; see Client
}

// What a client's text ends with.
const (
	overDelta = " (delta)"
	overSotW  = " (state of the world)"
)

// Client returns how a quarantine names the clients with a user agent that use one
// protocol. The user agent alone names those of both.
func Client(userAgent string, delta bool) string {
	if delta {
		return userAgent + overDelta
	}
	return userAgent + overSotW
}

// UserAgent returns the user agent in the result of Client.
func UserAgent(client string) string {
	if agent, ok := strings.CutSuffix(client, overDelta); ok {
		return agent
	}
	return strings.TrimSuffix(client, overSotW)
}

// Compare orders by type, name, client and content.
func (r Rejected) Compare(o Rejected) int {
	return cmp.Or(cmp.Compare(r.Type, o.Type), cmp.Compare(r.Name, o.Name), cmp.Compare(r.Client, o.Client), bytes.Compare(r.Sum[:], o.Sum[:]))
}

// Resource is a rejected resource, or a rejected piece of one, and a class of
// proxies that is served it.
type Resource struct {
	Rejected        // Sum is that of the piece, if Piece is not empty
	Class    []byte // as the model encodes a proxy class
	// Piece is the virtual host or filter chain that is rejected, for people. If it
	// is not empty, Value takes the place of that piece in every content that has
	// it.
	Piece string
	// Closed: Value refuses requests or connections, and is no earlier content.
	Closed bool
	// By is the identity or address of a client that rejected it. The number of
	// quarantines with one By is limited.
	By string
}
