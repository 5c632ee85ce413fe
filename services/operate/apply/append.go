package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/draft"
)

// maxAppend is how many bytes one append has.
const maxAppend = 8 << 20

// parts splits the events of a session into appends. If one append takes them all, the
// log has the whole session or nothing of it; else the alive is an append of its own.
// Each event says that all before its part are acknowledged.
func parts(all []events.Event) [][]events.Event {
	var parts [][]events.Event
	end := len(all) - 1 // the alive
	bytes, first, low := 0, 0, uint64(1)
	for n, e := range all[:end] {
		size := 1 << 10
		o, isObject := e.Body.(*events.Object)
		if isObject {
			size += len(o.Value.Bytes)
		}
		if n-first == events.MaxBatch || bytes+size > maxAppend {
			parts, first, bytes = append(parts, all[first:n]), n, 0
			low = uint64(n) // before it are the begin and n-1 objects
		}
		if isObject {
			o.Low = low
		}
		bytes += size
	}
	if len(parts) == 0 && len(all) <= events.MaxBatch {
		return [][]events.Event{all}
	}
	return append(parts, all[first:end], all[end:])
}

// appendAttempts is how often an append is repeated whose outcome is open.
const appendAttempts = 5

// write appends the steps as a session, and returns the record that ends it. It returns
// ErrConflict if another session began since s was read; nothing counts then.
func (s *shard) write(ctx context.Context, log events.Appender, steps []draft.Step) (uint64, error) {
	id := draft.NewSession()
	fence := events.Fence{Kind: events.FenceSubject, Subject: events.ControlSubject(s.Name), Seq: s.control.Seq, Generation: s.generation}
	all := parts(draft.Session(s.Name, id, command.Operator(), steps))
	for n, part := range all {
		f := events.Fence{}
		if n == 0 || n == len(all)-1 {
			f = fence // the first part has the begin, the last one the alive
		}
		ack, err := retried(ctx, log, part, f)
		switch {
		case errors.Is(err, events.ErrConflict), errors.Is(err, events.ErrReconnected):
			return 0, fmt.Errorf("%w: %w", events.ErrConflict, err)
		case err != nil && n < len(all)-1:
			return 0, fmt.Errorf("nothing was changed: %w", err)
		case err != nil:
			return 0, fmt.Errorf("it is not known whether the objects were changed; `meshlog get` shows it: %w", err)
		case n == len(all)-1:
			return ack.Seq, nil
		case n == 0:
			fence.Seq = ack.Seq - uint64(len(part)-1)
		}
	}
	panic("a session has a part")
}

// retried appends, and repeats an append whose outcome is open: with the same ids that is
// harmless.
func retried(ctx context.Context, log events.Appender, part []events.Event, fence events.Fence) (ack events.Ack, err error) {
	final := []error{events.ErrConflict, events.ErrReconnected, events.ErrInvalid, events.ErrTooLarge, events.ErrFull, events.ErrClosed}
	for n := range appendAttempts {
		ack, err = log.Append(ctx, part, fence)
		if err == nil && ack.Seq == 0 {
			err = errors.New("the server knows the records and does not say where they are")
		}
		if err == nil || ctx.Err() != nil || slices.ContainsFunc(final, func(f error) bool { return errors.Is(err, f) }) {
			return ack, err
		}
		select {
		case <-time.After(time.Duration(n+1) * 100 * time.Millisecond):
		case <-ctx.Done():
			return ack, err
		}
	}
	return ack, err
}
