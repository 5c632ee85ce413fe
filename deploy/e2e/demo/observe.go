package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"meshlog.dev/deploy/e2e/rig"
)

// change is what became of one save.
type change struct {
	version rig.Version
	cause   string // the event: where it was saved, and what it is about
	toACK   time.Duration
}

// applied waits until Envoy has acknowledged routes newer than before, and says
// what brought them there.
func (s *stage) applied(ctx context.Context, saved time.Time, before rig.Version) (change, error) {
	t, err := s.mesh.Acked(ctx, s.envoy.Name, rig.RouteConfiguration, before)
	if err != nil {
		return change{}, err
	}
	c := change{version: t.Sent, toACK: t.AckedTime.Sub(saved)}
	c.cause, err = s.cause(ctx, t.Sent)
	return c, err
}

// cause is what the log says of the change of the routes that a version has.
func (s *stage) cause(ctx context.Context, version rig.Version) (string, error) {
	var v rig.Published
	if err := s.mesh.CLI(ctx, &v, "versions", version.String()); err != nil {
		return "", err
	}
	for _, c := range v.Changes {
		if strings.Contains(c.Object, "VirtualService demo/shop ") {
			return fmt.Sprintf("#%d %s: %s", c.Seq, c.Cause, c.Object), nil
		}
	}
	return "", fmt.Errorf("version %s does not say that it changes the routes: %+v", version, v.Changes)
}
