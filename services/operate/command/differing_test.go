package command

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/services/operate/past"
)

// Messages without the elements of lists that are the same at both ends differ in the same
// fields as whole ones.
func TestDiffering(t *testing.T) {
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
	fields := func(a, b *routev3.RouteConfiguration, cut bool) []past.FieldChange {
		var sides [2][]byte
		for i, m := range []proto.Message{a, b} {
			var err error
			if sides[i], err = proto.Marshal(m); err != nil {
				t.Fatal(err)
			}
		}
		skipped := past.Skipped(nil)
		if cut {
			sides, skipped = differing(a.ProtoReflect().Descriptor(), sides)
		}
		var docs [2]json.RawMessage
		for i, side := range sides {
			m := &routev3.RouteConfiguration{}
			if err := proto.Unmarshal(side, m); err != nil {
				t.Fatal(err)
			}
			var err error
			if docs[i], err = printMessage(m); err != nil {
				t.Fatal(err)
			}
		}
		c := past.ObjectChange{}
		c.CompareRest("", docs[0], docs[1], skipped, nil)
		return c.Fields
	}
	for n := range 2000 {
		a, b := list(), list()
		if diff := cmp.Diff(fields(a, b, false), fields(a, b, true)); diff != "" {
			t.Fatalf("%d: %v\n%v\n(-whole +cut):\n%s", n, a, b, diff)
		}
	}
}
