package events

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"hash"
	"math/bits"

	"meshlog.dev/proto/ident"
)

// ContentHash covers the key, and the type, bytes and creation time of the
// value, and nothing else.
func ContentHash(k ident.Key, v ident.Value) ident.Hash {
	h := sha256.New()
	for _, s := range []string{k.Source, k.Instance, k.Kind, k.Namespace, k.Name, v.Type} {
		writeField(h, []byte(s))
	}
	writeField(h, v.Bytes)
	var t []byte // none: the source has no creation time
	if !v.Created.IsZero() {
		t = binary.BigEndian.AppendUint64(nil, uint64(v.Created.UnixNano()))
	}
	writeField(h, t)
	return ident.Hash(h.Sum(nil))
}

func writeField(h hash.Hash, b []byte) {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(b)))
	h.Write(n[:])
	h.Write(b)
}

// Buckets is how many digest buckets a shard has.
const Buckets = 1024

// Bucket is the digest bucket of a key.
func Bucket(k ident.Key) int {
	h := sha256.New()
	for _, s := range []string{k.Kind, k.Namespace, k.Name} {
		writeField(h, []byte(s))
	}
	return int(binary.BigEndian.Uint16(h.Sum(nil)) % Buckets)
}

// Digest sums up a set of content hashes: equal sets have equal digests in
// whatever order they were made. The zero Digest is that of the empty set. It
// uncovers losses and is no proof against an adversary.
type Digest [16]byte

// With is d with content hash h added if it was not in, taken out if it was.
func (d Digest) With(h ident.Hash) Digest {
	for i := range d {
		d[i] ^= h[i]
	}
	return d
}

// ShardDigests are the digests of all buckets of a shard.
type ShardDigests [Buckets]Digest

// Toggle adds or takes out what k and its content hash are.
func (s *ShardDigests) Toggle(k ident.Key, h ident.Hash) {
	b := Bucket(k)
	s[b] = s[b].With(h)
}

// Add takes in the digests of other keys.
func (s *ShardDigests) Add(others *ShardDigests) {
	for b := range s {
		subtle.XORBytes(s[b][:], s[b][:], others[b][:])
	}
}

// Sum is the digest of the whole shard.
func (s *ShardDigests) Sum() Digest {
	h := sha256.New()
	for i := range s {
		h.Write(s[i][:])
	}
	return Digest(h.Sum(nil)[:16])
}

// BucketSet is a set of digest buckets.
type BucketSet [Buckets / 64]uint64

// Add puts bucket b into the set.
func (s *BucketSet) Add(b int) { s[b/64] |= 1 << (b % 64) }

// Has says whether bucket b is in the set.
func (s *BucketSet) Has(b int) bool { return s[b/64]&(1<<(b%64)) != 0 }

// Len is how many buckets are in the set.
func (s *BucketSet) Len() int {
	n := 0
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// AllBuckets is the set of all buckets.
func AllBuckets() BucketSet {
	var s BucketSet
	for i := range s {
		s[i] = ^uint64(0)
	}
	return s
}
