// Package link decides which updates a follower of the version chain gets, and
// assembles the content of a version. All chains share it; each reads its
// messages itself.
package link

import (
	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// Max is how many links a follower gets at most. From farther back it fetches the
// whole content, which is shorter.
const Max = 256

// From returns the index in run of the first link that leads on from have and its
// root, or -1 if there is none. run is a part of the chain, oldest first.
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

// Mismatch returns a *store.MismatchError if the follower's version and the head
// cannot be of one chain, else nil.
func Mismatch(head store.Head, have ident.Position, root ident.Hash) error {
	v, r := head.Version(), store.RootOf(head.Manifest)
	if head.Manifest == nil || have.Less(v) || v == have && r == root {
		return nil
	}
	return &store.MismatchError{Have: have, Head: v, Root: root, HeadRoot: r}
}

// Judge reports mismatches, once per head. The zero Judge is ready.
type Judge struct {
	seq     uint64 // of the last reported head
	version ident.Position
	root    ident.Hash
}

// Ahead reports whether head is newer than have. It returns each
// *store.MismatchError once.
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
