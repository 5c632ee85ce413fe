package re2

import (
	"regexp/syntax"
	"unicode"
)

type op uint8

const (
	opFail op = iota
	opAlt
	opByteRange
	opCapture
	opEmpty
	opNop
	opMatch
)

// inst is an instruction; only an opAlt has a second way out.
type inst struct {
	op   op
	outs [2]int
}

// maxInsts bounds the work for one expression; one with more does not fit.
const maxInsts = 2 * Raised

// program is the instructions made so far. The first one fails.
type program struct {
	insts  []inst
	failed bool
}

// exit is a way out of a fragment that leads nowhere yet.
type exit struct{ inst, out int }

// fragment is a part of a program; begin 0: it matches nothing.
type fragment struct {
	begin    int
	exits    []exit
	nullable bool
}

func (p *program) add(i inst) int {
	if len(p.insts) >= maxInsts {
		p.failed = true
		return 0
	}
	p.insts = append(p.insts, i)
	return len(p.insts) - 1
}

// one returns a fragment of one instruction.
func (p *program) one(o op, nullable bool) fragment {
	id := p.add(inst{op: o})
	return fragment{id, []exit{{id, 0}}, nullable}
}

func (p *program) match() fragment { return fragment{begin: p.add(inst{op: opMatch})} }

func (p *program) patch(exits []exit, to int) {
	for _, e := range exits {
		p.insts[e.inst].outs[e.out] = to
	}
}

func (p *program) cat(a, b fragment) fragment {
	if a.begin == 0 || b.begin == 0 {
		return fragment{}
	}
	p.patch(a.exits, b.begin)
	if p.insts[a.begin].op == opNop && len(a.exits) == 1 && a.exits[0].inst == a.begin {
		return b
	}
	return fragment{a.begin, b.exits, a.nullable && b.nullable}
}

func (p *program) alt(a, b fragment) fragment {
	switch {
	case a.begin == 0:
		return b
	case b.begin == 0:
		return a
	}
	id := p.add(inst{op: opAlt, outs: [2]int{a.begin, b.begin}})
	return fragment{id, append(a.exits[:len(a.exits):len(a.exits)], b.exits...), a.nullable || b.nullable}
}

// loop returns an instruction that repeats a, and its way out.
func (p *program) loop(a fragment, lazy bool) (id int, out exit) {
	id = p.add(inst{op: opAlt})
	p.patch(a.exits, id)
	again := 0
	if lazy {
		again = 1
	}
	p.insts[id].outs[again] = a.begin
	return id, exit{id, 1 - again}
}

func (p *program) plus(a fragment, lazy bool) fragment {
	_, out := p.loop(a, lazy)
	return fragment{a.begin, []exit{out}, a.nullable}
}

func (p *program) star(a fragment, lazy bool) fragment {
	if a.nullable { // or the priorities in the loop would be wrong
		return p.quest(p.plus(a, lazy), lazy)
	}
	id, out := p.loop(a, lazy)
	return fragment{id, []exit{out}, true}
}

func (p *program) quest(a fragment, lazy bool) fragment {
	if a.begin == 0 {
		return p.one(opNop, true)
	}
	id := p.add(inst{op: opAlt})
	in := 0
	if lazy {
		in = 1
	}
	p.insts[id].outs[in] = a.begin
	return fragment{id, append([]exit{{id, 1 - in}}, a.exits...), true}
}

func (p *program) capture(a fragment) fragment {
	if a.begin == 0 {
		return a
	}
	id := p.add(inst{op: opCapture, outs: [2]int{a.begin}})
	end := p.add(inst{op: opCapture})
	p.patch(a.exits, end)
	return fragment{id, []exit{{end, 0}}, a.nullable}
}

func (p *program) compile(re *syntax.Regexp) fragment {
	if p.failed {
		return fragment{}
	}
	switch re.Op {
	case syntax.OpEmptyMatch:
		return p.one(opNop, true)
	case syntax.OpLiteral:
		return p.literal(re)
	case syntax.OpCharClass:
		return p.class(re.Rune)
	case syntax.OpAnyCharNotNL:
		return p.class([]rune{0, '\n' - 1, '\n' + 1, unicode.MaxRune})
	case syntax.OpAnyChar:
		return p.class([]rune{0, unicode.MaxRune})
	case syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText, syntax.OpEndText, syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return p.one(opEmpty, true)
	case syntax.OpCapture:
		return p.capture(p.compile(re.Sub[0]))
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest:
		return p.repeat(re)
	case syntax.OpConcat:
		f := p.one(opNop, true)
		for i, sub := range re.Sub {
			if is := p.compile(sub); i == 0 {
				f = is
			} else {
				f = p.cat(f, is)
			}
		}
		return f
	case syntax.OpAlternate:
		var f fragment
		for _, sub := range re.Sub {
			f = p.alt(f, p.compile(sub))
		}
		return f
	}
	return fragment{} // OpNoMatch; Simplify leaves no OpRepeat
}

// repeat compiles *, + and ?.
func (p *program) repeat(re *syntax.Regexp) fragment {
	lazy := re.Flags&syntax.NonGreedy != 0
	switch f := p.compile(re.Sub[0]); re.Op {
	case syntax.OpStar:
		return p.star(f, lazy)
	case syntax.OpPlus:
		return p.plus(f, lazy)
	default:
		return p.quest(f, lazy)
	}
}

// literal matches bytes, each in one instruction, or in one for each of its forms
// beyond ASCII.
func (p *program) literal(re *syntax.Regexp) fragment {
	f := p.one(opNop, true)
	for i, r := range re.Rune {
		is := p.one(opByteRange, false)
		if re.Flags&syntax.FoldCase != 0 {
			is = p.class(folded(r))
		}
		if i == 0 {
			f = is
		} else {
			f = p.cat(f, is)
		}
	}
	return f
}

// folded returns the forms of r as a class.
func folded(r rune) (class []rune) {
	least := r
	for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
		least = min(least, f)
	}
	class = append(class, least, least)
	for f := unicode.SimpleFold(least); f != least; f = unicode.SimpleFold(f) {
		class = append(class, f, f)
	}
	return class
}
