package natslog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/events"
	"meshlog.dev/proto/jsapi"
)

const (
	// maxEvent is the largest message; the server takes 1 MiB by default.
	maxEvent = 512 << 10
	// duplicates is how long the server recognizes a retry without a fence.
	duplicates = 2 * time.Minute
	// maxConsumers is explicit, for the server's default of 1000 may change.
	// Builders and command lines are few.
	maxConsumers = 512
	// startingPause is between two requests to a cluster that is starting.
	startingPause = 100 * time.Millisecond
)

// StreamOptions describe the stream of a log.
type StreamOptions struct {
	Options
	// Replicas is 1, or 3 on a cluster. Default 1.
	Replicas int
	// MaxAge is how long the stream keeps records; 0 is for ever.
	MaxAge time.Duration
	// MaxBytes is how large the log may grow. A full log refuses records. 0 is
	// no limit.
	MaxBytes int64
}

// EnsureStream makes the stream of a log if it is missing, and reports whether
// it did. If the server's answer was lost, created is false; a caller that must
// be sure asks for the Bounds too. EnsureStream never changes an existing
// stream: it fails if the stream's settings break a promise of the log, or if
// it keeps records for less than MaxAge. A cluster that just started cannot
// make streams for some seconds; EnsureStream retries until ctx ends, so give
// ctx a deadline.
func EnsureStream(ctx context.Context, nc *nats.Conn, o StreamOptions) (created bool, err error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return false, fmt.Errorf("make stream %s: %w", Stream, err)
	}
	for {
		created, err = ensure(ctx, js, o)
		if err == nil || !starting(err) {
			return created, err
		}
		select {
		case <-ctx.Done():
			return false, err
		case <-time.After(startingPause):
		}
	}
}

func ensure(ctx context.Context, js jetstream.JetStream, o StreamOptions) (created bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, jsapi.Timeout)
	defer cancel()
	info, created, err := jsapi.Ensure(ctx, js, o.Config())
	if err != nil {
		return false, err
	}
	return created, o.check(info.Config)
}

// starting reports whether a cluster without a leader answered err, or did not
// answer.
func starting(err error) bool {
	code := jsapi.Code(err)
	return code == jsapi.NoSuitablePeers || code == jsapi.ClusterNotAvailable || errors.Is(err, context.DeadlineExceeded)
}

// Config returns the settings with which EnsureStream makes the stream.
func (o StreamOptions) Config() jetstream.StreamConfig {
	c := jetstream.StreamConfig{
		Name:        Stream,
		Description: "The event log: records of sources, builders and operators.",
		Subjects:    []string{events.AllSubjects(o.domain())},
		Storage:     jetstream.FileStorage,
		Replicas:    max(1, o.Replicas),

		// Dense sequences prove that no record is missing: records expire by age
		// only, and a full log refuses new ones.
		Retention:         jetstream.LimitsPolicy,
		Discard:           jetstream.DiscardNew,
		MaxAge:            o.MaxAge,
		MaxBytes:          cmp.Or(max(0, o.MaxBytes), -1),
		MaxMsgs:           -1,
		MaxMsgsPerSubject: -1,
		MaxMsgSize:        maxEvent,
		DenyDelete:        true,
		DenyPurge:         true,

		Duplicates:         duplicates,
		AllowDirect:        true,
		AllowAtomicPublish: true,
		MaxConsumers:       maxConsumers,
	}
	if o.MaxAge > 0 {
		c.Duplicates = min(duplicates, o.MaxAge)
	}
	return c
}

// check returns the settings that keep a stream from being used with these
// options.
func (o StreamOptions) check(c jetstream.StreamConfig) error {
	faults := faults(c, o.domain())
	faults.Age(c, o.MaxAge, "records")
	if err := faults.Err(); err != nil {
		return fmt.Errorf("stream %s: %w", Stream, err)
	}
	return nil
}

// faults returns the settings of a stream that break a promise of the log: each
// record keeps its position, until it is too old.
func faults(c jetstream.StreamConfig, domain string) (f jsapi.Faults) {
	subjects := events.AllSubjects(domain)
	if !slices.Contains(c.Subjects, subjects) {
		return jsapi.Faults{fmt.Errorf("subjects: are %q, without %q: is %q the right domain?", c.Subjects, subjects, domain)}
	}
	f.Must(len(c.Subjects) == 1, "subjects", fmt.Sprintf("%q", c.Subjects), fmt.Sprintf("%q", subjects), "a log has its stream to itself")
	f.History(c, "records")
	f.Republish(c)
	f.Must(c.Discard == jetstream.DiscardNew, "discard", c.Discard, jetstream.DiscardNew, "a full log refuses records; it drops none unread")
	f.Must(c.MaxMsgSize <= 0 || c.MaxMsgSize >= maxEvent, "max_msg_size", c.MaxMsgSize, maxEvent, "objects may be that large")
	f.Must(c.AllowAtomicPublish, "allow_atomic", c.AllowAtomicPublish, true, "the records of a change set are appended together")
	f.Must(!c.Sealed, "sealed", c.Sealed, false, "a sealed stream takes no records")
	return f
}
