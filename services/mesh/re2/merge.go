package re2

import (
	"regexp/syntax"
	"strings"
)

// unmerged is an upper bound of what Go's parser saves and RE2's does not: Go
// merges neighbours of an alternation that match one character, like [a-z]|\w,
// while it reads them. RE2 first takes out what neighbours begin with, like \w in
// \w|\wx, and then merges what is left.
func unmerged(expr string) int {
	if !strings.Contains(expr, "|") {
		return 0
	}
	re, err := parse(apart(expr))
	if err != nil {
		return 0 // it is not read with the marks: too large, so it does not fit anyway
	}
	return unmergedIn(re, 1)
}

// apart marks the alternatives of an expression with empty groups, which keep the
// parser from merging them.
func apart(expr string) string {
	var b strings.Builder
	for i := 0; i < len(expr); {
		n := token(expr[i:])
		b.WriteString(expr[i : i+n])
		if expr[i:i+n] == "|" {
			b.WriteString("(?:)")
		}
		i += n
	}
	return b.String()
}

// token returns the length of the first escape, class or byte of an expression.
func token(expr string) int {
	switch {
	case strings.HasPrefix(expr, `\Q`):
		if i := strings.Index(expr, `\E`); i > 0 {
			return i + 2
		}
		return len(expr)
	case expr[0] == '\\' && len(expr) > 1:
		return 2
	case expr[0] != '[':
		return 1
	}
	i := 1
	if strings.HasPrefix(expr[i:], "^") {
		i++
	}
	if strings.HasPrefix(expr[i:], "]") {
		i++
	}
	for i < len(expr) && expr[i] != ']' {
		switch {
		case expr[i] == '\\':
			i++
		case strings.HasPrefix(expr[i:], "[:"):
			if n := strings.Index(expr[i:], ":]"); n > 0 {
				i += n + 1
			}
		}
		i++
	}
	return min(i+1, len(expr))
}

// unmergedIn looks at the alternations in re, which is repeated so many times.
func unmergedIn(re *syntax.Regexp, times int) (n int) {
	if re.Op == syntax.OpRepeat {
		times *= max(1, re.Min, re.Max)
	}
	for _, sub := range re.Sub {
		n += unmergedIn(sub, times)
	}
	if re.Op != syntax.OpAlternate || n > Raised {
		return n
	}
	var firsts []*syntax.Regexp
	var alone []bool
	for _, sub := range re.Sub {
		first, one := firstOf(sub)
		firsts, alone = append(firsts, first), append(alone, one)
	}
	for i := 1; i < len(firsts); i++ {
		if unmarked(re.Sub[i]) == unmarked(re.Sub[i-1]) {
			n += 2 * times // RE2 leaves an empty alternative
		}
		if firsts[i] == nil || firsts[i-1] == nil || !firsts[i].Equal(firsts[i-1]) || !alone[i] && !alone[i-1] {
			continue
		}
		n += times * (2 + 2*width(firsts[i]))
		if i > 1 {
			n += times * width(firsts[i-2])
		}
		if i+1 < len(firsts) {
			n += times * width(firsts[i+1])
		}
	}
	return n
}

// unmarked returns an alternative as text.
func unmarked(re *syntax.Regexp) string { return strings.TrimPrefix(re.String(), "(?:)") }

// firstOf returns the first character of an alternative, or nil, and whether there
// is nothing else.
func firstOf(re *syntax.Regexp) (first *syntax.Regexp, alone bool) {
	if re.Op == syntax.OpConcat {
		subs := re.Sub
		for len(subs) > 0 && subs[0].Op == syntax.OpEmptyMatch { // the mark
			subs = subs[1:]
		}
		if len(subs) == 0 {
			return nil, false
		}
		first, alone = firstOf(subs[0])
		return first, alone && len(subs) == 1
	}
	switch re.Op {
	case syntax.OpLiteral:
		if len(re.Rune) > 0 {
			return &syntax.Regexp{Op: re.Op, Flags: re.Flags, Rune: re.Rune[:1]}, len(re.Rune) == 1
		}
	case syntax.OpCharClass, syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return re, true
	}
	return nil, false
}

