// Package link decides what a follower of the version chain is told, and how
// the content of a version is put together. It is the same for every chain;
// how the messages come is the chain's own.
package link

import (
	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// Max is how many links a follower is given at most. From farther back, the
// whole content is the shorter way.
const Max = 256

// From returns where in run the links begin that lead from have with its root
// to run's last manifest, or -1 if there are none. run is a stretch of the
// chain, oldest first.
func From(run []*store.Manifest, have ident.Position, root ident.Hash) int {
	if have.IsZero() {
		return -1
	}
	for i := len(run) - 1; i >= 0 && len(run)-i <= Max; i-- {
		if v, r := store.PreviousOf(run[i]); v == have && r == root {
			return i
		}
		if i > 0 && !Follows(run[i-1], run[i]) {
			return -1
		}
	}
	return -1
}

// Follows reports whether next was made from the content of m.
func Follows(m, next *store.Manifest) bool {
	v, r := store.PreviousOf(next)
	return v == store.VersionOf(m.GetVersion()) && r == store.RootOf(m)
}

// Mismatch reports whether head and what a follower has cannot both be right: the
// error is nil or a *store.MismatchError.
func Mismatch(head store.Head, have ident.Position, root ident.Hash) error {
	v, r := head.Version(), store.RootOf(head.Manifest)
	if head.Manifest == nil || have.Less(v) || v == have && r == root {
		return nil
	}
	return &store.MismatchError{Have: have, Head: v, Root: root, HeadRoot: r}
}

// Judge reports mismatches, once per head. The zero Judge is ready.
type Judge struct {
	seq     uint64 // of the last head that was reported, with its
	version ident.Position
	root    ident.Hash
}

// Ahead reports whether head is a version to go to. The error is a
// *store.MismatchError, the first time.
func (j *Judge) Ahead(head store.Head, have ident.Position, root ident.Hash) (bool, error) {
	err := Mismatch(head, have, root)
	if err == nil {
		return have.Less(head.Version()), nil
	}
	now := Judge{head.Seq, head.Version(), store.RootOf(head.Manifest)}
	if *j == now {
		return false, nil
	}
	*j = now
	return false, err
}
