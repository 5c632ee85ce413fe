package watcher_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/events/memlog"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/watcher"
)

// fullness is how full the log is, as the bus and the builders say.
type fullness struct {
	bytes, most, shard uint64
	err                error
	asked              int
}

func (f *fullness) Log(context.Context) (bytes, most uint64, err error) { return f.bytes, f.most, nil }

func (f *fullness) Shard(context.Context, ident.Shard) (uint64, error) {
	f.asked++
	return f.shard, f.err
}

// BUS-6: a publisher puts no object on the log that would take its shard above its
// share, says so, and goes on once there is room.
func TestShareOfTheLog(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	log := memlog.New(func() time.Time { return now })
	full := &fullness{most: 100 << 20}
	limited := &watcher.Limited{
		Log: log, Shard: ident.Shard{Source: "file", Instance: "default"}, Percent: 60, Usage: full, Now: func() time.Time { return now },
	}
	n := 0
	put := func(bytes int) error {
		n++
		o := &events.Object{
			Key: ident.Key{Source: "file", Instance: "default", Kind: "Thing", Name: "a"}, Op: events.Put,
			Value: ident.Value{Type: "t", Bytes: make([]byte, bytes)}, Session: "s", Pseq: uint64(n), Low: 1,
		}
		_, err := limited.Append(t.Context(), []events.Event{{ID: strings.Repeat("i", n), Body: o}}, events.Fence{})
		return err
	}
	wantRefused := func(when string, err error) {
		t.Helper()
		var refused *watcher.ShareError
		if !errors.As(err, &refused) || refused.Share != 60<<20 || refused.Limit != 100<<20 || !strings.HasPrefix(err.Error(), "file/default takes ") {
			t.Errorf("%s: %v, want a refusal that names the shard, its bytes and its share", when, err)
		}
	}
	if err := put(100); err != nil || full.asked != 0 {
		t.Errorf("the log is empty: %v, builders were asked %d times", err, full.asked)
	}
	now = now.Add(time.Minute)
	full.bytes, full.shard = 90<<20, 59<<20 // others take the rest
	if err := put(1 << 10); err != nil {
		t.Errorf("below the share: %v", err)
	}
	full.shard = 60 << 20
	now = now.Add(time.Minute)
	wantRefused("at the share", put(1<<10))
	begin := &events.Begin{Shard: limited.Shard, Session: "s", Holder: "h"}
	if _, err := limited.Append(t.Context(), []events.Event{{ID: "begin", Body: begin}}, events.Fence{}); err != nil {
		t.Errorf("a record of the session is refused: %v", err)
	}
	if err := limited.AppendEach(t.Context(), []events.Event{{ID: "one", Body: &events.Object{Value: ident.Value{Bytes: make([]byte, 9)}}}}); err == nil {
		t.Error("AppendEach does not refuse")
	}
	full.most = 200 << 20 // the operator has raised it
	now = now.Add(2 * time.Second)
	if err := put(1 << 10); err != nil {
		t.Errorf("after the log was raised: %v", err)
	}
	full.most, full.err = 100<<20, errors.New("no leader answered")
	now = now.Add(time.Minute)
	if err := put(1 << 10); err != nil {
		t.Errorf("no builder says what the shard takes, and this watcher knows of little: %v", err)
	}
	full.bytes, full.most = 1<<40, 0
	now = now.Add(time.Minute)
	if err := put(1 << 10); err != nil {
		t.Errorf("a log without a limit: %v", err)
	}
}
