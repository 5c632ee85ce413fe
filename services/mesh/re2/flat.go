package re2

import "slices"

// skipNops makes the instructions that can be reached lead past those that do
// nothing.
func (p *program) skipNops(start int) {
	past := func(id int) int {
		for id != 0 && p.insts[id].op == opNop {
			id = p.insts[id].outs[0]
		}
		return id
	}
	seen := make([]bool, len(p.insts))
	for queue := []int{start}; len(queue) > 0; {
		id := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		if id == 0 || seen[id] {
			continue
		}
		seen[id] = true
		i := &p.insts[id]
		for out := range i.outs {
			i.outs[out] = past(i.outs[out])
			queue = append(queue, i.outs[out])
		}
	}
}

// flat rewrites a program as lists: each is what can happen at one point of the
// text, without the alternatives that lead there.
type flat struct {
	*program
	root []bool  // a list begins here
	from [][]int // the alternatives that lead to an instruction

	// The instructions that the last search reached are those with its number.
	search int
	seen   []int
	order  []int // these instructions
	stack  []int
}

// flatSize returns the number of instructions in all lists.
func (p *program) flatSize(start, unanchored int) int {
	n := len(p.insts)
	f := &flat{program: p, root: make([]bool, n), from: make([][]int, n), seen: make([]int, n)}
	f.root[0], f.root[start], f.root[unanchored] = true, true, true
	f.successors(unanchored)
	// A list that two others lead into is a list of its own, or both would repeat
	// it. RE2 looks at the roots from the last instruction to the first.
	var roots []int
	for id, is := range f.root {
		if is {
			roots = append(roots, id)
		}
	}
	for _, id := range slices.Backward(roots) {
		if id != 0 && id != start && id != unanchored {
			f.shared(id)
		}
	}
	size := 0
	for id, is := range f.root {
		if is {
			size += f.list(id)
		}
	}
	return size
}

// visit reports whether a search reaches an instruction for the first time.
func (f *flat) visit(id int) bool {
	if f.seen[id] == f.search {
		return false
	}
	f.seen[id] = f.search
	f.order = append(f.order, id)
	return true
}

// begin begins a search at an instruction.
func (f *flat) begin(id int) {
	f.search++
	f.order, f.stack = f.order[:0], append(f.stack[:0], id)
}

func (f *flat) pop() int {
	last := len(f.stack) - 1
	id := f.stack[last]
	f.stack = f.stack[:last]
	return id
}

// successors marks what follows an instruction that consumes something as the
// beginning of a list.
func (f *flat) successors(from int) {
	for f.begin(from); len(f.stack) > 0; {
		id := f.pop()
		if !f.visit(id) {
			continue
		}
		switch i := f.insts[id]; i.op {
		case opAlt:
			for _, out := range i.outs {
				f.from[out] = append(f.from[out], id)
			}
			f.stack = append(f.stack, i.outs[1], i.outs[0])
		case opByteRange, opCapture, opEmpty:
			f.root[i.outs[0]] = true
			f.stack = append(f.stack, i.outs[0])
		case opNop:
			f.stack = append(f.stack, i.outs[0])
		}
	}
}

// reach finds the instructions of the list at root, and returns to how many other
// lists it leads.
func (f *flat) reach(root int) (links int) {
	for f.begin(root); len(f.stack) > 0; {
		id := f.pop()
		if !f.visit(id) {
			continue
		}
		if id != root && f.root[id] {
			links++
			continue
		}
		switch i := f.insts[id]; i.op {
		case opAlt:
			f.stack = append(f.stack, i.outs[1], i.outs[0])
		case opNop:
			f.stack = append(f.stack, i.outs[0])
		}
	}
	return links
}

// shared marks what the list at root shares with others as lists.
func (f *flat) shared(root int) {
	f.reach(root)
	for _, id := range f.order {
		if slices.ContainsFunc(f.from[id], func(from int) bool { return f.seen[from] != f.search }) {
			f.root[id] = true
		}
	}
}

// list returns the number of instructions of the list at root: one for each
// alternative, and one for each other list that it leads to.
func (f *flat) list(root int) int {
	n := f.reach(root)
	for _, id := range f.order {
		if id != root && f.root[id] {
			continue
		}
		switch f.insts[id].op {
		case opByteRange, opCapture, opEmpty, opMatch, opFail:
			n++
		}
	}
	return n
}
