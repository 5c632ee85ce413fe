package stream

import (
	"iter"
	"slices"
)

// entries holds the entries of a ledger in the order of their names. It knows which
// of them were changed, so the work of a request and of its response follows the
// names that they concern, however many entries there are (XDS-8).
type entries struct {
	blocks []*block // none is empty
	count  int
}

// block is entries that follow each other.
type block struct {
	list      []entry
	changed   bool // so is one of them
	unsettled bool // one of them was changed since the last settle
}

const blockSize = 128

func (l *entries) len() int { return l.count }

// at returns the block that has a name, or would have it, and the place there.
func (l *entries) at(name string) (b *block, n, i int, has bool) {
	if len(l.blocks) == 0 {
		return nil, 0, 0, false
	}
	n, has = slices.BinarySearchFunc(l.blocks, name, func(b *block, name string) int { return compareEntry(b.list[0], name) })
	if !has {
		n = max(n-1, 0)
	}
	i, has = slices.BinarySearchFunc(l.blocks[n].list, name, compareEntry)
	return l.blocks[n], n, i, has
}

// find returns the entry of a name, or nil. It must not be changed.
func (l *entries) find(name string) *entry {
	if b, _, i, has := l.at(name); has {
		return &b.list[i]
	}
	return nil
}

// change returns the entry of a name, which the caller changes, or nil. The pointer
// is valid until the next call.
func (l *entries) change(name string) *entry {
	b, _, i, has := l.at(name)
	if !has {
		return nil
	}
	return b.change(i)
}

func (b *block) change(i int) *entry {
	b.changed, b.unsettled, b.list[i].changed = true, true, true
	return &b.list[i]
}

// insert adds an entry of a name that has none. The pointer is valid until the next
// call.
func (l *entries) insert(e entry) *entry {
	b, n, i, _ := l.at(e.name)
	if b == nil {
		b = new(block)
		l.blocks = []*block{b}
	}
	if len(b.list) == blockSize {
		half := blockSize / 2
		if i == blockSize {
			half = i // names that come in their order fill blocks
		}
		next := &block{list: slices.Clone(b.list[half:]), changed: b.changed, unsettled: b.unsettled}
		b.list = slices.Delete(b.list, half, blockSize)
		l.blocks = slices.Insert(l.blocks, n+1, next)
		if i >= half {
			b, i = next, i-half
		}
	}
	b.list = slices.Insert(b.list, i, e)
	l.count++
	return b.change(i)
}

// remove removes the entry of a name, if there is one.
func (l *entries) remove(name string) {
	b, n, i, has := l.at(name)
	if !has {
		return
	}
	b.list = slices.Delete(b.list, i, i+1)
	l.count--
	if b.shrink(); len(b.list) == 0 {
		l.blocks = slices.Delete(l.blocks, n, n+1)
	}
}

// shrink gives back the memory of removed entries.
func (b *block) shrink() {
	if len(b.list) < cap(b.list)/4 {
		b.list = slices.Clone(b.list)
	}
}

// removeIf removes entries.
func (l *entries) removeIf(drop func(*entry) bool) {
	for _, b := range l.blocks {
		l.removeIn(b, drop)
	}
	l.compact()
}

// settle removes those of the entries that were changed since the last settle for
// which drop is true. Others that share a block with one may be removed as well.
func (l *entries) settle(drop func(*entry) bool) {
	for _, b := range l.blocks {
		if b.unsettled {
			b.unsettled = false
			l.removeIn(b, drop)
		}
	}
	l.compact()
}

func (l *entries) removeIn(b *block, drop func(*entry) bool) {
	left := b.list[:0]
	for i := range b.list {
		if !drop(&b.list[i]) {
			left = append(left, b.list[i])
		}
	}
	l.count -= len(b.list) - len(left)
	clear(b.list[len(left):])
	b.list = left
	b.shrink()
}

func (l *entries) compact() {
	l.blocks = slices.DeleteFunc(l.blocks, func(b *block) bool { return len(b.list) == 0 })
	if len(l.blocks) == 0 {
		l.blocks = nil
	}
}

// all yields all entries. They must not be changed, unless changeAll follows.
func (l *entries) all() iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for _, b := range l.blocks {
			for i := range b.list {
				if !yield(&b.list[i]) {
					return
				}
			}
		}
	}
}

// changeAll makes all entries count as changed: what they are compared with has
// changed, or they have.
func (l *entries) changeAll() {
	for _, b := range l.blocks {
		for i := range b.list {
			b.change(i)
		}
	}
}

// takeChanged yields the entries that were changed since the last call, which the
// caller changes.
func (l *entries) takeChanged() iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for _, b := range l.blocks {
			if !b.changed {
				continue
			}
			b.changed, b.unsettled = false, true
			for i := range b.list {
				if e := &b.list[i]; e.changed {
					if e.changed = false; !yield(e) {
						b.changed = true // the rest
						return
					}
				}
			}
		}
	}
}

// clone returns a copy.
func (l *entries) clone() entries {
	c := entries{make([]*block, 0, len(l.blocks)), l.count}
	for _, b := range l.blocks {
		c.blocks = append(c.blocks, &block{slices.Clone(b.list), b.changed, b.unsettled})
	}
	return c
}
