package re2

import (
	"cmp"
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	// maxWiden is the length of the longest expression of which parts are kept.
	maxWiden = 4 << 10
	// maxTries bounds how many parts are tried in one round, and maxRounds how many
	// large parts are widened before the whole expression is.
	maxTries, maxRounds = 3, 8
)

// everything matches any text.
const everything = `(?s:.*)`

// Widen returns an expression that fits and matches every text that expr matches,
// and more: parts of it, as small as possible, match any text.
func Widen(expr string, limit int) string {
	if Fits(expr, limit) {
		return expr
	}
	re, err := parse(expr)
	if err != nil || len(expr) > maxWiden {
		return everything
	}
	for range maxRounds {
		parts := partsOf(re)
		whole := parts[0]
		slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(a.size, b.size) })
		// The smallest part that may be enough is tried first. The rest of the
		// expression then has about one instruction for each node.
		enough := slices.IndexFunc(parts, func(p part) bool { return whole.size-p.size < limit })
		for _, p := range parts[max(0, enough):min(len(parts), max(0, enough)+maxTries)] {
			was := *p.re
			*p.re = anyText()
			if wide, ok := written(re); ok && Fits(wide, limit) {
				return wide
			}
			*p.re = was
		}
		if len(parts) < 2 {
			break
		}
		*parts[len(parts)-2].re = anyText() // the last is the whole
	}
	return everything
}

// written returns an expression as text. Bytes beyond ASCII are escaped, because
// one alone is not UTF-8. ok is false if RE2 could not read it.
func written(re *syntax.Regexp) (expr string, ok bool) {
	var b strings.Builder
	for _, r := range re.String() {
		switch {
		case r > maxByte:
			return "", false
		case r >= utf8.RuneSelf:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String(), !strings.Contains(b.String(), `\x{`)
}

func anyText() syntax.Regexp {
	return syntax.Regexp{Op: syntax.OpStar, Sub: []*syntax.Regexp{{Op: syntax.OpAnyChar}}}
}

func isEverything(re *syntax.Regexp) bool {
	return re.Op == syntax.OpStar && re.Sub[0].Op == syntax.OpAnyChar
}

// part is a part of an expression.
type part struct {
	re   *syntax.Regexp
	size int // in nodes and literals, times repetitions
}

// partsOf returns the parts of an expression that match more than one text, the
// whole first.
func partsOf(re *syntax.Regexp) (all []part) {
	var walk func(re *syntax.Regexp) int
	walk = func(re *syntax.Regexp) int {
		i := len(all)
		all = append(all, part{re: re})
		size := max(1, len(re.Rune))
		for _, sub := range re.Sub {
			size += walk(sub)
		}
		if re.Op == syntax.OpRepeat {
			size *= max(1, re.Min, re.Max)
		}
		all[i].size = size
		return size
	}
	walk(re)
	return slices.DeleteFunc(all, func(p part) bool { return p.re != re && (isEverything(p.re) || p.size < 2) })
}
