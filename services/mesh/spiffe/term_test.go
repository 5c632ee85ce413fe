package spiffe_test

import (
	"testing"
	"time"

	"meshlog.dev/services/mesh/spiffe"
)

// CA-8: a certificate is overdue with less than a quarter of its time left, unless the
// connection that shows it is older than its renewal: its holder may have another one.
func TestOverdue(t *testing.T) {
	begins := time.Unix(0, 0)
	at := func(part float64) time.Time { return begins.Add(time.Duration(part * float64(24*time.Hour))) }
	for name, c := range map[string]struct {
		term       spiffe.Term
		now        float64
		late, over bool
	}{
		"new":                              {spiffe.Term{Begins: begins, Ends: at(1), Shown: at(.01)}, .02, false, false},
		"renewal is due":                   {spiffe.Term{Begins: begins, Ends: at(1), Shown: at(.7)}, .74, false, false},
		"a quarter is left":                {spiffe.Term{Begins: begins, Ends: at(1), Shown: at(.7)}, .76, true, false},
		"the connection is older":          {spiffe.Term{Begins: begins, Ends: at(1), Shown: at(.5)}, .76, false, false},
		"ended":                            {spiffe.Term{Begins: begins, Ends: at(1), Shown: at(.7)}, 1, true, true},
		"ended, the connection is older":   {spiffe.Term{Begins: begins, Ends: at(1), Shown: at(.1)}, 1, false, true},
		"its begin is not known":           {spiffe.Term{Ends: at(1), Shown: at(.7)}, .9, false, false},
		"it is not known when it is shown": {spiffe.Term{Begins: begins, Ends: at(1)}, .9, false, false},
		"no time at all":                   {spiffe.Term{}, .9, false, false},
		"ends before it begins":            {spiffe.Term{Begins: at(1), Ends: begins, Shown: at(.7)}, .9, false, true},
		"a minute, backdated":              {spiffe.Term{Begins: at(.9).Add(-2 * time.Minute), Ends: at(.9).Add(time.Minute), Shown: at(.9).Add(5 * time.Second)}, .9 + 50./86400, false, false},
		"a minute, not renewed":            {spiffe.Term{Begins: at(.9).Add(-2 * time.Minute), Ends: at(.9).Add(time.Minute), Shown: at(.9).Add(40 * time.Second)}, .9 + 50./86400, true, false},
	} {
		if late, over := c.term.Overdue(at(c.now)), c.term.Ended(at(c.now)); late != c.late || over != c.over {
			t.Errorf("%s: overdue %v, ended %v; want %v, %v", name, late, over, c.late, c.over)
		}
	}
}
