package past

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// parse reads JSON, and keeps numbers as they are written.
func parse(b []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return v, d.Decode(&v)
}

// printValue returns the JSON of a value that parse returned; equal values give
// equal JSON.
func printValue(v any) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(fmt.Sprintf("a value that was read from JSON cannot fail to encode: %v", err))
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// differ collects the fields in which two values differ.
type differ struct{ changes []FieldChange }

func (d *differ) values(path string, a, b any) {
	switch x := a.(type) {
	case map[string]any:
		if y, ok := b.(map[string]any); ok {
			d.objects(path, x, y)
			return
		}
	case []any:
		if y, ok := b.([]any); ok {
			d.lists(path, x, y)
			return
		}
	}
	if before, after := printValue(a), printValue(b); !bytes.Equal(before, after) {
		d.changes = append(d.changes, FieldChange{path, before, after})
	}
}

func (d *differ) objects(path string, a, b map[string]any) {
	names := slices.Collect(maps.Keys(a))
	for name := range b {
		if _, ok := a[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		x, before := a[name]
		y, after := b[name]
		at := join(path, name)
		switch {
		case !before:
			d.changes = append(d.changes, FieldChange{Path: at, After: printValue(y)})
		case !after:
			d.changes = append(d.changes, FieldChange{Path: at, Before: printValue(x)})
		default:
			d.values(at, x, y)
		}
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// maxPairs bounds how many pairs of elements are compared to find the elements
// that stayed; longer lists are compared by index.
const maxPairs = 1_000_000

// lists finds the elements that stayed. The elements in between are compared in
// pairs; an element without a partner was added or removed.
func (d *differ) lists(path string, a, b []any) {
	x, y := printed(a), printed(b)
	i, j := 0, 0
	for _, m := range stayed(x, y) {
		d.between(path, a, b, i, m[0], j, m[1])
		i, j = m[0]+1, m[1]+1
	}
	d.between(path, a, b, i, len(a), j, len(b))
}

// between compares a[i:endA] with b[j:endB].
func (d *differ) between(path string, a, b []any, i, endA, j, endB int) {
	for ; i < endA && j < endB; i, j = i+1, j+1 {
		d.values(fmt.Sprintf("%s[%d]", path, j), a[i], b[j])
	}
	for ; i < endA; i++ {
		d.changes = append(d.changes, FieldChange{Path: fmt.Sprintf("%s[%d]", path, i), Before: printValue(a[i])})
	}
	for ; j < endB; j++ {
		d.changes = append(d.changes, FieldChange{Path: fmt.Sprintf("%s[%d]", path, j), After: printValue(b[j])})
	}
}

func printed(list []any) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = string(printValue(v))
	}
	return out
}

// stayed returns a longest common subsequence of two lists, as pairs of indexes.
func stayed(a, b []string) [][2]int {
	var pairs, tail [][2]int
	first := 0
	for first < len(a) && first < len(b) && a[first] == b[first] {
		pairs = append(pairs, [2]int{first, first})
		first++
	}
	endA, endB := len(a), len(b)
	for endA > first && endB > first && a[endA-1] == b[endB-1] {
		endA, endB = endA-1, endB-1
		tail = append(tail, [2]int{endA, endB})
	}
	for _, m := range common(a[first:endA], b[first:endB]) {
		pairs = append(pairs, [2]int{first + m[0], first + m[1]})
	}
	slices.Reverse(tail)
	return append(pairs, tail...)
}

// common computes the longest common subsequence by dynamic programming.
func common(a, b []string) [][2]int {
	if len(a)*len(b) > maxPairs {
		return nil
	}
	length := make([][]int, len(a)+1) // of the subsequence of a[i:] and b[j:]
	for i := range length {
		length[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				length[i][j] = length[i+1][j+1] + 1
			} else {
				length[i][j] = max(length[i+1][j], length[i][j+1])
			}
		}
	}
	var pairs [][2]int
	for i, j := 0, 0; i < len(a) && j < len(b); {
		switch {
		case a[i] == b[j]:
			pairs = append(pairs, [2]int{i, j})
			i, j = i+1, j+1
		case length[i+1][j] >= length[i][j+1]:
			i++
		default:
			j++
		}
	}
	return pairs
}
