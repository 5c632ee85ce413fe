package registry

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// sliceSize is how many endpoints one slice holds at most.
const sliceSize = 100

// digits is the depth of the trie. Below it a slice may hold more.
const digits = 16

// leaf is a slice: instances whose hashes begin with prefix.
type leaf struct {
	prefix    string
	instances []Instance // sorted by identity
}

// leaves returns the slices of instances, sorted by prefix: the leaves of a trie over
// the hashes of identities. The set alone decides, so a changed instance resends one
// slice, whatever was there before (REG-3).
func leaves(instances []Instance) []leaf {
	if len(instances) == 0 {
		return nil
	}
	all := make([]hashed, len(instances))
	for i, in := range instances {
		sum := sha256.Sum256([]byte(in.ID))
		all[i] = hashed{hex.EncodeToString(sum[:digits/2]), in}
	}
	slices.SortFunc(all, func(a, b hashed) int { return cmp.Or(strings.Compare(a.hash, b.hash), strings.Compare(a.ID, b.ID)) })
	return split(nil, "", all)
}

type hashed struct {
	hash string
	Instance
}

// split appends the leaves below a prefix; all is sorted by hash.
func split(to []leaf, prefix string, all []hashed) []leaf {
	if len(all) == 0 {
		return to
	}
	if len(all) <= sliceSize || len(prefix) == digits {
		l := leaf{prefix: prefix}
		for _, h := range all {
			l.instances = append(l.instances, h.Instance)
		}
		slices.SortFunc(l.instances, func(a, b Instance) int { return strings.Compare(a.ID, b.ID) })
		return append(to, l)
	}
	for _, digit := range "0123456789abcdef" {
		next := prefix + string(digit)
		n, _ := slices.BinarySearchFunc(all, next, func(h hashed, next string) int {
			if h.hash[:len(next)] <= next {
				return -1
			}
			return 1
		})
		to, all = split(to, next, all[:n]), all[n:]
	}
	return to
}
