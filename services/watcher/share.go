package watcher

import (
	"context"
	"fmt"
	"sync"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
)

// Usage says how full the log is.
type Usage interface {
	// Log returns how many bytes the log holds, and may hold at most; 0: no limit.
	Log(ctx context.Context) (bytes, most uint64, err error)
	// Shard returns how many bytes the records of the shard take, as a builder has
	// counted them.
	Shard(ctx context.Context, s ident.Shard) (uint64, error)
}

const (
	// usageAge is how long a known usage counts, and usageRetry the same for a
	// publisher that has no room left.
	usageAge   = 10 * time.Second
	usageRetry = time.Second
	// recordBytes is what a record takes beside its event, at least: its subject,
	// headers, and what the server adds.
	recordBytes = 256
)

// ShareError says that a shard may put no more objects on the log (BUS-6).
type ShareError struct {
	Shard        ident.Shard
	Bytes        uint64 // of the shard's records
	Share, Limit uint64 // of the shard, and of the log
}

// Error implements error.
func (e *ShareError) Error() string {
	return fmt.Sprintf("%s takes %d MiB of the log, which may hold %d, and its share is %d MiB", e.Shard, e.Bytes>>20, e.Limit>>20, e.Share>>20)
}

// Limited is a Log that refuses objects of its shard while their records would
// take more than a share of what the log may hold: a source that changes without
// end must not fill the log for all others. Records of sessions are small and
// always accepted. It is safe for concurrent use.
type Limited struct {
	Log
	Shard   ident.Shard
	Percent int // the share of the log
	Usage   Usage
	Now     func() time.Time // nil: time.Now

	mu      sync.Mutex
	asked   time.Time // when what follows was found out
	room    uint64    // bytes that may be appended
	refusal ShareError
	most    uint64 // of the log; 0: no limit
	own     uint64 // appended here since the start: the least that the shard takes
}

// Append implements events.Appender.
func (l *Limited) Append(ctx context.Context, batch []events.Event, fence events.Fence) (events.Ack, error) {
	size, err := l.reserve(ctx, batch)
	if err != nil {
		return events.Ack{}, err
	}
	ack, err := l.Log.Append(ctx, batch, fence)
	l.settle(size, err == nil && !ack.Duplicate)
	return ack, err
}

// AppendEach implements events.Appender.
func (l *Limited) AppendEach(ctx context.Context, all []events.Event) error {
	size, err := l.reserve(ctx, all)
	if err != nil {
		return err
	}
	err = l.Log.AppendEach(ctx, all)
	l.settle(size, err == nil)
	return err
}

// reserve returns about how much of the log objects take, or a *ShareError if
// there is no room for them.
func (l *Limited) reserve(ctx context.Context, all []events.Event) (size uint64, err error) {
	for _, e := range all {
		o, ok := e.Body.(*events.Object)
		if !ok {
			return 0, nil // of a session
		}
		size += uint64(len(o.Value.Bytes)+2*len(e.ID)+len(o.Origin)+len(o.Key.Namespace)+len(o.Key.Name)) + recordBytes
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now
	if l.Now != nil {
		now = l.Now
	}
	age := now().Sub(l.asked).Abs()
	if age >= usageAge || size > l.room && l.most > 0 && age >= usageRetry || l.asked.IsZero() {
		if err := l.ask(ctx); err != nil {
			return size, nil // the append will fail, or succeed, by itself
		}
		l.asked = now()
	}
	if l.most > 0 && size > l.room {
		refusal := l.refusal
		return 0, &refusal
	}
	return size, nil
}

// settle counts objects that were appended.
func (l *Limited) settle(size uint64, appended bool) {
	if size == 0 || !appended {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.own += size
	l.room -= min(l.room, size)
	l.refusal.Bytes += size
}

// ask finds out how much room there is. mu is held.
func (l *Limited) ask(ctx context.Context) error {
	bytes, most, err := l.Usage.Log(ctx)
	if err != nil {
		return err
	}
	share := most / 100 * uint64(l.Percent)
	used := bytes // of all shards: no builder is asked while that is little
	if most > 0 && bytes > share/2 {
		if used, err = l.Usage.Shard(ctx, l.Shard); err != nil {
			used = l.own
		}
	}
	l.most, l.room = most, share-min(share, used)
	l.refusal = ShareError{Shard: l.Shard, Bytes: used, Share: share, Limit: most}
	return nil
}
