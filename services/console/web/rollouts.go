package web

import (
	"context"
	"time"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
)

// rolloutRow is a rollout on the page.
type rolloutRow struct {
	command.Rollout
	Named    []namedObject // the first objects of it
	More     int           // objects that are not named
	HoldLeft time.Duration // of the present; 0: it is over, or there is none
	Steps    []rolloutStep
}

type namedObject struct {
	Key  past.Key
	Text string
}

// rolloutStep is a step and whether it has begun.
type rolloutStep struct {
	command.RolloutStep
	Begun, Now bool
}

// namedObjects is how many objects of a rollout the page names.
const namedObjects = 20

// rollouts shows the rollouts of a version, and those that had ended then. How far proxies are
// is of the present.
func rollouts(ctx context.Context, p *page) (any, error) {
	rows := []rolloutRow{}
	if p.moment.Version.IsZero() {
		return rows, nil
	}
	c, err := p.mesh.Content(ctx, p.moment)
	if err != nil {
		return nil, err
	}
	var builders []*reportv1.BuilderReport
	if p.At == "" && p.Mesh.Reports != nil {
		builders = p.Mesh.Reports.Builders
	}
	all, err := command.Rollouts(c.Rows(), builders)
	if err != nil {
		return nil, err
	}
	if all, err = command.RolloutHistory(ctx, p.mesh.Past, p.moment.Version, all, command.RolloutVersions); err != nil {
		return nil, err
	}
	now := p.Now
	if p.At != "" {
		now = p.Published()
	}
	for _, r := range all {
		row := rolloutRow{Rollout: r, HoldLeft: r.HoldLeft(now)}
		for i, k := range r.Keys {
			if i == namedObjects {
				row.More = len(r.Keys) - i
				break
			}
			row.Named = append(row.Named, namedObject{past.Key(k), r.Objects[i]})
		}
		for _, s := range r.Plan {
			row.Steps = append(row.Steps, rolloutStep{s, r.State == "running" && s.Step <= r.Step, r.State == "running" && s.Step == r.Step})
		}
		rows = append(rows, row)
	}
	return rows, nil
}
