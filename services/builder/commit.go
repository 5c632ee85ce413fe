package builder

import (
	"context"
	"errors"
	"fmt"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/builder/jury"
	"meshlog.dev/services/internal/failpoint"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/store"
)

// Commit publishes the position of the fold if the world there differs from the
// head. If a segment, a hold or a rollout has to be on the log first, it appends that
// instead; the record takes effect when Read folds it. A standby does nothing.
//
// The order is: fold (done) - publish, fenced - file - acknowledge (the
// caller). A version exists once the chain has it; the file never holds one
// that was not published.
func (m *Machine) Commit(ctx context.Context) (published bool, err error) {
	if !m.leader || len(m.ahead) > 0 {
		return false, nil
	}
	if begin := m.epochs.due(); begin != nil {
		return false, begin(ctx)
	}
	m.chain.since.due = m.cfg.Now()
	if err := m.build(); err != nil {
		// Nothing is published: frontends serve the previous version.
		return false, nil
	}
	policy := m.draft.world.Policy()
	if m.waiting = m.chain.waits(policy); len(m.waiting) > 0 || !m.chain.worthAVersion() {
		return false, nil
	}
	before, lost, err := m.chain.contentOfHead(ctx)
	if err != nil {
		return false, err
	}
	delta := store.Diff(before, m.ledger.Content())
	if !lost {
		if held, err := m.guard(ctx, policy.Guard, before, delta); held || err != nil {
			return false, err
		}
		if staged, err := m.stage(ctx, policy.Rollout, before, delta); staged || err != nil {
			return false, err
		}
	}
	// Without the content of the head, frontends cannot apply a delta to it. In a
	// new epoch, the chain may have lost the versions before its head.
	if head := m.chain.head; lost || head.Manifest != nil && head.Version().Epoch != m.ledger.Position().Epoch {
		if err := m.chain.bringWhole(ctx); err != nil {
			return false, err
		}
	}
	if published, err = m.chain.publish(ctx, delta, m.diagnostics()); !published {
		return false, err
	}
	m.Issuers() // a busy log may leave no other moment at which the world is that of the head
	// Continue as after a restart: the fold is at the position of the head.
	return true, m.compare(ctx)
}

// Urgent reports whether a Commit is due at once: a segment must begin; or,
// although no record changed anything, a version must be published, because a
// source has listed or this builder has won the lease.
func (m *Machine) Urgent() bool {
	if !m.leader || len(m.ahead) > 0 {
		return false
	}
	return m.epochs.due() != nil ||
		m.draft.unbuilt.records == 0 && m.chain.worthAVersion() && len(m.chain.waits(m.draft.world.Policy())) == 0
}

// guard appends the hold, if any, without which the next version would lose too
// much. All parts of the hold are appended, or none.
func (m *Machine) guard(ctx context.Context, policy world.Guard, before *store.Snapshot, delta store.Delta) (held bool, err error) {
	hold, err := jury.Guard(m.ledger.Fold(), policy, m.chain.head.Version(), before, delta)
	if err != nil {
		return false, err
	}
	if hold == nil {
		m.holdErr = nil
		return false, nil
	}
	batch := m.cfg.overlays(hold.Parts)
	failpoint.At(failpoint.BuilderHold)
	appended, err := m.epochs.appendOverlays(ctx, batch)
	switch {
	case errors.Is(err, events.ErrTooLarge), errors.Is(err, events.ErrInvalid):
		if m.holdErr == nil {
			m.cfg.Logger.Error("a mass loss can neither be held nor published", "hold", hold.ID, "reason", hold.Reason, "error", err)
		}
		m.holdErr = fmt.Errorf("%s, and the lost objects are too large for a hold: nothing is published until they are back, or until MeshPolicy default disables the guard: %w", hold.Reason, err)
		return true, nil
	case err != nil:
		return false, fmt.Errorf("append hold %s: %w", hold.ID, err)
	case !appended:
		return true, nil
	}
	failpoint.At(failpoint.BuilderHeld)
	m.stats.Holds++
	m.cfg.Logger.Warn("a mass loss is held until it is approved", "hold", hold.ID, "reason", hold.Reason, "advice", "see `meshlog approve`")
	return true, nil
}

// Heard takes the report of a frontend.
func (m *Machine) Heard(r *reportv1.FrontendReport) { m.jury.Hear(m.cfg.Now(), r) }

// Quarantine announces new suspects, and appends the overlays that the jury
// proposes; they take effect when Read folds them. A standby does nothing.
func (m *Machine) Quarantine(ctx context.Context) error {
	if !m.leader {
		m.jury.Rest()
		return nil
	}
	f := m.ledger.Fold()
	if m.jury.Idle(f) {
		return nil
	}
	if m.jury.Suspect(m.cfg.Now(), f) {
		if err := m.sayTick(ctx); err != nil {
			return err
		}
	}
	if len(m.ahead) > 0 || m.draft.unbuilt.records > 0 || m.draft.err != nil {
		return nil // the gate has not built the world at the position of the fold yet
	}
	proposed, err := m.jury.Propose(m.cfg.Now(), f, func(v ident.Position) (*world.World, error) { return m.chain.worldAt(ctx, v) })
	if err != nil {
		return err
	}
	// One by one: they are independent, and many may be too large for a message.
	if len(proposed) > 0 && proposed[0].Kind == ident.Rollout {
		if read, err := m.epochs.readAllOverlays(ctx); !read || err != nil {
			return err // it may be stopped already
		}
	}
	batch := m.cfg.overlays(proposed)
	for i, o := range proposed {
		appended, err := m.epochs.appendOverlays(ctx, batch[i:i+1])
		switch {
		case errors.Is(err, events.ErrTooLarge), errors.Is(err, events.ErrInvalid):
			m.cfg.Logger.Error("cannot put a quarantine on the log", "quarantine", o.ID, "error", err)
		case err != nil:
			return fmt.Errorf("append quarantine %s: %w", o.ID, err)
		case !appended:
			return nil // another builder has appended an overlay
		case o.Kind == ident.Rollout:
			m.stats.RolloutsStopped++
			m.cfg.Logger.Error("a rollout is stopped: proxies reject what it gave them, and get the version before", "rollout", o.ID,
				"reason", o.Reason, "advice", "see `meshlog rollout status`")
		case o.Remove:
			m.cfg.Logger.Info("a quarantine is lifted: its content is no longer served", "quarantine", o.ID)
		default:
			m.stats.Quarantines++
			r := o.Values[0].Resource
			m.cfg.Logger.Warn("a resource that proxies reject is put into quarantine", "quarantine", o.ID,
				"type", r.Type, "resource", r.Name, "client", r.Client, "reason", o.Reason, "advice", "see `meshlog diagnostics`")
		}
	}
	return nil
}
