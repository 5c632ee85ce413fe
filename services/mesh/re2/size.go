// Package re2 computes how large a regular expression is for RE2, the engine in
// Envoy. Envoy refuses a configuration with an expression whose program is larger
// than the runtime value re2.max_program_size.error_level, 100 unless its
// bootstrap raises it.
//
// The size is that of the program after RE2 has rewritten it as lists of
// alternatives, so it is neither the length of the expression nor the number of
// instructions of Go's engine: alternatives cost nothing by themselves. Envoy reads
// an expression as Latin-1, so a character beyond ASCII is several. Both engines
// share their parser and their simplifier, so this package compiles what Go has
// parsed as RE2 does.
//
// It is pure.
package re2

import (
	"fmt"
	"regexp/syntax"
)

// Sizes of programs that Envoys take.
const (
	// Stock is the limit of an Envoy whose bootstrap sets none.
	Stock = 100
	// Raised is the limit that Istio's bootstraps set, and meshlog's.
	Raised = 32768
)

// Size returns the size of the program of an expression. It is never less than
// RE2's own, and mostly equal.
// If it is more than Raised, it is only known to be. RE2 cannot read every
// expression that Go can, and the other way round; those have an error.
func Size(expr string) (int, error) {
	re, err := parse(expr)
	if err != nil {
		return 0, fmt.Errorf("regular expression: %w", err)
	}
	if partsOf(re)[0].size > maxInsts {
		return maxInsts, nil // not worth the work
	}
	return sizeOf(withoutPrefix(re)) + unmerged(expr), nil
}

// parse reads an expression as Envoy's engine does: each byte is a character.
func parse(expr string) (*syntax.Regexp, error) {
	latin1 := make([]rune, len(expr))
	for i := range len(expr) {
		latin1[i] = rune(expr[i])
	}
	return syntax.Parse(string(latin1), syntax.Perl)
}

// Fits reports whether an Envoy with that limit takes an expression. One that
// cannot be read does not fit.
func Fits(expr string, limit int) bool {
	n, err := Size(expr)
	return err == nil && n <= limit
}

// withoutPrefix removes ^ with the literal behind it: RE2 compares that without
// its program, which begins behind it.
func withoutPrefix(re *syntax.Regexp) *syntax.Regexp {
	if re.Op != syntax.OpConcat || len(re.Sub) < 2 {
		return re
	}
	i := 0
	for i < len(re.Sub) && re.Sub[i].Op == syntax.OpBeginText {
		i++
	}
	if i == 0 || i == len(re.Sub) || re.Sub[i].Op != syntax.OpLiteral {
		return re
	}
	rest := re.Sub[i+1:]
	if len(rest) == 0 {
		return &syntax.Regexp{Op: syntax.OpEmptyMatch}
	}
	return &syntax.Regexp{Op: syntax.OpConcat, Sub: rest, Flags: re.Flags}
}

// sizeOf compiles re for a search from anywhere in a text, and counts.
func sizeOf(re *syntax.Regexp) int {
	re = coalesced(re).Simplify()
	re, anchored := withoutAnchor(re, syntax.OpBeginText, 0)
	re, _ = withoutAnchor(re, syntax.OpEndText, 0)
	p := &program{insts: []inst{{op: opFail}}}
	f := p.compile(re)
	if p.failed {
		return maxInsts
	}
	all := p.cat(f, p.match())
	start, unanchored := all.begin, all.begin
	if !anchored {
		unanchored = p.cat(p.star(p.one(opByteRange, false), true), all).begin
	}
	p.skipNops(start)
	p.skipNops(unanchored)
	return p.flatSize(start, unanchored)
}

// withoutAnchor replaces an anchor with which every match must begin, or end, by
// the empty expression. RE2 looks for it in the first four levels.
func withoutAnchor(re *syntax.Regexp, anchor syntax.Op, depth int) (*syntax.Regexp, bool) {
	if depth >= 4 {
		return re, false
	}
	switch re.Op {
	case anchor:
		return &syntax.Regexp{Op: syntax.OpEmptyMatch}, true
	case syntax.OpCapture:
		if sub, ok := withoutAnchor(re.Sub[0], anchor, depth+1); ok {
			return &syntax.Regexp{Op: re.Op, Flags: re.Flags, Sub: []*syntax.Regexp{sub}, Cap: re.Cap}, true
		}
	case syntax.OpConcat:
		if len(re.Sub) == 0 {
			break
		}
		i := 0
		if anchor == syntax.OpEndText {
			i = len(re.Sub) - 1
		}
		if sub, ok := withoutAnchor(re.Sub[i], anchor, depth+1); ok {
			all := append([]*syntax.Regexp(nil), re.Sub...)
			all[i] = sub
			return &syntax.Regexp{Op: re.Op, Flags: re.Flags, Sub: all}, true
		}
	}
	return re, false
}
