package e2e

import (
	"testing"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/e2e/shop"
)

// arrangements are the two ways to run meshlog: in one process, and in separate ones.
var arrangements = map[string]arrangement{"up": rig.Up, "apart": apart(1, 1)}

func TestServe(t *testing.T) {
	for name, arranged := range arrangements {
		t.Run(name, func(t *testing.T) {
			f := start(t, arranged)
			weights(f)
			endpoints(f)
			f.nothingRejected()
			brokenFiles(f)
			f.nothingRejected()
			generatedIsValid(f)
			istioNode(f)
		})
	}
}

// A change of weights moves real requests, and loses none.
func weights(f *fixture) {
	f.share(shop.V2, 10)
	f.during("the weights change", func() {
		for _, v2 := range []int{50, 100, 0} {
			f.shift(100-v2, v2)
			f.share(shop.V2, float64(v2))
		}
	})
}

// A removed endpoint gets no request, and its removal fails none.
func endpoints(f *fixture) {
	twin := f.backend("shop-v1-twin")
	both, one := []int{f.v1.Port, twin.Port}, []int{f.v1.Port}
	v2 := []int{f.v2.Port}
	f.during("an endpoint comes and goes", func() {
		f.endpoints(both, v2)
		f.share(twin.Name, 50)
		f.endpoints(one, v2)
		before := twin.Served()
		f.share(shop.V1, 100)
		if n := twin.Served() - before; n != 0 {
			f.Errorf("the removed endpoint got %d requests", n)
		}
	})
}
