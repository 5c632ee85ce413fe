package natslog

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/events"
)

const (
	// maxEvent is the largest message; the server takes 1 MiB by default.
	maxEvent = 512 << 10
	// duplicates is how long a retry without fence is known as such.
	duplicates = 2 * time.Minute
	// maxConsumers is said because the server's default is no more than 1000
	// and may change; builders and people who look are few.
	maxConsumers = 512
	// startingPause is between two looks at a cluster that is starting.
	startingPause = 100 * time.Millisecond
)

// StreamOptions say how a stream is made.
type StreamOptions struct {
	Options
	// Replicas is 1, or 3 on a cluster. Default 1.
	Replicas int
	// MaxAge is how long records are kept; 0 is for ever.
	MaxAge time.Duration
	// MaxBytes is how large the log may grow; then it takes nothing more, for
	// nothing is dropped unread. 0 is no limit.
	MaxBytes int64
}

// EnsureStream makes the stream of a log, or gives an existing one the
// settings that a log needs. It says whether it made one; when the server's
// answer to that was lost it says no, so whoever has to be sure asks for the
// Bounds too. A cluster that just started cannot make streams for some
// seconds; EnsureStream tries again until ctx ends, so give it a deadline.
func EnsureStream(ctx context.Context, nc *nats.Conn, o StreamOptions) (created bool, err error) {
	o.Options = o.withDefaults()
	js, err := jetstream.New(nc)
	if err != nil {
		return false, fmt.Errorf("make stream %s: %w", o.Stream, err)
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
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	s, err := js.Stream(ctx, o.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		_, err = js.CreateStream(ctx, o.config(jetstream.StreamConfig{}))
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return false, fmt.Errorf("make stream %s: %w", o.Stream, err)
		}
		s, err = js.Stream(ctx, o.Stream) // somebody else was faster
	}
	if err != nil {
		return false, fmt.Errorf("look up stream %s: %w", o.Stream, err)
	}
	has := s.CachedInfo().Config
	wanted := o.config(has)
	if reflect.DeepEqual(has, wanted) {
		return false, nil
	}
	if _, err := js.UpdateStream(ctx, wanted); err != nil {
		return false, fmt.Errorf("change the settings of stream %s: %w", o.Stream, err)
	}
	return false, nil
}

// starting says whether err is what a cluster answers, or does not answer,
// until it has a leader that knows the others.
func starting(err error) bool {
	switch errorCode(err) {
	case codeNoSuitablePeers, codeClusterNotAvailable:
		return true
	}
	return errors.Is(err, context.DeadlineExceeded)
}

// config changes c to what a log needs, and keeps what is none of its business
// (placement, description, metadata).
func (o StreamOptions) config(c jetstream.StreamConfig) jetstream.StreamConfig {
	c.Name = o.Stream
	c.Subjects = []string{events.AllSubjects(o.Domain)}
	c.Storage = jetstream.FileStorage
	c.Replicas = max(1, o.Replicas)

	// Dense sequences are the proof that nothing is missing: records go by
	// age only, and a full log refuses.
	c.Retention = jetstream.LimitsPolicy
	c.Discard = jetstream.DiscardNew
	c.DiscardNewPerSubject = false
	c.MaxAge = o.MaxAge
	c.MaxBytes = orUnlimited(o.MaxBytes)
	c.MaxMsgs = -1
	c.MaxMsgsPerSubject = -1
	c.MaxMsgSize = maxEvent
	c.DenyDelete = true
	c.DenyPurge = true

	c.Duplicates = duplicates
	if o.MaxAge > 0 {
		c.Duplicates = min(duplicates, o.MaxAge)
	}
	c.AllowDirect = true
	c.AllowAtomicPublish = true
	c.MaxConsumers = maxConsumers
	return c
}

func orUnlimited(n int64) int64 {
	if n <= 0 {
		return -1
	}
	return n
}

// checkConfig says which setting of a stream breaks what a log promises.
func checkConfig(c jetstream.StreamConfig, domain string) error {
	subjects := events.AllSubjects(domain)
	switch {
	case !slices.Contains(c.Subjects, subjects):
		return fmt.Errorf("the stream's subjects are %q, without %q: is %q the right domain?", c.Subjects, subjects, domain)
	case len(c.Subjects) > 1:
		return fmt.Errorf("the stream's subjects are %q: a log has %q to itself", c.Subjects, subjects)
	case !c.AllowAtomicPublish:
		return errors.New("the stream takes no atomic batches: set allow_atomic")
	case c.Retention != jetstream.LimitsPolicy:
		return fmt.Errorf("the stream's retention is %s: set limits", c.Retention)
	case c.MaxMsgsPerSubject > 0:
		return errors.New("the stream drops records from the middle: unset max_msgs_per_subject")
	}
	return nil
}
