package samebytes

import (
	"fmt"
	"strings"
)

// mostDifferences is the number of differences that are printed of one archive.
const mostDifferences = 20

// difference returns how two texts of digests differ, and "" if they do not.
func difference(want, got string) string {
	if want == got {
		return ""
	}
	wantLines, wantOrder := keyed(want)
	gotLines, gotOrder := keyed(got)
	var b strings.Builder
	count := 0
	report := func(key, want, got string) {
		if count++; count <= mostDifferences {
			fmt.Fprintf(&b, "  %s: want %s, got %s\n", key, want, got)
		}
	}
	for _, key := range wantOrder {
		if now, ok := gotLines[key]; !ok {
			report(key, wantLines[key], "nothing")
		} else if now != wantLines[key] {
			report(key, wantLines[key], now)
		}
	}
	for _, key := range gotOrder {
		if _, ok := wantLines[key]; !ok {
			report(key, "nothing", gotLines[key])
		}
	}
	if count > mostDifferences {
		fmt.Fprintf(&b, "  and %d more\n", count-mostDifferences)
	}
	if count == 0 {
		return "  the same lines in another order\n"
	}
	return b.String()
}

// keyed returns the values of the lines by their keys: what a line is about, such
// as a version and a node.
func keyed(text string) (lines map[string]string, order []string) {
	lines = map[string]string{}
	var version, place string
	add := func(key, value string) {
		if _, again := lines[key]; !again {
			order = append(order, key)
		}
		lines[key] += value
	}
	for line := range strings.Lines(text) {
		mark, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		first, second, _ := strings.Cut(rest, " ")
		switch mark {
		case "@":
			version, place = "version "+first, ""
			add(version, "root "+second)
		case ">":
			t, value, _ := strings.Cut(second, " ")
			place = fmt.Sprintf(", node %s, %s", first, t)
			add(version+place, value)
		case "+":
			add(version+place+", "+second, first)
		case "-":
			add(version+place+", "+rest, "removed")
		case "!":
			add(version+", problem "+second, first)
		}
	}
	return lines, order
}
