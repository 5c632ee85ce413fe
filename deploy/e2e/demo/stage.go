package main

import (
	"context"
	"fmt"
	"math"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/e2e/shop"
	"meshlog.dev/deploy/testkit/program"
)

// scene holds the parts that both demos have.
type scene struct {
	*printer
	dir   string
	mesh  *rig.Mesh // meshlog up
	envoy *rig.Envoy
}

// stage holds the running parts of the demo with files.
type stage struct {
	scene

	v1, v2 *rig.Backend
	shop   *shop.Shop
	repair func() error // restores the files that fromDisk broke
}

func newStage(s scene) play { return &stage{scene: s} }

func (s *stage) steps() []step { return []step{s.set, s.canary, s.alone, s.fromDisk, s.repaired} }

// sample is how many requests a split is measured over. At 50/50 its standard
// deviation is 1.1 percentage points; tolerance is more than five of them.
const (
	sample    = 2000
	tolerance = 6.0
	conns     = 4
)

// set starts everything.
func (s *stage) set(ctx context.Context) (err error) {
	if s.v1, err = rig.StartBackend(shop.V1); err != nil {
		return err
	}
	if s.v2, err = rig.StartBackend(shop.V2); err != nil {
		return err
	}
	if s.shop, err = shop.New(s.dir, []int{s.v1.Port}, []int{s.v2.Port}); err != nil {
		return err
	}
	if s.mesh, err = rig.Up(ctx, s.dir, s.shop.Path); err != nil {
		return err
	}
	if s.envoy, err = s.mesh.Join(ctx, rig.EnvoyConfig{Node: "envoy-1", Cluster: "demo"}, s.shop.Port); err != nil {
		return err
	}
	up := s.up()
	s.chapter("What runs")
	s.where("meshlog up", "bus, watcher, builder and frontend in one process", fmt.Sprintf("pid %d, xDS 127.0.0.1:%d, admin http://127.0.0.1:%d", up.PID(), up.XDS, up.Admin))
	s.where("envoy-1", "a real Envoy, configured by it", fmt.Sprintf("pid %d, %s, admin http://%s", s.envoy.PID(), s.shop.URL(), s.envoy.Admin()))
	s.where("shop-v1", "a backend", fmt.Sprintf("http://127.0.0.1:%d", s.v1.Port))
	s.where("shop-v2", "a backend", fmt.Sprintf("http://127.0.0.1:%d", s.v2.Port))
	s.where("config", "the watched directory, a copy of deploy/e2e/demo/config", s.shop.Path)
	s.where("data", "the log, the versions, the frontend's replica", s.mesh.Data)
	return nil
}

// proxy returns the Envoy that serves.
func (s *scene) proxy() *rig.Envoy { return s.envoy }

// up returns the process of `meshlog up`.
func (s *scene) up() *rig.Server { return s.mesh.Frontends[0] }

// weight is the part of all requests, in percent, that a backend is to answer.
type weight struct {
	backend string
	percent int
}

// versions are the weights of the two versions of the shop.
func versions(v1, v2 int) [2]weight { return [2]weight{{shop.V1, v1}, {shop.V2, v2}} }

// split measures the steady load and checks that it follows the weights. It
// returns the measured split, and how many requests were sent meanwhile.
func (s *scene) split(ctx context.Context, load *rig.Load, want [2]weight) (measured string, sent int, err error) {
	// Requests from before the routes changed, and requests in flight at that
	// moment, are not part of the sample.
	var t rig.Tally
	for _, n := range []int{1, 10 * conns, sample} {
		err := program.Until(ctx, fmt.Sprintf("%d requests", n), func(context.Context) error {
			if got := load.Sent(); got < n {
				return fmt.Errorf("%d were sent", got)
			}
			return nil
		})
		if err != nil {
			return "", 0, err
		}
		t = load.Reset()
		if err := t.Err(); err != nil {
			return "", 0, err
		}
		sent += t.Sent
	}
	measured = fmt.Sprintf("%5.1f / %5.1f %% of %d", t.Share(want[0].backend), t.Share(want[1].backend), t.Sent)
	for _, w := range want {
		if math.Abs(t.Share(w.backend)-float64(w.percent)) > tolerance {
			return "", 0, fmt.Errorf("weights %d/%d, measured %s requests", want[0].percent, want[1].percent, measured)
		}
	}
	return measured, sent, nil
}

// end stops the running parts, the last started first.
func (s *stage) end() {
	if s.envoy != nil {
		s.envoy.Kill()
	}
	if s.mesh != nil {
		s.mesh.End()
	}
	for _, b := range []*rig.Backend{s.v1, s.v2} {
		if b != nil {
			b.Stop()
		}
	}
}
