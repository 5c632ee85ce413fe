package mirror

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/services/internal/logcopy"
)

// fakeLog is a log in memory, which ends a follower when it has given all records.
type fakeLog struct {
	first   uint64
	records []events.Raw
}

var errEnd = errors.New("no more records")

func (l *fakeLog) Generation() uint64 { return 1 }

func (l *fakeLog) Bounds(context.Context) (events.Bounds, error) {
	return events.Bounds{First: l.first, Last: l.first + uint64(len(l.records)) - 1}, nil
}

func (l *fakeLog) Get(_ context.Context, seq uint64) (events.Record, error) {
	return l.records[seq-l.first].Record(), nil
}

func (l *fakeLog) Last(context.Context, events.Subject) (events.Record, error) {
	return events.Record{}, errors.ErrUnsupported
}

func (l *fakeLog) Under(context.Context, events.Subject) iter.Seq2[events.Record, error] { return nil }

func (l *fakeLog) Follow(_ context.Context, after uint64, _ string) (events.Follower, error) {
	return &fakeFollower{left: l.records[after+1-l.first:]}, nil
}

type fakeFollower struct{ left []events.Raw }

func (f *fakeFollower) NextRaw(context.Context) ([]events.Raw, error) {
	if len(f.left) == 0 {
		return nil, errEnd
	}
	next := f.left[:min(2, len(f.left))]
	f.left = f.left[len(next):]
	return next, nil
}

func (f *fakeFollower) Next(context.Context) ([]events.Record, error) {
	return nil, errors.ErrUnsupported
}
func (f *fakeFollower) Ack(context.Context, uint64) error { return nil }
func (f *fakeFollower) Close() error                      { return nil }

// records returns records from first to last, whose data name what life of the log they are of.
func records(first, last uint64, life byte) *fakeLog {
	l := &fakeLog{first: first}
	for seq := first; seq <= last; seq++ {
		l.records = append(l.records, events.Raw{Seq: seq, Time: time.Unix(int64(seq), 0), Subject: "s", Data: []byte{life}})
	}
	return l
}

// The copy follows the log, and is made again where the log is not its continuation.
func TestFollowLog(t *testing.T) {
	log, damage, err := logcopy.Open(filepath.Join(t.TempDir(), "log.db"), logcopy.Limits{})
	if err != nil || damage != nil {
		t.Fatal(err, damage)
	}
	defer log.Close()
	m := New(log, nil, slog.New(slog.DiscardHandler))
	for _, c := range []struct {
		name string
		log  *fakeLog
		want events.Bounds
		life byte // of the first record of the copy
	}{
		{"begins where the log does", records(3, 7, 'a'), events.Bounds{First: 3, Last: 7}, 'a'},
		{"goes on", records(5, 9, 'a'), events.Bounds{First: 3, Last: 9}, 'a'},
		{"nothing is new, and old records have expired", records(9, 9, 'a'), events.Bounds{First: 3, Last: 9}, 'a'},
		{"all that it has has expired, and nothing is missing", records(10, 12, 'a'), events.Bounds{First: 3, Last: 12}, 'a'},
		{"records are missing", records(20, 22, 'a'), events.Bounds{First: 20, Last: 22}, 'a'},
		{"rewound", records(1, 5, 'b'), events.Bounds{First: 1, Last: 5}, 'b'},
		{"rewound and longer since", records(1, 8, 'c'), events.Bounds{First: 1, Last: 8}, 'c'},
		{"empty again", records(1, 0, 'd'), events.Bounds{First: 1, Last: 0}, 0},
	} {
		m.logWhole.Store(false)
		if err := m.followLog(t.Context(), c.log); !errors.Is(err, errEnd) {
			t.Fatalf("%s: %v", c.name, err)
		}
		if got := m.Bounds(); got != c.want || !m.logWhole.Load() {
			t.Errorf("%s: bounds %+v, want %+v; whole %v", c.name, got, c.want, m.logWhole.Load())
		}
		for r, err := range log.Raw(t.Context(), c.want.First, c.want.Last) {
			if err != nil || r.Data[0] != c.life {
				t.Errorf("%s: record %d is of %q, %v", c.name, r.Seq, r.Data, err)
			}
		}
	}
}
