package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/e2e/shop"
)

// canary shifts requests from one version to the other, and loses none.
func (s *stage) canary(ctx context.Context) error {
	s.chapter("A canary: three saves of routes.yaml while requests flow")
	s.columns("weights", "save to ACK")
	load, err := rig.StartLoad(ctx, s.shop.URL(), conns)
	if err != nil {
		return err
	}
	defer load.Stop()
	total := 0 // of requests
	var at rig.Version
	for i, w := range []struct{ v1, v2 int }{{90, 10}, {50, 50}, {0, 100}} {
		var saved time.Time // the first weights were there at the start
		if i > 0 {
			if saved, err = s.shop.Weights(w.v1, w.v2); err != nil {
				return err
			}
		}
		c, err := s.applied(ctx, rig.RouteConfiguration, theRoute, saved, at)
		if err != nil {
			return err
		}
		at = c.version
		measured, sent, err := s.split(ctx, load, w.v1, w.v2)
		if err != nil {
			return err
		}
		total += sent
		toACK := "at start"
		if i > 0 {
			toACK = tenths(c.toACK)
		}
		s.line(fmt.Sprintf("%d/%d", w.v1, w.v2), c.version.String(), toACK, measured, c.cause)
	}
	last := load.Stop()
	if last.Sent > 0 && last.Err() != nil {
		return last.Err()
	}
	s.holds("all %d requests were answered, also those under way when the routes changed", total+last.Sent)
	return s.unrejected(ctx, s.envoy)
}

// alone stops everything but Envoy and the backends.
func (s *stage) alone(ctx context.Context) error {
	s.chapter("Everything dies but Envoy and the backends")
	if err := s.up().Stop(); err != nil {
		return err
	}
	s.holds("meshlog up has ended (pid %d)", s.up().PID())
	if err := s.envoy.Connected(ctx, false); err != nil {
		return err
	}
	s.holds("envoy-1 has noticed: control_plane.connected_state 0")
	return s.serves(ctx, s.envoy)
}

// fromDisk serves Envoy from the stopped data directory, with nothing else
// alive.
func (s *stage) fromDisk(ctx context.Context) (err error) {
	s.chapter("A frontend of its own on the stopped data directory, with nothing else alive")
	// Where Envoy looks for it, and without a bus to ask.
	if s.frontend, err = rig.StartFrontend(s.dir, "frontend", s.mesh.Data, s.up().XDS); err != nil {
		return err
	}
	if err := s.frontend.Ready(ctx); err != nil {
		return err
	}
	s.where("frontend", "bin/frontend", fmt.Sprintf("pid %d, xDS 127.0.0.1:%d", s.frontend.PID(), s.frontend.XDS))
	if err := s.envoy.Connected(ctx, true); err != nil {
		return err
	}
	s.holds("envoy-1 is connected again: control_plane.connected_state 1")
	if err := s.unrejected(ctx, s.envoy); err != nil {
		return err
	}
	if err := s.serves(ctx, s.envoy); err != nil {
		return err
	}
	// Proof that what is served comes from the disk: an Envoy that has nothing.
	// It takes the place of the first one, whose port it gets.
	if err := s.envoy.Stop(); err != nil {
		return err
	}
	if s.envoy, err = s.mesh.Join(ctx, rig.EnvoyConfig{Node: "envoy-2", Cluster: "demo"}, s.shop.Port); err != nil {
		return err
	}
	s.holds("envoy-2 has joined in place of envoy-1 and knows only what the frontend read from disk (pid %d)", s.envoy.PID())
	return s.serves(ctx, s.envoy)
}

// yours brings everything back, for whoever sits at the terminal.
func (s *stage) yours(ctx context.Context) error {
	s.chapter("Everything is back: your turn")
	if err := s.frontend.Stop(); err != nil {
		return err
	}
	if err := s.up().Restart(); err != nil {
		return err
	}
	if err := s.up().Ready(ctx); err != nil {
		return err
	}
	if err := s.envoy.Connected(ctx, true); err != nil {
		return err
	}
	s.note("curl %s", s.shop.URL())
	s.note("$EDITOR %s", filepath.Join(s.shop.Path, shop.Routes))
	s.note("bin/meshlog log --follow --data %s", s.mesh.Data)
	s.note("bin/meshlog proxy-status --data %s", s.mesh.Data)
	s.note("")
	s.note("Ctrl-C ends it.")
	return nil
}

// serves says that requests through e are answered by the version that the
// canary ended with.
func (s *stage) serves(ctx context.Context, e *rig.Envoy) error {
	t := rig.Send(ctx, s.shop.URL(), sample)
	if err := t.Err(); err != nil {
		return err
	}
	if t.Backends[shop.V2] != t.Sent {
		return fmt.Errorf("%s sent %d of %d requests to shop-v1, which has weight 0", e.Name, t.Backends[shop.V1], t.Sent)
	}
	s.holds("%s answers: %d of %d requests, all from shop-v2", e.Name, t.Backends[shop.V2], sample)
	return nil
}

// unrejected says that e took all it was ever sent.
func (s *scene) unrejected(ctx context.Context, e *rig.Envoy) error {
	n, err := e.Rejected(ctx)
	if err != nil {
		return err
	}
	if n > 0 {
		return fmt.Errorf("%s rejected %d responses; its log says:\n%s", e.Name, n, e.Tail(5))
	}
	s.holds("%s has rejected nothing", e.Name)
	return nil
}
