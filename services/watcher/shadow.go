package watcher

import (
	"maps"
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
)

// shadow is the content of the shard as this session sent it. The log has the same
// once everything is acknowledged, except that it may have more keys of kinds that
// the session does not cover; no digest covers these kinds.
type shadow struct {
	kinds   events.Kinds
	hashes  map[ident.Key]ident.Hash
	digests events.ShardDigests // of these kinds
}

func newShadow(kinds events.Kinds) shadow {
	return shadow{kinds: kinds, hashes: map[ident.Key]ident.Hash{}}
}

// set makes h the content of k, whose bucket it is given; the zero Hash: k is
// gone.
func (s *shadow) set(k ident.Key, bucket int, h ident.Hash) {
	if s.kinds.Cover(k.Kind) { // a zero hash changes no digest
		s.digests[bucket] = s.digests[bucket].With(s.hashes[k]).With(h)
	}
	if h.IsZero() {
		delete(s.hashes, k)
	} else {
		s.hashes[k] = h
	}
}

// change is an object to append.
type change struct {
	key    ident.Key
	bucket int        // of the digests
	hash   ident.Hash // zero in a delete
	object Object
}

// backlog holds the changes that were not sent yet, the last one of each key.
// Change sets that wait together become one: intermediate states may be skipped.
type backlog struct {
	changes map[ident.Key]change
	order   []ident.Key // each key once, in the order in which they came first
	atomic  bool        // a set of several objects is in it
}

func (b *backlog) len() int { return len(b.changes) }

func (b *backlog) put(c change) {
	if b.changes == nil {
		b.changes = map[ident.Key]change{}
	}
	if _, ok := b.changes[c.key]; !ok {
		b.order = append(b.order, c.key)
	}
	b.changes[c.key] = c
}

func (b *backlog) drop(k ident.Key) {
	if _, ok := b.changes[k]; !ok {
		return
	}
	delete(b.changes, k)
	b.order = slices.DeleteFunc(b.order, func(o ident.Key) bool { return o == k })
	if len(b.changes) == 0 {
		*b = backlog{}
	}
}

// take empties the backlog.
func (b *backlog) take() (changes []change, atomic bool) {
	for _, k := range b.order {
		changes = append(changes, b.changes[k])
	}
	atomic = b.atomic
	*b = backlog{}
	return changes, atomic
}

// absent returns the keys of covered kinds that are on the log or in the backlog
// and not listed, sorted.
func absent(s *shadow, b *backlog, listed map[ident.Key]bool) []ident.Key {
	gone := map[ident.Key]bool{}
	for k := range s.hashes {
		gone[k] = !listed[k]
	}
	for k := range b.changes {
		gone[k] = !listed[k]
	}
	maps.DeleteFunc(gone, func(k ident.Key, is bool) bool { return !is || !s.kinds.Cover(k.Kind) })
	return slices.SortedFunc(maps.Keys(gone), compareKeys)
}
