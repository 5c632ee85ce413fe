// Package mirror keeps a copy of a mesh's log and versions in files of the console: what a page
// shows of the past is read here, with a bus or without one.
//
// It follows the bus while there is one. The bus decides: a copy of a log that was lost, rewound
// or has gone on without a copy of some records is made again from what the bus has.
package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/events"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/logcopy"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// Log is a log to copy.
type Log interface {
	events.Reader
}

// Chain is a version chain to copy, with its blobs.
type Chain interface {
	store.Chain
	store.Copier
	store.Blobs
}

// Mirror is a copy. Run writes it; all else is safe for concurrent use beside it.
type Mirror struct {
	log      *logcopy.Copy
	versions store.Store
	logger   *slog.Logger
	// OnVersion is called by Run with each version that is new on the chain; nil: nobody asks.
	OnVersion func(*store.Manifest)

	logWhole, chainWhole, blobsWhole atomic.Bool
	blobs                            chan struct{} // wakes who copies blobs
}

// New returns a mirror that keeps its copy in a log and a store, which belong to it from then on.
func New(log *logcopy.Copy, versions store.Store, logger *slog.Logger) *Mirror {
	return &Mirror{log: log, versions: versions, logger: logger, blobs: make(chan struct{}, 1)}
}

// Close closes the files.
func (m *Mirror) Close() error { return errors.Join(m.log.Close(), m.versions.Close()) }

// Size returns the bytes of the copy of the log.
func (m *Mirror) Size() int64 { return m.log.Size() }

// Bounds returns the records that the copy has.
func (m *Mirror) Bounds() events.Bounds {
	b, _ := m.log.Bounds(context.Background()) // fails with its context only
	return b
}

// Latest returns the newest version of the copy; store.ErrEmpty if there is none.
func (m *Mirror) Latest(ctx context.Context) (store.Stored, error) { return m.versions.Latest(ctx) }

// Whole reports whether the copy has had, since the process began, all that the bus had: pages
// read it from then on, and not the bus.
func (m *Mirror) Whole() bool {
	return m.logWhole.Load() && m.chainWhole.Load() && m.blobsWhole.Load()
}

// Past returns the past in the copy, which knows the proxies of SetNodes.
func (m *Mirror) Past() *past.Past {
	return &past.Past{Name: "the console's copy", Log: m.log, Versions: past.FromStore(m.versions), Blobs: m.log, Nodes: m.Nodes}
}

// retry is the pause after an error.
const retry = time.Second

// Run copies from the bus until ctx is done.
func (m *Mirror) Run(ctx context.Context, log Log, chain Chain) error {
	return process.RunStages(ctx, process.Stage{
		func(ctx context.Context) error {
			return m.again(ctx, "the log", func(ctx context.Context) error { return m.followLog(ctx, log) })
		},
		func(ctx context.Context) error {
			return m.again(ctx, "the versions", func(ctx context.Context) error { return m.followChain(ctx, chain) })
		},
		func(ctx context.Context) error {
			return m.again(ctx, "checkpoints", func(ctx context.Context) error { return m.followBlobs(ctx, chain) })
		},
	})
}

// again calls f until ctx is done. The bus may be away for long, so an error is logged once.
func (m *Mirror) again(ctx context.Context, what string, f func(context.Context) error) error {
	logged := ""
	for {
		err := f(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if text := fmt.Sprint(err); text != logged && !errors.Is(err, events.ErrReconnected) {
			m.logger.Warn("the copy of "+what+" is not followed; trying again", "error", err)
			logged = text
		}
		pause := time.NewTimer(retry)
		select {
		case <-ctx.Done():
			pause.Stop()
			return ctx.Err()
		case <-pause.C:
		}
	}
}

// errNoRaw is a mistake of the caller: the log of a bus has raw records.
var errNoRaw = errors.New("the log does not yield raw records")

// followLog copies records until an error.
func (m *Mirror) followLog(ctx context.Context, log Log) error {
	bounds, err := log.Bounds(ctx)
	if err != nil {
		return err
	}
	if err := m.align(ctx, log, bounds); err != nil {
		return err
	}
	have := m.Bounds()
	f, err := log.Follow(ctx, have.Last, "")
	if err != nil {
		return err
	}
	defer f.Close()
	raw, ok := f.(events.RawFollower)
	if !ok {
		return errNoRaw
	}
	for {
		if have = m.Bounds(); have.Last >= bounds.Last && !m.logWhole.Swap(true) {
			m.wakeBlobs()
		}
		records, err := raw.NextRaw(ctx)
		if err != nil {
			return err
		}
		if err := m.log.Append(ctx, records); err != nil {
			return err
		}
		for _, r := range records {
			if r.Subject == events.SegmentSubject {
				m.wakeBlobs()
			}
		}
	}
}

// align empties the copy if the log does not continue it.
func (m *Mirror) align(ctx context.Context, log Log, bounds events.Bounds) error {
	have := m.Bounds()
	why := ""
	switch {
	case have.Last < have.First && have.First == bounds.First:
		return nil
	case have.Last < have.First:
		why = "it is empty"
	case have.Last > bounds.Last:
		why = "the log was rewound"
	case have.Last+1 < bounds.First:
		why = "records that it lacks have expired"
	case have.Last >= bounds.First:
		theirs, err := log.Get(ctx, have.Last)
		if err != nil {
			return err
		}
		if ours, err := m.log.Get(ctx, have.Last); err == nil && ours.Hash == theirs.Hash {
			return nil
		}
		why = "the log has another record at its end"
	default:
		return nil
	}
	m.logger.Info("the console copies the log", "from", bounds.First, "to", bounds.Last, "because", why)
	return m.log.Reset(bounds.First)
}

// SetNodes keeps the nodes of proxies, for questions about a proxy while no frontend answers.
func (m *Mirror) SetNodes(nodes []*reportv1.ProxyReply) error {
	var file []byte
	for _, r := range nodes {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
		if err != nil {
			return fmt.Errorf("node of %s: %w", r.GetReport().GetId(), err)
		}
		file = protowire.AppendBytes(file, b)
	}
	return m.log.SetNodes(file)
}

// Nodes returns the nodes of SetNodes.
func (m *Mirror) Nodes(context.Context) (all []*reportv1.ProxyReply, err error) {
	b, err := m.log.Nodes()
	for err == nil && len(b) > 0 {
		one, n := protowire.ConsumeBytes(b)
		if err := protowire.ParseError(n); err != nil {
			return nil, fmt.Errorf("nodes of proxies: %w", err)
		}
		r := new(reportv1.ProxyReply)
		if err = proto.Unmarshal(one, r); err == nil {
			all, b = append(all, r), b[n:]
		}
	}
	return all, err
}
