package command

import (
	"fmt"
	"math/rand/v2"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/google/go-cmp/cmp"

	"meshlog.dev/services/operate/past"
)

// Route configurations without the virtual hosts that are the same at both ends differ in the
// same fields as whole ones.
func TestTrimmed(t *testing.T) {
	d := rand.New(rand.NewPCG(1, 2))
	list := func() *routev3.RouteConfiguration {
		r := &routev3.RouteConfiguration{Name: "80"}
		for i := range 6 {
			if d.IntN(4) > 0 {
				r.VirtualHosts = append(r.VirtualHosts, &routev3.VirtualHost{Name: fmt.Sprintf("h%d", i), Domains: []string{fmt.Sprint(d.IntN(2))}})
			}
		}
		return r
	}
	fields := func(a, b *routev3.RouteConfiguration, trim bool) []past.FieldChange {
		c := past.ObjectChange{}
		docs, first := documentsOf(a, b, trim)
		c.Compare("", docs[0], docs[1], nil)
		shifted(c.Fields, first)
		return c.Fields
	}
	for n := range 2000 {
		a, b := list(), list()
		if diff := cmp.Diff(fields(a, b, false), fields(a, b, true)); diff != "" {
			t.Fatalf("%d: %v\n%v\n(-whole +trimmed):\n%s", n, a, b, diff)
		}
	}
}
