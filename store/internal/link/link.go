// Package link decides what a follower of the version chain is told. It is the
// same for every chain; how the messages come is the chain's own.
package link

import "meshlog.dev/store"

// Max is how many links a follower is given at most. From farther back, the
// whole content is the shorter way.
const Max = 256

// From returns the end of run that leads from have with its root to run's last
// update, or nil if there is none. run is a stretch of the chain, oldest first.
func From(run []store.Update, have store.Version, root store.Hash) []store.Update {
	if have.IsZero() {
		return nil
	}
	for i := len(run) - 1; i >= 0 && len(run)-i <= Max; i-- {
		v, r := store.PreviousOf(run[i].Manifest)
		if v == have && r == root {
			return run[i:]
		}
		if i > 0 && !Follows(run[i-1].Manifest, run[i].Manifest) {
			return nil
		}
	}
	return nil
}

// Follows says whether next was made from the content of m.
func Follows(m, next *store.Manifest) bool {
	v, r := store.PreviousOf(next)
	return v == store.VersionOf(m.GetVersion()) && r == store.RootOf(m)
}

// Judge compares heads of the chain with what its follower has. It reports a
// mismatch once per head. The zero Judge is ready.
type Judge struct {
	seq     uint64
	version store.Version
	root    store.Hash
}

// Ahead says whether head is a version to go to. The error is a
// *store.MismatchError.
func (j *Judge) Ahead(head store.Head, have store.Version, root store.Hash) (bool, error) {
	if head.Manifest == nil {
		return false, nil
	}
	v, r := head.Version(), store.RootOf(head.Manifest)
	switch {
	case have.Less(v):
		return true, nil
	case v == have && r == root:
		return false, nil
	case *j == Judge{head.Seq, v, r}:
		return false, nil
	}
	*j = Judge{head.Seq, v, r}
	return false, &store.MismatchError{Have: have, Head: v, Root: root, HeadRoot: r}
}
