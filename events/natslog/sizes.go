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
	if headers, whole := headerSize(m); whole {
		// The server's header is the last one of its name.
		size := lastOf(m.Header, msgSize)
		if data, err := strconv.ParseUint(size, 10, 64); err == nil {
			// Only this answer has the size. Without it, an empty block is none.
			if headers -= len(msgSize) + len(size) + 4; headers > jsapi.EmptyHeaders {
				headers += headerBytes
			} else {
				headers = 0
			}
			return data + uint64(headers+len(m.Subject)) + messageBytes, nil
		}
	}
	// Headers that no library wrote: ask for the whole message.
	whole, err := l.get(ctx, jsapi.GetRequest{Seq: seq})
	if errors.Is(err, events.ErrNotFound) { // expired meanwhile
		return 0, nil
	}
	return uint64(whole.Size+len(m.Subject)) + messageBytes, err
}

// mostLines is how many headers of a message headerSize believes. A message of a Log
// has eight at most, and the server's one.
const mostLines = 9

// headerSize returns the size of the headers of a message without data. whole is
// false if the library may not have read them to the end.
//
// The library stops at the first empty line, so a client can hide the server's
// header behind one, and bring its own in its place (BUS-6). Then the block is
// longer than what was read from it, as libraries write it, by the size of the
// server's header, which is 20 bytes at least. A client can make up for that by
// leaving out the space or the carriage return of a line: two bytes a line, and two
// in all for the first and the last one. mostLines does not suffice for it.
func headerSize(m *nats.Msg) (size int, whole bool) {
	size, lines := jsapi.HeaderSize(m.Header)
	_, status := m.Header["Status"] // stands in the first line
	return size, !status && lines <= mostLines && size == jsapi.BlockSize(m)
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
