package natslog

import (
	"context"
	"errors"
	"fmt"
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

// EnsureStream makes the stream of a log where it is missing, and says whether
// it did; when the server's answer to that was lost it says no, so whoever has
// to be sure asks for the Bounds too. A stream that is there is never changed:
// it is an error if its settings break what a log promises, or if it keeps
// records for less than MaxAge. A cluster that just started cannot make streams
// for some seconds; EnsureStream tries again until ctx ends, so give it a
// deadline.
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
		_, err = js.CreateStream(ctx, o.Config())
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
	return false, o.check(s.CachedInfo().Config)
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

// Config is how the stream is made.
func (o StreamOptions) Config() jetstream.StreamConfig {
	o.Options = o.withDefaults()
	c := jetstream.StreamConfig{
		Name:        o.Stream,
		Description: "Everything that sources, builders and operators have said.",
		Subjects:    []string{events.AllSubjects(o.Domain)},
		Storage:     jetstream.FileStorage,
		Replicas:    max(1, o.Replicas),

		// Dense sequences are the proof that nothing is missing: records go by
		// age only, and a full log refuses.
		Retention:         jetstream.LimitsPolicy,
		Discard:           jetstream.DiscardNew,
		MaxAge:            o.MaxAge,
		MaxBytes:          orUnlimited(o.MaxBytes),
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

func orUnlimited(n int64) int64 {
	if n <= 0 {
		return -1
	}
	return n
}

// check says what keeps a stream from being used with these options.
func (o StreamOptions) check(c jetstream.StreamConfig) error {
	err := checkConfig(c, o.Domain)
	if c.MaxAge > 0 && (o.MaxAge == 0 || c.MaxAge < o.MaxAge) {
		wants := "for ever"
		if o.MaxAge > 0 {
			wants = "for " + o.MaxAge.String()
		}
		err = errors.Join(err, fmt.Errorf("max_age: records are kept for %s, and are promised to be kept %s", c.MaxAge, wants))
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", o.Stream, err)
	}
	return nil
}

// checkConfig says which settings of a stream break what a log promises: all
// that is appended stays where it is, in its order, until its age.
func checkConfig(c jetstream.StreamConfig, domain string) error {
	var errs []error
	must := func(holds bool, setting string, is, wants any, why string) {
		if !holds {
			errs = append(errs, fmt.Errorf("%s: is %v, must be %v: %s", setting, is, wants, why))
		}
	}
	subjects := events.AllSubjects(domain)
	if !slices.Contains(c.Subjects, subjects) {
		return fmt.Errorf("subjects: are %q, without %q: is %q the right domain?", c.Subjects, subjects, domain)
	}
	must(len(c.Subjects) == 1, "subjects", fmt.Sprintf("%q", c.Subjects), fmt.Sprintf("%q", subjects), "a log has its stream to itself")
	must(c.Retention == jetstream.LimitsPolicy, "retention", c.Retention, jetstream.LimitsPolicy, "records go by age only")
	must(c.Discard == jetstream.DiscardNew, "discard", c.Discard, jetstream.DiscardNew, "a full log refuses; it drops nothing unread")
	must(c.MaxMsgs <= 0, "max_msgs", c.MaxMsgs, -1, "records go by age only")
	must(c.MaxMsgsPerSubject <= 0, "max_msgs_per_subject", c.MaxMsgsPerSubject, -1, "records from the middle would go")
	must(c.MaxMsgSize <= 0 || c.MaxMsgSize >= maxEvent, "max_msg_size", c.MaxMsgSize, maxEvent, "objects may be that large")
	must(c.DenyDelete, "deny_delete", c.DenyDelete, true, "a record that is deleted leaves a gap")
	must(c.DenyPurge, "deny_purge", c.DenyPurge, true, "records go by age only")
	must(!c.AllowRollup, "allow_rollup_hdrs", c.AllowRollup, false, "a rollup takes records away")
	must(!c.AllowMsgTTL, "allow_msg_ttl", c.AllowMsgTTL, false, "a record with an age of its own leaves a gap")
	must(c.AllowAtomicPublish, "allow_atomic", c.AllowAtomicPublish, true, "a change set is appended as one")
	must(c.AllowDirect, "allow_direct", c.AllowDirect, true, "watchers read their own subjects so")
	must(!c.NoAck, "no_ack", c.NoAck, false, "what is not acknowledged may be lost")
	must(c.Mirror == nil && len(c.Sources) == 0, "mirror, sources", "set", "unset", "a log is written by its clients only")
	must(c.SubjectTransform == nil, "subject_transform", "set", "unset", "a subject says what its record is about")
	must(!c.Sealed, "sealed", c.Sealed, false, "nothing could be appended")
	return errors.Join(errs...)
}
