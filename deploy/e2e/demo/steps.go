package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/e2e/shop"
	"meshlog.dev/deploy/testkit/program"
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
		measured, sent, err := s.split(ctx, load, versions(w.v1, w.v2))
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
	s.holds("all %d requests were answered, including those in flight when the routes changed", total+last.Sent)
	return s.unrejected(ctx, s.envoy)
}

// alone kills every process but Envoy and the backends.
func (s *stage) alone(ctx context.Context) error {
	s.chapter("Everything dies except Envoy and the backends")
	s.up().Kill()
	s.holds("meshlog up is killed (pid %d)", s.up().PID())
	if err := s.envoy.Connected(ctx, false); err != nil {
		return err
	}
	s.holds("envoy-1 has noticed: control_plane.connected_state 0")
	return s.serves(ctx, shop.V2)
}

// fromDisk restarts meshlog while every file is broken: it serves from its data
// directory.
func (s *stage) fromDisk(ctx context.Context) (err error) {
	s.chapter("meshlog comes back while every file is broken: it serves from its data directory")
	if s.repair, err = s.shop.Break(); err != nil {
		return err
	}
	if err := s.back(ctx); err != nil {
		return err
	}
	s.holds("meshlog up runs again (pid %d), and envoy-1 is connected to it", s.up().PID())
	if err := s.diagnosed(ctx); err != nil {
		return err
	}
	if err := s.unrejected(ctx, s.envoy); err != nil {
		return err
	}
	if err := s.serves(ctx, shop.V2); err != nil {
		return err
	}
	// An Envoy without any configuration proves that meshlog has all of it on
	// disk. It replaces the first one and uses its port.
	if err := s.envoy.Stop(); err != nil {
		return err
	}
	if s.envoy, err = s.mesh.Join(ctx, rig.EnvoyConfig{Node: "envoy-2", Cluster: "demo"}, s.shop.Port); err != nil {
		return err
	}
	s.holds("envoy-2 has replaced envoy-1, and has only the configuration that meshlog read from disk (pid %d)", s.envoy.PID())
	return s.serves(ctx, shop.V2)
}

// back starts meshlog again, and waits until Envoy is connected to it.
func (s *stage) back(ctx context.Context) error {
	if err := s.up().Restart(); err != nil {
		return err
	}
	if err := s.up().Ready(ctx); err != nil {
		return err
	}
	return s.envoy.Connected(ctx, true)
}

// diagnosed waits until meshlog reports an error in every file, and shows them.
func (s *stage) diagnosed(ctx context.Context) error {
	err := program.Until(ctx, "a diagnostic for every file", func(ctx context.Context) error {
		var found []rig.Diagnostic
		err := s.mesh.CLI(ctx, &found, "diagnostics")
		if err == nil && len(found) != len(shop.Files) {
			err = fmt.Errorf("diagnostics: %+v", found)
		}
		return err
	})
	if err != nil {
		return err
	}
	return s.ask(ctx, shop.Routes+":1", "diagnostics")
}

// repaired restores the files; changes take effect again.
func (s *stage) repaired(ctx context.Context) error {
	s.chapter("The files are repaired")
	before, err := s.mesh.Acked(ctx, s.envoy.Name, rig.RouteConfiguration, rig.Version{})
	if err != nil {
		return err
	}
	if err := s.repair(); err != nil {
		return err
	}
	saved, err := s.shop.Weights(100, 0)
	if err != nil {
		return err
	}
	c, err := s.applied(ctx, rig.RouteConfiguration, theRoute, saved, before.Acked)
	if err != nil {
		return err
	}
	s.holds("weights 100/0: envoy-2 has acknowledged version %s %s after the save (%s)", c.version, tenths(c.toACK), c.cause)
	// Requests that an Envoy worker accepted before it had the new routes.
	if err := rig.Send(ctx, s.shop.URL(), 10*conns).Err(); err != nil {
		return err
	}
	return s.serves(ctx, shop.V1)
}

// yours prints the commands that a user at the terminal can try.
func (s *stage) yours(context.Context) error {
	s.chapter("Your turn")
	s.note("curl %s", s.shop.URL())
	s.note("$EDITOR %s", filepath.Join(s.shop.Path, shop.Routes))
	s.note("bin/meshlog log --follow --data %s", s.mesh.Data)
	s.note("bin/meshlog proxy-status --data %s", s.mesh.Data)
	s.note("")
	s.note("Ctrl-C ends it.")
	return nil
}

// serves demands that Envoy answers every request from one of the two versions.
func (s *stage) serves(ctx context.Context, version string) error {
	t := rig.Send(ctx, s.shop.URL(), sample)
	if err := t.Err(); err != nil {
		return err
	}
	if t.Backends[version] != t.Sent {
		return fmt.Errorf("%s sent %d of %d requests to the version that has weight 0", s.envoy.Name, t.Sent-t.Backends[version], t.Sent)
	}
	s.holds("%s answers: %d of %d requests, all from %s", s.envoy.Name, t.Backends[version], sample, version)
	return nil
}

// unrejected demands that e rejected no response, and prints that.
func (s *scene) unrejected(ctx context.Context, e *rig.Envoy) error {
	n, err := e.Rejected(ctx)
	if err != nil {
		return err
	}
	if n > 0 {
		return fmt.Errorf("%s rejected %d responses; its log says:\n%s", e.Name, n, e.Tail(5))
	}
	s.holds("%s has rejected no response", e.Name)
	return nil
}
