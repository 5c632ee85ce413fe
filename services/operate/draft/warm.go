package draft

import (
	"context"
	"sync"

	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/operate/past"
)

// Warm judges drafts on the end of a log that goes on. It keeps the fold and the ground, so that a
// question costs the records since the last one, and what differs. It is safe for concurrent use,
// and answers one question after another; the zero Warm is ready.
type Warm struct {
	mu     sync.Mutex
	of     string // the name of the past
	replay *past.Replay
	ground *Ground
}

// Ask judges a draft after the last record of a log, as Ground.Ask does.
func (w *Warm) Ask(ctx context.Context, p *past.Past, q *Question) (*View, []problem.Diagnostic, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.follow(ctx, p); err != nil {
		w.replay, w.ground = nil, nil
		return nil, nil, err
	}
	v, problems, err := w.ground.Ask(q)
	return v, problems, err
}

// follow moves the ground to the end of the log.
func (w *Warm) follow(ctx context.Context, p *past.Past) error {
	if p.Log == nil {
		return past.ErrNoLog
	}
	bounds, err := p.Log.Bounds(ctx)
	if err != nil {
		return err
	}
	if w.ground == nil || w.of != p.Name || !w.continues(ctx, p, bounds.Last) {
		if w.replay, err = past.Begin(ctx, p, bounds.Last); err != nil {
			return err
		}
		w.of, w.ground = p.Name, nil
	}
	if w.ground != nil && w.replay.Position().Seq == bounds.Last {
		return nil
	}
	changes := false
	err = w.replay.To(ctx, bounds.Last, nil, func(s past.Step) error {
		changes = changes || s.Reset || len(s.Changes) > 0
		return nil
	})
	if err != nil {
		return err
	}
	switch {
	case w.ground == nil:
		w.ground, err = NewGround(w.replay.Fold())
	case changes:
		err = w.ground.Move(w.replay.Fold())
	default:
		w.ground.take(w.replay.Fold())
	}
	return err
}

// continues reports whether the log still has the record at which the fold stands.
func (w *Warm) continues(ctx context.Context, p *past.Past, last uint64) bool {
	at := w.replay.Position().Seq
	if at > last {
		return false
	}
	r, err := p.Log.Get(ctx, at)
	return err == nil && r.Hash == w.replay.Fold().RecordHash()
}
