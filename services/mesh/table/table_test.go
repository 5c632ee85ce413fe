package table

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"testing"
)

func TestTable(t *testing.T) {
	defer func() { hashMask = math.MaxUint64 }()
	for name, mask := range map[string]uint64{"spread": math.MaxUint64, "collide": 3} {
		hashMask = mask
		r := rand.New(rand.NewPCG(1, 1))
		table, want := Table[string, int]{}, map[string]int{}
		for step := range 300 {
			before := maps.Collect(table.All())
			e := table.Edit()
			for range r.IntN(20) {
				k := fmt.Sprint(r.IntN(500))
				if r.IntN(3) == 0 {
					e.Remove(k)
					delete(want, k)
				} else {
					e.Set(k, step)
					want[k] = step
				}
			}
			if !maps.Equal(before, maps.Collect(table.All())) {
				t.Fatalf("%s: an Edit changed its original table", name)
			}
			table = e.Table
			if !maps.Equal(want, maps.Collect(table.All())) || table.Len() != len(want) {
				t.Fatalf("%s, step %d: %d entries, want %d", name, step, table.Len(), len(want))
			}
			for k, v := range want {
				if table.Get(k) != v {
					t.Fatalf("%s, step %d: %s is %d, want %d", name, step, k, table.Get(k), v)
				}
			}
		}
		for range table.All() {
			break // All must allow the loop to end early
		}
		if got := table.Get("none"); got != 0 {
			t.Errorf("%s: an unknown key has the value %d", name, got)
		}
	}
}
