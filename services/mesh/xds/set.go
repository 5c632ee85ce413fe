package xds

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/xds/piece"
)

// Sum identifies a set of named contents, in any order: adding one twice
// removes it. The zero Sum is the empty set's.
type Sum [16]byte

// Add returns s with o added, or removed.
func (s Sum) Add(o Sum) Sum {
	for i := range s {
		s[i] ^= o[i]
	}
	return s
}

// String returns lower-case hex, the version on the wire.
func (s Sum) String() string { return hex.EncodeToString(s[:]) }

// sumOf returns the Sum of one resource.
func sumOf(name string, hash [32]byte) Sum {
	b := make([]byte, 0, len(name)+1+len(hash))
	b = append(append(append(b, name...), 0), hash[:]...)
	h := sha256.Sum256(b)
	return Sum(h[:len(Sum{})])
}

// Absent returns the Sum of a subscribed name without resource.
func Absent(name string) Sum { return sumOf(name, [32]byte{}) }

// Encoded is an encoded piece. Equal pieces share one Encoded. Immutable.
type Encoded struct {
	Value []byte
	Hash  [32]byte // SHA-256 of Value
	Facts piece.Facts
	// acceptedBy has a bit for each index.Client whose checks the piece passed.
	acceptedBy atomic.Uint32
}

// Resource is an encoded resource: the concatenated bytes of its pieces. Equal
// content shares one Resource; compare with Same. Immutable.
type Resource struct {
	Name string
	// Sum of the name and the content; as text it is the resource's version in
	// delta.
	Sum    Sum
	Pieces Pieces // nil: the content is not known
	// Head and DeltaHead precede the pieces in the field "resources" of a
	// DiscoveryResponse and of a DeltaDiscoveryResponse.
	Head, DeltaHead []byte
	size            int
}

// Same reports whether two resources, either of which may be nil, have equal
// name and content.
func (r *Resource) Same(o *Resource) bool {
	return r == o || r != nil && o != nil && r.Sum == o.Sum
}

// Size returns the size of the message in bytes.
func (r *Resource) Size() int { return r.size }

// Value returns the whole message; it must not be changed.
func (r *Resource) Value() []byte {
	var values [][]byte
	for p := range r.Pieces.All() {
		values = append(values, p.Value)
	}
	if len(values) == 1 {
		return values[0]
	}
	return bytes.Join(values, nil)
}

// Endpoints returns the ClusterLoadAssignment that a Cluster waits for; "":
// none.
func (r *Resource) Endpoints() string {
	for p := range r.Pieces.All() {
		if p.Facts.Endpoints != "" {
			return p.Facts.Endpoints
		}
	}
	return ""
}

// SlowWarm reports whether a Cluster needs more than its endpoints to be warm.
func (r *Resource) SlowWarm() bool {
	return r.Pieces.any(func(p *Encoded) bool { return p.Facts.SlowWarm })
}

// Secrets reports whether a Cluster or Listener waits for secrets.
func (r *Resource) Secrets() bool {
	return r.Pieces.any(func(p *Encoded) bool { return len(p.Facts.Secrets) > 0 })
}

// SecretNames yields the names of the secrets that a Cluster or Listener waits for; one
// may come more than once.
func (r *Resource) SecretNames() iter.Seq[string] {
	return func(yield func(string) bool) {
		for p := range r.Pieces.All() {
			for _, name := range p.Facts.Secrets {
				if !yield(name) {
					return
				}
			}
		}
	}
}

// Key returns the private key that a Secret names, and that its client needs; nil:
// none.
func (r *Resource) Key() *piece.Key {
	for p := range r.Pieces.All() {
		if p.Facts.Key != nil {
			return p.Facts.Key
		}
	}
	return nil
}

// WithKey returns a Secret with its private key in PEM. It is the Same as r: what the
// version says does not depend on who has the key.
func (r *Resource) WithKey(pem []byte) (*Resource, error) {
	return r.secretAs(func(s *tlsv3.Secret) *tlsv3.Secret { return piece.WithKey(s, pem) })
}

// Anew returns a Secret in files that means what r means, and is the Same, with bytes that
// depend on n. Envoy takes a Secret with the bytes of the one before without a look at the
// files, also if it has rejected that one (SDS-14).
func (r *Resource) Anew(n uint16) (*Resource, error) {
	return r.secretAs(func(s *tlsv3.Secret) *tlsv3.Secret {
		for _, d := range []*corev3.WatchedDirectory{s.GetTlsCertificate().GetWatchedDirectory(), s.GetValidationContext().GetWatchedDirectory()} {
			if d != nil {
				d.Path += "/" + strings.NewReplacer("0", "/", "1", "./").Replace(strconv.FormatUint(uint64(n), 2))
			}
		}
		return s
	})
}

func (r *Resource) secretAs(change func(*tlsv3.Secret) *tlsv3.Secret) (*Resource, error) {
	var s tlsv3.Secret
	if err := proto.Unmarshal(r.Value(), &s); err != nil {
		return nil, fmt.Errorf("secret %s: %w", r.Name, err)
	}
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(change(&s))
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", r.Name, err)
	}
	return newResource(ident.SDS, r.Name, r.Sum, PiecesOf(&Encoded{Value: value})), nil
}

