package store

import (
	"crypto/sha256"
	"encoding/binary"

	"meshlog.dev/proto/ident"
)

// The tree has two levels of fanOut below the root: 4096 buckets of keys. Its
// shape is fixed, so that the root depends on the rows alone.
const (
	fanOutBits = 6
	fanOut     = 1 << fanOutBits
)

// First bytes of the hashed input, so that no leaf has the hash of a node.
const (
	leafTag   = 0
	bucketTag = 1
	midTag    = 2
	rootTag   = 3
)

// slotOf returns the node and the bucket of a key. It uses SHA-256, so that chosen
// names cannot crowd one bucket.
func slotOf(key string) (mid, bucket int) {
	sum := sha256.Sum256([]byte(key))
	slot := binary.BigEndian.Uint16(sum[:])
	return int(slot >> (16 - fanOutBits)), int(slot>>(16-2*fanOutBits)) & (fanOut - 1)
}

// leafHash returns the hash of a row. The hash of the value has a fixed length, so
// no other key and value give the same input.
func leafHash(key string, value []byte) ident.Hash {
	sum := sha256.Sum256(value)
	b := make([]byte, 0, 256)
	b = append(b, leafTag)
	b = append(b, sum[:]...)
	b = append(b, key...)
	return ident.HashOf(b)
}

// bucketHash returns the hash of a bucket's leaves, in the order of their keys; an
// empty bucket has the zero Hash.
func bucketHash(leaves []*leaf) ident.Hash {
	if len(leaves) == 0 {
		return ident.Hash{}
	}
	b := make([]byte, 1, 1+len(leaves)*sha256.Size)
	b[0] = bucketTag
	for _, l := range leaves {
		b = append(b, l.hash[:]...)
	}
	return ident.HashOf(b)
}
