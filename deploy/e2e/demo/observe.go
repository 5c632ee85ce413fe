package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"meshlog.dev/deploy/e2e/rig"
)

// change is the outcome of one save.
type change struct {
	version rig.Version
	cause   string // the record: where the object was saved, and which object it is
	toACK   time.Duration
}

// applied waits until Envoy has acknowledged a version newer than before, and
// returns the change of an object that caused it.
func (s *scene) applied(ctx context.Context, typeURL, object string, saved time.Time, before rig.Version) (change, error) {
	t, err := s.mesh.Acked(ctx, s.envoy.Name, typeURL, before)
	if err != nil {
		return change{}, err
	}
	c := change{version: t.Sent, toACK: t.AckedTime.Sub(saved)}
	c.cause, err = s.cause(ctx, t.Sent, object)
	return c, err
}

// serving returns the version that meshlog serves now.
func (s *scene) serving(ctx context.Context) (rig.Version, error) {
	var r rig.FrontendReport
	err := s.up().Debug(ctx, "frontend", &r)
	return r.Serving, err
}

// cause returns the cause that meshlog reports for the change of an object in a
// version.
func (s *scene) cause(ctx context.Context, version rig.Version, object string) (string, error) {
	var v rig.Published
	if err := s.mesh.CLI(ctx, &v, "versions", version.String()); err != nil {
		return "", err
	}
	for _, c := range v.Changes {
		if strings.HasPrefix(c.Object, object) {
			return fmt.Sprintf("#%d %s: %s", c.Seq, c.Cause, c.Object), nil
		}
	}
	return "", fmt.Errorf("version %s does not list a change of %s: %+v", version, object, v.Changes)
}

// ask runs a command, shows its output, and demands that the output contains a
// text.
func (s *scene) ask(ctx context.Context, want string, args ...string) error {
	out, err := s.mesh.Show(ctx, args...)
	if err != nil {
		return err
	}
	return s.said(out, want, args...)
}

// await runs a command until its output contains a text, and shows that output.
func (s *scene) await(ctx context.Context, want string, args ...string) error {
	var out string
	if err := s.up().UntilAlive(ctx, fmt.Sprintf("meshlog %s to say %q", strings.Join(args, " "), want), func(ctx context.Context) (err error) {
		if out, err = s.mesh.Show(ctx, args...); err == nil && !strings.Contains(out, want) {
			err = fmt.Errorf("it says:\n%s", out)
		}
		return err
	}); err != nil {
		return err
	}
	return s.said(out, want, args...)
}

// said shows the output of a command, and demands that it contains a text.
func (s *scene) said(out, want string, args ...string) error {
	s.command("meshlog " + strings.Join(args, " "))
	s.output(out)
	if !strings.Contains(out, want) {
		return fmt.Errorf("meshlog %s does not say %q:\n%s", strings.Join(args, " "), want, out)
	}
	return nil
}

// theRoute is the object that a canary changes.
const theRoute = "VirtualService demo/shop "
