package names

import (
	"slices"
	"strings"
)

// chunk is a part of a set: sorted names, in one piece of memory of their own.
// Immutable. So a set never holds the memory of a request, or of names that it no
// longer has.
type chunk []string

// chunkSize is how many names a chunk has at most. A change of one name copies the
// chunk (10 KB) and the list of chunks (10 KB for 100,000 names).
const chunkSize = 256

// newChunk returns a chunk of these names, which it copies.
func newChunk(names []string) chunk {
	size := 0
	for _, name := range names {
		size += len(name)
	}
	text := make([]byte, 0, size)
	for _, name := range names {
		text = append(text, name...)
	}
	all, c := string(text), make(chunk, len(names))
	for i, name := range names {
		c[i], all = all[:len(name)], all[len(name):]
	}
	return c
}

// appendChunks appends chunks of about the same size for sorted names.
func appendChunks(chunks []chunk, names []string) []chunk {
	if len(names) == 0 {
		return chunks
	}
	parts := (len(names) + chunkSize - 1) / chunkSize
	for i := range parts {
		chunks = append(chunks, newChunk(names[i*len(names)/parts:(i+1)*len(names)/parts]))
	}
	return chunks
}

// chunkOf returns the index of the chunk that has the name, or would have it.
func chunkOf(chunks []chunk, name string) int {
	i, first := slices.BinarySearchFunc(chunks, name, func(c chunk, name string) int { return strings.Compare(c[0], name) })
	if first || i == 0 {
		return i
	}
	return i - 1
}

// changeChunks returns the chunks after a change by sorted names, which apply makes
// to each chunk that it concerns. Chunks that become small are joined.
func changeChunks(chunks []chunk, differ []string, apply func(chunk, []string) []string) []chunk {
	changed := make([]chunk, 0, len(chunks)+1)
	var open []string // of the last chunks, which are small
	for i, c := range chunks {
		n := len(differ)
		if i+1 < len(chunks) {
			n, _ = slices.BinarySearch(differ, chunks[i+1][0])
		}
		here := differ[:n]
		differ = differ[n:]
		if len(here) == 0 && len(open) == 0 {
			changed = append(changed, c)
			continue
		}
		if open = append(open, apply(c, here)...); len(open) >= chunkSize/4 {
			changed, open = appendChunks(changed, open), nil
		}
	}
	if len(chunks) == 0 {
		open = differ
	}
	return appendChunks(changed, open)
}

// mergeSorted returns the names of both.
func mergeSorted(c chunk, names []string) []string {
	all := make([]string, 0, len(c)+len(names))
	for _, name := range names {
		i, _ := slices.BinarySearch(c, name)
		all = append(append(all, c[:i]...), name)
		c = c[i:]
	}
	return append(all, c...)
}

// lessSorted returns the names of c that are not in names.
func lessSorted(c chunk, names []string) []string {
	all := make([]string, 0, len(c))
	for _, name := range names {
		i, has := slices.BinarySearch(c, name)
		all = append(all, c[:i]...)
		if c = c[i:]; has {
			c = c[1:]
		}
	}
	return append(all, c...)
}

// Differ calls differ with each name that only one of two sets has, in order; is
// reports that next has it. It skips what the sets share.
func Differ(old, next *Names, differ func(name string, is bool)) {
	if old == next {
		return
	}
	a, b := &reader{left: old.parts()}, &reader{left: next.parts()}
	for {
		a.fill()
		b.fill()
		switch {
		case len(a.now) == 0 && len(b.now) == 0:
			return
		case len(a.now) == len(b.now) && &a.now[0] == &b.now[0]:
			a.now, b.now = nil, nil
		case len(b.now) == 0 || len(a.now) > 0 && a.now[0] < b.now[0]:
			differ(a.now[0], false)
			a.now = a.now[1:]
		case len(a.now) == 0 || b.now[0] < a.now[0]:
			differ(b.now[0], true)
			b.now = b.now[1:]
		default:
			a.now, b.now = a.now[1:], b.now[1:]
		}
	}
}

func (n *Names) parts() []chunk {
	if n == nil {
		return nil
	}
	return n.chunks
}

// reader reads the names of a set.
type reader struct {
	now  chunk // empty after fill: there are no more
	left []chunk
}

func (r *reader) fill() {
	if len(r.now) == 0 && len(r.left) > 0 {
		r.now, r.left = r.left[0], r.left[1:]
	}
}
