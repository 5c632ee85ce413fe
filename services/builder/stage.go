package builder

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/builder/rollout"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/store"
)

// staging is what the leader remembers of rollouts. Losing it changes no content.
type staging struct {
	head     ident.Position // at which changes were found that no rollout had
	tries    int            // how often they were put into one
	unstaged string         // what was published to all proxies at once, and why; empty: nothing
	progress rollout.Progress
	// When this builder saw the step of the running rollout first.
	seen   time.Time
	seenID string
	seenAt int // the step
}

// stageTries is how often the leader puts changes into a rollout before it publishes them
// without one. The first time there may be changes before it on the log that it does not
// have; after that, the fold adds changes to it.
const stageTries = 5

// stage appends the overlays, if any, without which the next version would give proxies
// changes before their step.
func (m *Machine) stage(ctx context.Context, steps []world.RolloutStep, before *store.Snapshot, delta store.Delta) (staged bool, err error) {
	if before == nil || !m.ledger.Fold().Mine() {
		return false, nil
	}
	overlays, lacks, err := rollout.Plan(m.ledger.Fold(), steps, before, delta)
	if err != nil {
		return false, fmt.Errorf("content of head %s: %w", m.chain.head.Version(), err)
	}
	if len(overlays) == 0 {
		return false, nil
	}
	if head := m.chain.head.Version(); !lacks || m.staging.head != head {
		m.staging.head, m.staging.tries = head, 0
	}
	if lacks && m.staging.tries >= stageTries {
		return false, m.unstaged(fmt.Errorf("%d objects do not stay in a rollout", len(overlays[0].Values)))
	}
	appended, err := m.roll(ctx, overlays)
	if errors.Is(err, events.ErrTooLarge) || errors.Is(err, events.ErrInvalid) {
		return false, m.unstaged(err)
	}
	if appended { // else this builder must first fold overlays that are on the log
		m.staging.tries++
		m.staging.unstaged = ""
	}
	return true, err
}

// unstaged notes that a change goes to all proxies at once. It returns nil: that must not
// keep endpoints from being published.
func (m *Machine) unstaged(why error) error {
	m.staging.unstaged = fmt.Sprintf("a change of configuration cannot be given to proxies in steps, and is published to all at once: %v", why)
	m.cfg.Logger.Error("a change cannot be staged; it is published to all proxies at once", "position", m.ledger.Position(), "reason", why)
	return nil
}

// roll appends overlays of rollouts, all of them or none; not if the log has overlays of
// builders that are not folded yet, which may say something else.
func (m *Machine) roll(ctx context.Context, overlays []*events.Overlay) (appended bool, err error) {
	if read, err := m.epochs.readAllOverlays(ctx); !read || err != nil {
		return false, err
	}
	if appended, err = m.epochs.appendOverlays(ctx, m.cfg.overlays(overlays)); err != nil {
		return false, fmt.Errorf("append rollout %s: %w", overlays[0].ID, err)
	}
	if !appended {
		return false, nil
	}
	for _, o := range overlays {
		switch {
		case o.Remove:
			m.cfg.Logger.Info("a rollout has ended", "rollout", o.ID, "reason", o.Reason)
		case o.Rollout.State == ident.RolloutRunning:
			m.stats.RolloutSteps++
			m.cfg.Logger.Info("a rollout has reached more proxies", "rollout", o.ID, "step", o.Rollout.Step, "reached", o.Rollout.Reached)
		}
	}
	return true, nil
}

// readAllOverlays reports whether the fold has every overlay that builders have appended.
func (e *epochs) readAllOverlays(ctx context.Context) (bool, error) {
	last, err := e.cfg.Log.Last(ctx, events.BuilderOverlaySubject)
	if errors.Is(err, events.ErrNotFound) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("last overlay on the log: %w", err)
	}
	return last.Seq <= e.ledger.Position().Seq, nil
}

// rollOut begins the next step of the running rollout, or ends it, if nothing is missing for it. The
// record takes effect when Read folds it. A standby does nothing.
func (m *Machine) rollOut(ctx context.Context) error {
	f := m.ledger.Fold()
	if m.staging.progress = (rollout.Progress{}); !m.leader || len(m.ahead) > 0 || f.Running() == "" || !f.Mine() ||
		m.draft.unbuilt.records > 0 || m.draft.err != nil || m.epochs.due() != nil {
		return nil
	}
	now := m.cfg.Now()
	heard, complete := m.jury.Heard(now)
	m.notice(now)
	progress, overlays := rollout.Next(now, m.staging.seen, f, m.draft.world.Policy().Rollout, heard, complete)
	if m.staging.progress = progress; len(overlays) == 0 {
		return nil
	}
	_, err := m.roll(ctx, overlays)
	return err
}

// notice notes since when this builder knows the step of the running rollout.
func (m *Machine) notice(now time.Time) {
	if now.Before(m.staging.seen) {
		m.staging.seen = now // the clock was set back
	}
	for _, r := range m.ledger.Fold().Rollouts() {
		if r.Rollout.State == ident.RolloutRunning && (m.staging.seenID != r.ID || m.staging.seenAt != r.Rollout.Step) {
			m.staging.seen, m.staging.seenID, m.staging.seenAt = now, r.ID, r.Rollout.Step
		}
	}
}

// rollouts returns the rollouts of the fold, for reports.
func (m *Machine) rollouts() (all []*reportv1.Rollout) {
	steps := m.draft.world.Policy().Rollout
	for _, o := range m.ledger.Fold().Rollouts() {
		is := o.Rollout
		if is.State == ident.RolloutWaiting && len(o.Values) == 0 {
			continue // nothing waits
		}
		r := &reportv1.Rollout{
			Id: o.ID, State: is.State.String(), Step: uint32(is.Step), Steps: uint32(len(steps)), Objects: uint32(len(o.Values)),
			Reason: o.Reason, Since: timestamppb.New(is.Since), Reached: is.Reached.String(),
		}
		if p := m.staging.progress; is.State == ident.RolloutRunning && p.ID == o.ID && p.Step == is.Step {
			r.Streams, r.Applied, r.WaitsFor = p.Streams, p.Applied, p.WaitsFor
		}
		all = append(all, r)
	}
	return all
}
