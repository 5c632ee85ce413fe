package xds

import (
	"crypto/sha256"
	"iter"
	"slices"
)

// Pieces are the encoded pieces of a resource, in order. Of thousands, those
// that differ in one share all blocks but one. Immutable.
type Pieces []*block

// block is a run of pieces.
type block struct {
	pieces []*Encoded
	hash   [32]byte // of their hashes
	size   int      // of their values
}

// blockSize is the number of pieces in each block but the last.
const blockSize = 64

// PiecesOf returns Pieces of these.
func PiecesOf(all ...*Encoded) Pieces {
	return piecesOf(all, nil, newBlock)
}

// piecesOf returns Pieces of these that reuse equal blocks of others; new
// blocks come from block, which must not keep its argument.
func piecesOf(all []*Encoded, others Pieces, blockOf func(pieces []*Encoded) *block) Pieces {
	p := make(Pieces, 0, (len(all)+blockSize-1)/blockSize)
	for some := range slices.Chunk(all, blockSize) {
		if i := len(p); i < len(others) && slices.Equal(some, others[i].pieces) {
			p = append(p, others[i])
		} else {
			p = append(p, blockOf(some))
		}
	}
	return p
}

func newBlock(pieces []*Encoded) *block {
	b := &block{pieces: slices.Clone(pieces), hash: hashOf(pieces)}
	for _, p := range pieces {
		b.size += len(p.Value)
	}
	return b
}

// hashOf returns the hash of a block of these pieces.
func hashOf(pieces []*Encoded) [32]byte {
	if len(pieces) == 1 {
		return pieces[0].Hash
	}
	b := make([]byte, 0, blockSize*len(Sum{}))
	for _, p := range pieces {
		b = append(b, p.Hash[:len(Sum{})]...) // more would make a Sum no safer
	}
	return sha256.Sum256(b)
}

// sum returns the Sum of the resource of that name.
func (p Pieces) sum(name string) Sum {
	if len(p) == 1 {
		return sumOf(name, p[0].hash)
	}
	b := make([]byte, 0, len(p)*len(Sum{}))
	for _, block := range p {
		b = append(b, block.hash[:len(Sum{})]...)
	}
	return sumOf(name, sha256.Sum256(b))
}

// All iterates over the pieces in order.
func (p Pieces) All() iter.Seq[*Encoded] {
	return func(yield func(*Encoded) bool) {
		for _, b := range p {
			for _, e := range b.pieces {
				if !yield(e) {
					return
				}
			}
		}
	}
}

func (p Pieces) any(is func(*Encoded) bool) bool {
	return slices.ContainsFunc(p, func(b *block) bool { return slices.ContainsFunc(b.pieces, is) })
}
