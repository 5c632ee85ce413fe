package natslog

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/proto/jsapi"
)

// Size is how much of the log a record takes.
type Size struct {
	Seq   uint64
	Shard ident.Shard // zero: a record of a builder or an operator
	Bytes uint64
}

// msgSize is the header in which the server says how many bytes of data it left
// out.
const msgSize = "Nats-Msg-Size"

// The server's file store adds messageBytes to a message, and headerBytes to its
// headers.
const messageBytes, headerBytes = 30, 16

// Sizes yields the size of each record behind after, also of those that cannot be
// decoded, and then of each new record. Records are not transferred. It ends with
// the first error, as a Follower does.
func (l *Log) Sizes(ctx context.Context, after uint64) iter.Seq2[Size, error] {
	return func(yield func(Size, error) bool) {
		f := newFollower(l, after)
		defer f.Close()
		var sizes []Size
		f.sized = func(seq uint64, m *nats.Msg) error {
			bytes, err := l.sizeOf(ctx, seq, m)
			subject := events.Subject(strings.TrimPrefix(m.Subject, l.prefix))
			sizes = append(sizes, Size{seq, events.ShardOf(subject), bytes})
			return err
		}
		err := f.start(ctx, after)
		for err == nil {
			sizes = sizes[:0]
			if _, err = f.next(ctx); err != nil {
				break
			}
			for _, s := range sizes {
				if !yield(s, nil) {
					return
				}
			}
		}
		yield(Size{}, fmt.Errorf("sizes of %s after %d: %w", Stream, f.cursor, err))
	}
}

// sizeOf returns the size of a message that was sent without its data.
func (l *Log) sizeOf(ctx context.Context, seq uint64, m *nats.Msg) (uint64, error) {
	// The server's header is the last one of its name.
	data, err := strconv.ParseUint(lastOf(m.Header, msgSize), 10, 64)
	if err == nil {
		headers := 0
		for name, values := range m.Header {
			for _, v := range values {
				headers += len(name) + len(v) + 4
			}
		}
		// Only this answer has the size.
		if headers -= len(msgSize) + len(lastOf(m.Header, msgSize)) + 4; headers > 0 {
			headers += headerBytes
		}
		return data + uint64(headers+len(m.Subject)) + messageBytes, nil
	}
	// Headers that no library wrote: ask for the whole message.
	whole, err := l.get(ctx, jsapi.GetRequest{Seq: seq})
	if errors.Is(err, events.ErrNotFound) { // expired meanwhile
		return 0, nil
	}
	return uint64(whole.Size+len(m.Subject)) + messageBytes, err
}

func lastOf(h nats.Header, name string) string {
	if all := h.Values(name); len(all) > 0 {
		return all[len(all)-1]
	}
	return ""
}

// Usage returns how many bytes the log holds, how many it may hold (0: no limit),
// and its bounds, by the stream's leader.
func (l *Log) Usage(ctx context.Context) (bytes, most uint64, bounds events.Bounds, err error) {
	info, err := l.info(ctx)
	if err != nil {
		return 0, 0, bounds, fmt.Errorf("size of %s: %w", Stream, err)
	}
	return info.State.Bytes, uint64(max(0, info.Config.MaxBytes)), events.Bounds{First: info.State.FirstSeq, Last: info.State.LastSeq}, nil
}