// RefersTo reports whether a filter, Listener or RouteConfiguration names a cluster.
func (r *Resource) RefersTo(cluster string) bool {
	return r.Pieces.any(func(p *Encoded) bool {
		_, ok := slices.BinarySearch(p.Facts.Clusters, cluster)
		return ok
	})
}

// RefersToAny reports whether a filter, Listener or RouteConfiguration names a cluster of
// which is is true.
func (r *Resource) RefersToAny(is func(cluster string) bool) bool {
	return r.Pieces.any(func(p *Encoded) bool { return slices.ContainsFunc(p.Facts.Clusters, is) })
}

// Set holds all resources of one type for one class, sorted by name. Immutable.
type Set struct {
	Resources []*Resource
	Sum       Sum
}

// Find returns the resource of that name, or nil.
func (s *Set) Find(name string) *Resource {
	if i, ok := Search(s.Resources, name); ok {
		return s.Resources[i]
	}
	return nil
}

// Compare calls differ, in the order of names, for each name whose resource
// differs between two Sets of one type; nil: the Set lacks it.
func Compare(old, next *Set, differ func(was, is *Resource)) {
	if old == next {
		return
	}
	a, b := old.Resources, next.Resources
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(a) > 0 && len(b) > 0 && a[0] == b[0]:
			a, b = a[1:], b[1:]
		case len(b) == 0 || len(a) > 0 && a[0].Name < b[0].Name:
			differ(a[0], nil)
			a = a[1:]
		case len(a) == 0 || b[0].Name < a[0].Name:
			differ(nil, b[0])
			b = b[1:]
		default:
			if !a[0].Same(b[0]) {
				differ(a[0], b[0])
			}
			a, b = a[1:], b[1:]
		}
	}
}

// Changed returns the names of the resources in which two Sets of one type
// differ; sorted.
func Changed(old, next *Set) (names []string) {
	Compare(old, next, func(was, is *Resource) { names = append(names, cmp.Or(is, was).Name) })
	return names
}

// Search finds a name in resources that are sorted by name.
func Search(resources []*Resource, name string) (int, bool) {
	return slices.BinarySearchFunc(resources, name, func(r *Resource, name string) int { return strings.Compare(r.Name, name) })
}

// Empty returns the answer to a subscribed name of EDS or RDS without resource.
func Empty(t ident.ResourceType, name string) *Resource {
	value := piece.Empty(t, name)
	return newResource(t, name, Absent(name), PiecesOf(&Encoded{Value: value, Hash: sha256.Sum256(value)}))
}

func newResource(t ident.ResourceType, name string, sum Sum, pieces Pieces) *Resource {
	r := &Resource{Name: name, Sum: sum, Pieces: pieces}
	for _, b := range pieces {
		r.size += b.size
	}
	head := protowire.SizeTag(resourcesField) + protowire.SizeBytes(anySize(t, r.size)) - r.size
	r.Head = appendAny(make([]byte, 0, head), t, r.size)
	r.DeltaHead = deltaHead(t, r)
	return r
}

// Fields on the wire: "resources" of both responses, those of Any, and those of
// Resource in delta.
const (
	resourcesField = 2

	typeField, valueField = 1, 2

	deltaVersionField, deltaAnyField, deltaNameField = 1, 2, 3
)

// appendAny appends a field 2, which holds the Any in both protocols, up to the
// place of a value of that size.
func appendAny(b []byte, t ident.ResourceType, size int) []byte {
	b = protowire.AppendTag(b, resourcesField, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(anySize(t, size)))
	b = protowire.AppendTag(b, typeField, protowire.BytesType)
	b = protowire.AppendString(b, t.URL())
	b = protowire.AppendTag(b, valueField, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(size))
}

func anySize(t ident.ResourceType, size int) int {
	return protowire.SizeTag(typeField) + protowire.SizeBytes(len(t.URL())) + protowire.SizeTag(valueField) + protowire.SizeBytes(size)
}

func deltaHead(t ident.ResourceType, r *Resource) []byte {
	version := r.Sum.String()
	body := protowire.SizeTag(deltaNameField) + protowire.SizeBytes(len(r.Name)) +
		protowire.SizeTag(deltaVersionField) + protowire.SizeBytes(len(version)) +
		protowire.SizeTag(deltaAnyField) + protowire.SizeBytes(anySize(t, r.size))
	b := make([]byte, 0, protowire.SizeTag(resourcesField)+protowire.SizeBytes(body)-r.size)
	b = protowire.AppendTag(b, resourcesField, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(body))
	b = protowire.AppendTag(b, deltaNameField, protowire.BytesType)
	b = protowire.AppendString(b, r.Name)
	b = protowire.AppendTag(b, deltaVersionField, protowire.BytesType)
	b = protowire.AppendString(b, version)
	return appendAny(b, t, r.size)
}
