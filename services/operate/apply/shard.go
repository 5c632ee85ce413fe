package apply

import (
	"context"
	"errors"
	"fmt"
	"meshlog.dev/services/operate/draft"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/builder/ledger"
	"meshlog.dev/services/operate/past"
)

// shard is a source as the fold has it at the end of the log.
type shard struct {
	*draft.Shard
	// control is the last record of a session of the source; its Seq is 0 if the log has
	// none. It was read in the generation of the connection.
	control    events.Record
	generation uint64
}

// readShard reads a source. Who writes to it begins a session, so that a fence on
// control tells whether what was read still holds.
func readShard(ctx context.Context, p *past.Past, name ident.Shard, progress past.Progress) (*shard, error) {
	s := &shard{Shard: &draft.Shard{Name: name}, generation: p.Log.Generation()}
	var err error
	if s.control, err = p.Log.Last(ctx, events.ControlSubject(name)); err != nil && !errors.Is(err, events.ErrNotFound) {
		return nil, err
	}
	bounds, err := p.Log.Bounds(ctx) // after control, so that the fold has it
	if err != nil {
		return nil, err
	}
	if s.Fold, err = past.Fold(ctx, p, bounds.Last, progress); err != nil {
		return nil, err
	}
	s.Fold.AssumeSigned()
	if s.Fold.Segment().Epoch == 0 {
		return nil, errors.New("the log has no epoch: no builder has begun it; start a builder")
	}
	s.Keep()
	return s, nil
}

// sinceLoss returns what to say of a source that has not been written to since an epoch
// began with a checkpoint, because the log was lost or rewound (API-4).
func (s *shard) sinceLoss(ctx context.Context, log events.Reader) (string, error) {
	for _, state := range s.Fold.Shards() {
		if state.Shard != s.Name || state.Session != "" || state.Keys == 0 {
			continue
		}
		epoch, rec, err := ledger.NewestEpoch(ctx, log)
		if err != nil || epoch == nil {
			return "", err
		}
		began := fmt.Sprintf("epoch %d began", epoch.Epoch)
		if !rec.Time.IsZero() {
			began += " on " + rec.Time.UTC().Format(time.DateTime) + " UTC"
		}
		return fmt.Sprintf("The log was lost or rewound: %s. The %d objects of %s are those of a checkpoint; what was applied after it is lost: apply it again.",
			began, state.Keys, s.Name), nil
	}
	return "", nil
}

// An open session is one that has begun and has not ended. What it has written counts
// once it ends. openSilence is how long it may be silent before another one begins.
const (
	openSilence = 10 * time.Second
	openPoll    = 100 * time.Millisecond
)

// awaitEnd waits while another apply, of more objects than fit into one append, is
// writing: a session that begins would end it. One that has been silent for that long was
// interrupted. waiting is called once if there is one.
func awaitEnd(ctx context.Context, log events.Reader, name ident.Shard, silence time.Duration, waiting func()) error {
	var newest uint64
	var since time.Time
	for {
		control, err := log.Last(ctx, events.ControlSubject(name))
		if err != nil {
			if errors.Is(err, events.ErrNotFound) {
				return nil
			}
			return err
		}
		if _, open := control.Event.Body.(*events.Begin); !open {
			return nil
		}
		last, err := log.Last(ctx, events.ShardSubjects(name))
		if err != nil {
			return err
		}
		now := time.Now()
		switch {
		case now.Sub(last.Time) > 3*silence: // by two clocks, so more than enough
			return nil
		case since.IsZero():
			waiting()
			newest, since = last.Seq, now
		case last.Seq != newest:
			newest, since = last.Seq, now
		case now.Sub(since) > silence:
			return nil
		}
		select {
		case <-time.After(openPoll):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
