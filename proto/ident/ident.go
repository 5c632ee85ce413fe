// Package ident holds the nouns that every other package shares: what names an
// object, a place in the event log, a value, and an overlay. It has no logic
// beyond comparing and printing them, and imports no generated code, so that
// the log, the store and the model agree on their words without importing one
// another.
package ident

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"
)

// Shard is the part of the world that one source instance publishes, such as
// "file/default" or "kubernetes/cluster-1".
type Shard struct {
	Source   string // "file", "kubernetes"
	Instance string // "default", "cluster-1"
}

// API is the source of the objects that operators apply (API-1). It has no watcher: each
// `meshlog apply` is a session that ends.
const API = "api"

// String returns source/instance.
func (s Shard) String() string { return s.Source + "/" + s.Instance }

// Key names one object of one source. Two clusters may hold objects of the same
// kind, namespace and name; their keys differ in Instance.
type Key struct {
	Source    string
	Instance  string
	Kind      string // "Resource", "VirtualService"
	Namespace string // empty for an object without a namespace
	Name      string
}

// Shard returns the shard that k belongs to.
func (k Key) Shard() Shard { return Shard{k.Source, k.Instance} }

// String returns "Kind namespace/name (source/instance)" for people; without
// the part in parentheses if the source is not known.
func (k Key) String() string {
	name := k.Name
	if k.Namespace != "" {
		name = k.Namespace + "/" + name
	}
	name = k.Kind + " " + name
	if k.Source == "" {
		return name
	}
	return name + " (" + k.Shard().String() + ")"
}

// Position is a place in the event log, and the name of the version that
// contains the world up to there. Positions are ordered by epoch, then by
// sequence. The zero Position lies before all others.
type Position struct{ Epoch, Seq uint64 }

// Compare returns -1, 0 or 1 if p lies before, at or after q.
func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.Epoch, q.Epoch), cmp.Compare(p.Seq, q.Seq))
}

// Less reports whether p lies before q.
func (p Position) Less(q Position) bool { return p.Compare(q) < 0 }

// IsZero reports whether p is the place before all others.
func (p Position) IsZero() bool { return p == Position{} }

// String returns epoch.seq.
func (p Position) String() string { return fmt.Sprintf("%d.%d", p.Epoch, p.Seq) }

// MarshalText returns String, so that a position is one word in logs and JSON.
func (p Position) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// epochAhead is how far an epoch may lie after the time at which it is written.
const epochAhead = 365 * 24 * time.Hour

// MaxEpoch returns the greatest epoch that a record, a version or a report of
// the time t may name. A builder names an epoch by the seconds since 1970, or by
// the epoch before plus one; a greater epoch than this is an attack or damage,
// and could never be followed by another one.
func MaxEpoch(t time.Time) uint64 { return uint64(max(0, t.Add(epochAhead).Unix())) }

// ParsePosition reads what String printed.
func ParsePosition(s string) (Position, error) {
	var p Position
	var rest string
	if n, _ := fmt.Sscanf(s, "%d.%d%s", &p.Epoch, &p.Seq, &rest); n != 2 {
		return Position{}, fmt.Errorf("version %q: want EPOCH.SEQ, as `meshlog versions` prints it", s)
	}
	return p, nil
}

// Hash is a SHA-256 sum.
type Hash [sha256.Size]byte

// HashOf returns the hash of b, which is also its name as a blob.
func HashOf(b []byte) Hash { return sha256.Sum256(b) }

// IsZero reports whether h was never set.
func (h Hash) IsZero() bool { return h == Hash{} }

// String returns lower-case hex.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// Undecoded is the type URL of a value that its watcher could not decode
// (registry.v1.Undecoded). Such a value is on the log, and is never served.
const Undecoded = "type.googleapis.com/meshlog.registry.v1.Undecoded"

// Closed is the type URL of a value that denies what a security policy selects,
// because no value of that policy was ever good (registry.v1.Closed).
const Closed = "type.googleapis.com/meshlog.registry.v1.Closed"

// DryRun is the type URL of an AuthorizationPolicy that proxies evaluate and do not
// enforce (registry.v1.DryRun).
const DryRun = "type.googleapis.com/meshlog.registry.v1.DryRun"

// ProxyKeys is the type URL of a RequestAuthentication the keys of whose issuers proxies
// fetch themselves (registry.v1.ProxyKeys).
const ProxyKeys = "type.googleapis.com/meshlog.registry.v1.ProxyKeys"

// Value is the value of an object as its source gave it: a protobuf type URL and
// bytes, which are hashed and kept but never marshalled again.
type Value struct {
	Type    string
	Bytes   []byte
	Created time.Time // creation time at the source; zero if the source has none
}
