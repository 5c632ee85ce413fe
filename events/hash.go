package events

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"math/bits"

	"meshlog.dev/proto/ident"
)

// ContentHash returns a hash of the key and of the value's type, bytes and
// creation time.
func ContentHash(k ident.Key, v ident.Value) ident.Hash {
	var buf [512]byte // most keys fit
	b := buf[:0]
	for _, s := range []string{k.Source, k.Instance, k.Kind, k.Namespace, k.Name, v.Type} {
		b = appendField(b, s)
	}
	b = binary.BigEndian.AppendUint64(b, uint64(len(v.Bytes)))
	h := sha256.New()
	h.Write(b)
	h.Write(v.Bytes)
	if v.Created.IsZero() { // its source has no creation time
		b = appendField(b[:0], "")
	} else {
		b = binary.BigEndian.AppendUint64(b[:0], 8)
		b = binary.BigEndian.AppendUint64(b, uint64(v.Created.UnixNano()))
	}
	h.Write(b)
	return ident.Hash(h.Sum(b[:0]))
}

func appendField(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint64(b, uint64(len(s))), s...)
}

// Buckets is the number of digest buckets of a shard.
const Buckets = 1024

// Bucket returns the digest bucket of a key.
func Bucket(k ident.Key) int {
	var buf [256]byte // most keys fit
	b := buf[:0]
	for _, s := range []string{k.Kind, k.Namespace, k.Name} {
		b = appendField(b, s)
	}
	sum := sha256.Sum256(b)
	return int(binary.BigEndian.Uint16(sum[:]) % Buckets)
}

// Digest summarizes a set of content hashes: equal sets have equal digests,
// whatever their order. The empty set has the zero Digest. A Digest reveals
// losses; it does not protect against an adversary.
type Digest [16]byte

// With returns d with content hash h added, or removed if d contains it.
func (d Digest) With(h ident.Hash) Digest {
	for i := range d {
		d[i] ^= h[i]
	}
	return d
}

// ShardDigests are the digests of all buckets of a shard.
type ShardDigests [Buckets]Digest

// Toggle adds the content hash h of key k, or removes it if it is in.
func (s *ShardDigests) Toggle(k ident.Key, h ident.Hash) {
	b := Bucket(k)
	s[b] = s[b].With(h)
}

// Add adds the digests of other keys.
func (s *ShardDigests) Add(others *ShardDigests) {
	for b := range s {
		subtle.XORBytes(s[b][:], s[b][:], others[b][:])
	}
}

// Sum returns the digest of the whole shard.
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

// Has reports whether bucket b is in the set.
func (s *BucketSet) Has(b int) bool { return s[b/64]&(1<<(b%64)) != 0 }

// Len returns the number of buckets in the set.
func (s *BucketSet) Len() int {
	n := 0
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// AllBuckets returns the set of all buckets.
func AllBuckets() BucketSet {
	var s BucketSet
	for i := range s {
		s[i] = ^uint64(0)
	}
	return s
}
