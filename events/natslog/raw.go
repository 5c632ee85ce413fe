package natslog

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"meshlog.dev/events"
)

// Raw implements events.RawReader.
func (l *Log) Raw(ctx context.Context, first, last uint64) iter.Seq2[events.Raw, error] {
	return func(yield func(events.Raw, error) bool) {
		if first > last {
			return
		}
		err := l.read(ctx, first, last, func(r events.Raw) bool { return yield(r, nil) })
		if err != nil {
			yield(events.Raw{}, fmt.Errorf("read %s from %d to %d: %w", Stream, first, last, err))
		}
	}
}

func (l *Log) read(ctx context.Context, first, last uint64, yield func(events.Raw) bool) (err error) {
	f := newFollower(l, first-1)
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.start(ctx, last); err != nil {
		return err
	}
	for f.cursor < last {
		messages, err := f.next(ctx)
		if err != nil {
			return err
		}
		for _, m := range messages {
			if m.Seq > last || !yield(m) {
				return nil
			}
		}
	}
	return nil
}
