package past

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// Skipped is how many equal elements were left out at the beginning of the lists of two
// documents, by the path of the list.
type Skipped map[string]int

// diffDocuments returns the fields in which two documents differ, in the order of
// the first. The paths begin with prefix.
func diffDocuments(prefix string, a, b json.RawMessage, skipped Skipped) []FieldChange {
	x, err := parse(a)
	y, errOfB := parse(b)
	if err != nil || errOfB != nil {
		return []FieldChange{{prefix, a, b}}
	}
	d := differ{skipped: skipped}
	d.values(prefix, x, y)
	return d.changes
}

// parse reads JSON, and keeps numbers as they are written.
func parse(b []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return v, d.Decode(&v)
}

// absent stands for a field or an element that does not exist.
type absent struct{}

// printValue returns the JSON of a value that parse returned; equal values give
// equal JSON, and absent gives none.
func printValue(v any) json.RawMessage {
	if v == (absent{}) {
		return nil
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(fmt.Sprintf("a value that was read from JSON cannot fail to encode: %v", err))
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// differ collects the fields in which two values differ.
type differ struct {
	skipped Skipped
	changes []FieldChange
}

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
	all := maps.Clone(a)
	maps.Copy(all, b)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		at := name
		if path != "" {
			at = path + "." + name
		}
		d.values(at, field(a, name), field(b, name))
	}
}

func field(object map[string]any, name string) any {
	if v, ok := object[name]; ok {
		return v
	}
	return absent{}
}

// maxPairs bounds how many pairs of elements are compared to find the elements
// that stayed; longer lists are compared by index.
const maxPairs = 1_000_000

// lists finds the elements that stayed. The elements in between are compared in
// pairs; an element without a partner was added or removed.
func (d *differ) lists(path string, a, b []any) {
	x, y := printed(a), printed(b)
	first, endA, endB := 0, len(x), len(y)
	for first < min(endA, endB) && x[first] == y[first] {
		first++
	}
	for min(endA, endB) > first && x[endA-1] == y[endB-1] {
		endA, endB = endA-1, endB-1
	}
	i, j := first, first
	for _, m := range common(x[first:endA], y[first:endB]) {
		d.between(path, a, b, i, first+m[0], j, first+m[1])
		i, j = first+m[0]+1, first+m[1]+1
	}
	d.between(path, a, b, i, endA, j, endB)
}

// between compares a[i:endA] with b[j:endB].
func (d *differ) between(path string, a, b []any, i, endA, j, endB int) {
	at := func(i int) string { return fmt.Sprintf("%s[%d]", path, d.skipped[path]+i) }
	for ; i < endA && j < endB; i, j = i+1, j+1 {
		d.values(at(j), a[i], b[j])
	}
	for ; i < endA; i++ {
		d.values(at(i), a[i], absent{})
	}
	for ; j < endB; j++ {
		d.values(at(j), absent{}, b[j])
	}
}

func printed(list []any) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = string(printValue(v))
	}
	return out
}

// common returns a longest common subsequence of two lists, as pairs of indexes.
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
