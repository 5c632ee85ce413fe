package world

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

func TestWorld(t *testing.T) {
	w, err := New(t.TempDir(), Size{Services: 12, Endpoints: 3, Rules: 4, Namespaces: 5})
	if err != nil {
		t.Fatal(err)
	}
	count := func() map[string]int {
		entries, err := os.ReadDir(w.Path)
		if err != nil {
			t.Fatal(err)
		}
		n := map[string]int{"files": len(entries)}
		for _, e := range entries {
			text, err := w.Read(e.Name())
			if err != nil {
				t.Fatal(err)
			}
			for _, word := range []string{"kind: ServiceEntry", "kind: VirtualService", "kind: DestinationRule", "exportTo:", "- {address:"} {
				n[word] += strings.Count(text, word)
			}
		}
		return n
	}
	want := map[string]int{
		"files": 5 + 2, "kind: ServiceEntry": 12, "kind: VirtualService": 4, "kind: DestinationRule": 4 + 5,
		"exportTo:": 5, "- {address:": 12 * 3,
	}
	check := func(when string) {
		t.Helper()
		for what, n := range count() {
			if n != want[what] {
				t.Errorf("%s: %d times %q, want %d", when, n, what, want[what])
			}
		}
	}
	check("at first")
	var tokens [][]byte
	for range 3 {
		for _, change := range []func() (Change, error){w.ChangeEndpoint, w.ChangeRoute} {
			c, err := change()
			if err != nil {
				t.Fatal(err)
			}
			if len(c.Token) == 0 || c.Saved.IsZero() {
				t.Errorf("a change lacks a token or a time: %+v", c)
			}
			for _, before := range tokens {
				if bytes.Contains(c.Token, before) {
					t.Errorf("a token contains the earlier token %q", before)
				}
			}
			tokens = append(tokens, c.Token)
		}
	}
	check("after changes")
}
