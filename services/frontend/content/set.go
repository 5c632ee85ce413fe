package content

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"meshlog.dev/services/internal/model"
	"meshlog.dev/services/internal/xds"
	"meshlog.dev/store"
)

// Sum identifies a set of named contents, in whatever order they are added:
// adding one that is in takes it out. The zero Sum is that of the empty set.
type Sum [16]byte

// Add is s with o added, or taken out.
func (s Sum) Add(o Sum) Sum {
	for i := range s {
		s[i] ^= o[i]
	}
	return s
}

// String is lower-case hex: the version on the wire.
func (s Sum) String() string { return hex.EncodeToString(s[:]) }

// sumOf is the Sum of one resource.
func sumOf(name string, hash [32]byte) Sum {
	b := make([]byte, 0, len(name)+1+len(hash))
	b = append(append(append(b, name...), 0), hash[:]...)
	h := sha256.Sum256(b)
	return Sum(h[:len(Sum{})])
}

// Absent is the Sum of a name that is subscribed and not there.
func Absent(name string) Sum { return sumOf(name, [32]byte{}) }

// Resource is an encoded resource. Equal content is one Resource, as far as
// memory goes; compare with Same. Nobody writes to it.
type Resource struct {
	Name  string
	Sum   Sum
	Facts xds.Facts
	// Encoded is the resource as a field "resources" of a DiscoveryResponse.
	Encoded []byte
}

// Same says whether two resources, either of which may be nil, are of equal
// name and content.
func (r *Resource) Same(o *Resource) bool {
	return r == o || r != nil && o != nil && r.Sum == o.Sum
}

// Size is the encoded size in bytes.
func (r *Resource) Size() int { return len(r.Encoded) }

// resourcesField is the number of DiscoveryResponse.resources; typeField and
// valueField are those of Any.
const resourcesField, typeField, valueField = 2, 1, 2

func newResource(t model.ResourceType, r xds.Resource) *Resource {
	facts, err := xds.Inspect(t, r.Value)
	if err != nil {
		// The fold lets nothing through that is no such message; without
		// facts it is served all the same, in no special order.
		facts = xds.Facts{}
	}
	return &Resource{Name: r.Name, Sum: sumOf(r.Name, r.Hash), Facts: facts, Encoded: encode(t, r.Value)}
}

func encode(t model.ResourceType, value []byte) []byte {
	url := t.URL()
	body := protowire.SizeTag(typeField) + protowire.SizeBytes(len(url)) +
		protowire.SizeTag(valueField) + protowire.SizeBytes(len(value))
	b := make([]byte, 0, protowire.SizeTag(resourcesField)+protowire.SizeBytes(body))
	b = protowire.AppendTag(b, resourcesField, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(body))
	b = protowire.AppendTag(b, typeField, protowire.BytesType)
	b = protowire.AppendString(b, url)
	b = protowire.AppendTag(b, valueField, protowire.BytesType)
	return protowire.AppendBytes(b, value)
}

// Empty is the answer to a subscribed name of EDS or RDS that is not there.
func Empty(t model.ResourceType, name string) *Resource {
	return &Resource{Name: name, Sum: Absent(name), Encoded: encode(t, xds.Empty(t, name))}
}

// Set is all resources of one type for one class, sorted by name. Nobody
// writes to it.
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

// SumOf is the Sum of a subscription to names.
func (s *Set) SumOf(names []string) Sum {
	var sum Sum
	for _, name := range names {
		if r := s.Find(name); r != nil {
			sum = sum.Add(r.Sum)
		} else {
			sum = sum.Add(Absent(name))
		}
	}
	return sum
}

// Search finds a name in resources that are sorted by name.
func Search(resources []*Resource, name string) (int, bool) {
	return slices.BinarySearchFunc(resources, name, func(r *Resource, name string) int { return strings.Compare(r.Name, name) })
}

// View is what one class is served at one version of the world. While content
// does not change, its Sets are the same pointers in later versions.
type View struct {
	Version   store.Version
	Published time.Time // by the clock of the leader, for people; zero: not said
	Sets      [model.ResourceTypes]*Set
}