// width is the number of instructions of a character.
func width(re *syntax.Regexp) int {
	if re == nil {
		return 0
	}
	return max(2, len(re.Rune)/2)
}

// coalesced returns re with repetitions as RE2 has them: those of one character that
// stand side by side are one (x*x is x+, x{2}x? is x{2,3}), and so are those in each
// other ((?:x+)? is x*).
func coalesced(re *syntax.Regexp) *syntax.Regexp {
	if len(re.Sub) == 0 {
		return re
	}
	is := *re
	is.Sub = make([]*syntax.Regexp, len(re.Sub))
	for i, sub := range re.Sub {
		is.Sub[i] = coalesced(sub)
	}
	if repeats(re) {
		squash(&is)
	}
	if re.Op != syntax.OpConcat {
		return &is
	}
	var subs []*syntax.Regexp
	for _, sub := range is.Sub {
		if len(subs) > 0 {
			if one, rest := coalesce(subs[len(subs)-1], sub); one != nil {
				subs[len(subs)-1] = one
				if rest != nil {
					subs = append(subs, rest)
				}
				continue
			}
		}
		subs = append(subs, sub)
	}
	is.Sub = subs
	return &is
}

func repeats(re *syntax.Regexp) bool {
	return re.Op == syntax.OpStar || re.Op == syntax.OpPlus || re.Op == syntax.OpQuest
}

// squash makes one of two repetitions, one in the other, if all flags are equal. Go
// does so too if some are.
func squash(re *syntax.Regexp) {
	for sub := re.Sub[0]; repeats(sub) && sub.Flags == re.Flags; sub = re.Sub[0] {
		if re.Op != sub.Op {
			re.Op = syntax.OpStar
		}
		re.Sub = sub.Sub
	}
	if sub := re.Sub[0]; sub.Op == re.Op {
		re.Sub = []*syntax.Regexp{{Op: syntax.OpConcat, Sub: []*syntax.Regexp{sub}}}
	}
}

// repetition returns what re repeats, and how often; -1: without limit.
func repetition(re *syntax.Regexp) (of *syntax.Regexp, least, most int) {
	switch re.Op {
	case syntax.OpStar:
		return re.Sub[0], 0, -1
	case syntax.OpPlus:
		return re.Sub[0], 1, -1
	case syntax.OpQuest:
		return re.Sub[0], 0, 1
	case syntax.OpRepeat:
		return re.Sub[0], re.Min, re.Max
	}
	return nil, 0, 0
}

// coalesce returns two neighbours as one repetition, and what is left of the second
// one; one is nil if they are no repetitions of the same character.
func coalesce(a, b *syntax.Regexp) (one, rest *syntax.Regexp) {
	of, least, most := repetition(a)
	if of == nil {
		return nil, nil
	}
	if first, alone := firstOf(of); first == nil || !alone || of.Op == syntax.OpConcat {
		return nil, nil
	}
	more, moreMost := 1, 1
	switch again, l, m := repetition(b); {
	case again != nil && again.Equal(of) && (a.Flags^b.Flags)&syntax.NonGreedy == 0:
		more, moreMost = l, m
	case again != nil:
		return nil, nil
	case b.Equal(of):
	case of.Op == syntax.OpLiteral && b.Op == syntax.OpLiteral && (of.Flags^b.Flags)&syntax.FoldCase == 0 && len(b.Rune) > 0 && b.Rune[0] == of.Rune[0]:
		for more < len(b.Rune) && b.Rune[more] == of.Rune[0] {
			more++
		}
		if moreMost = more; more < len(b.Rune) {
			rest = &syntax.Regexp{Op: syntax.OpLiteral, Flags: b.Flags, Rune: b.Rune[more:]}
		}
	default:
		return nil, nil
	}
	one = &syntax.Regexp{Op: syntax.OpRepeat, Flags: a.Flags, Sub: []*syntax.Regexp{of}, Min: least + more, Max: -1}
	if most >= 0 && moreMost >= 0 {
		one.Max = most + moreMost
	}
	return one, rest
}
