package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"meshlog.dev/deploy/e2e/rig"
)

// change is what became of one save.
type change struct {
	version rig.Version
	cause   string // the event: where it was saved, and what it is about
	toACK   time.Duration
}

// applied waits until Envoy has acknowledged the routes that were saved, and
// says what brought them there.
func (s *stage) applied(ctx context.Context, saved time.Time) (change, error) {
	t, err := s.mesh.Acked(ctx, s.envoy.Name, rig.RouteConfiguration, saved)
	if err != nil {
		return change{}, err
	}
	c := change{version: t.Sent, toACK: t.AckedTime.Sub(saved)}
	c.cause, err = s.cause(ctx)
	return c, err
}

// cause is the last event about the routes.
func (s *stage) cause(ctx context.Context) (string, error) {
	var events []rig.Event
	if err := s.mesh.CLI(ctx, &events, "log", "--last", "20"); err != nil {
		return "", err
	}
	for i := len(events) - 1; i >= 0; i-- {
		if e := events[i]; e.Key.Name == "routes" {
			return fmt.Sprintf("%s %s %s/%s", filepath.Base(e.Origin), e.Key.Kind, e.Key.Namespace, e.Key.Name), nil
		}
	}
	return "", fmt.Errorf("the log has no event about the routes")
}
