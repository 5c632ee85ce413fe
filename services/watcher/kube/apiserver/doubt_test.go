package apiserver

import (
	"testing"
	"time"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func TestDoubt(t *testing.T) {
	const settle = 3 * time.Second
	for _, test := range []struct {
		name    string
		n, were int
		at      []time.Duration // times of equal lists
		refused []bool
	}{
		{"the first list", 0, 0, []time.Duration{0}, []bool{false}},
		{"more", 20, 10, []time.Duration{0}, []bool{false}},
		{"half", 10, 20, []time.Duration{0}, []bool{false}},
		{"some of few", 1, 9, []time.Duration{0}, []bool{false}},
		{"empty", 0, 1, []time.Duration{0, time.Second, settle}, []bool{true, true, false}},
		{"most", 9, 20, []time.Duration{0, settle}, []bool{true, false}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var d doubt
			for i, at := range test.at {
				if err := d.judge(test.n, test.were, start.Add(at), settle); (err != nil) != test.refused[i] {
					t.Errorf("after %s: %v", at, err)
				}
			}
		})
	}
	var d doubt
	_ = d.judge(0, 20, start, settle)
	if err := d.judge(20, 20, start.Add(settle), settle); err != nil {
		t.Errorf("a list without a loss: %v", err)
	}
	if err := d.judge(0, 20, start.Add(2*settle), settle); err == nil {
		t.Error("an earlier doubt that was settled confirmed another loss")
	}
}
