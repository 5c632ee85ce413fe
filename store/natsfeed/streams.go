package natsfeed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// duplicates is how long servers know ids of messages. The chain has none; it is
// said because a server would set it anyway.
const duplicates = 2 * time.Minute

// StreamOptions say how streams are made.
type StreamOptions struct {
	// Replicas is 1, or 3 in a cluster.
	Replicas int
	// MaxAge is how long versions are kept; 0: for ever.
	MaxAge time.Duration
}

// Config is how the stream of the versions is made.
func (o StreamOptions) Config() jetstream.StreamConfig {
	c := jetstream.StreamConfig{
		Name:              Stream,
		Description:       "Published versions: manifest and delta.",
		Subjects:          []string{SubjectPrefix + ">"},
		Storage:           jetstream.FileStorage,
		Replicas:          max(o.Replicas, 1),
		MaxAge:            o.MaxAge,
		MaxMsgs:           -1,
		MaxMsgsPerSubject: -1,
		MaxBytes:          -1,
		MaxMsgSize:        -1,
		Duplicates:        duplicates,
		AllowDirect:       true,
		DenyDelete:        true,
		DenyPurge:         true,
		RePublish:         &jetstream.RePublish{Source: SubjectPrefix + ">", Destination: LivePrefix + ">"},
	}
	if o.MaxAge > 0 {
		c.Duplicates = min(duplicates, o.MaxAge)
	}
	return c
}

// BlobConfig is how the stream under the object store of the blobs is made.
func (o StreamOptions) BlobConfig() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              blobStream,
		Description:       "Checkpoints and large deltas, by SHA-256.",
		Subjects:          []string{blobChunks + ">", blobMeta + ">"},
		Storage:           jetstream.FileStorage,
		Replicas:          max(o.Replicas, 1),
		MaxMsgs:           -1,
		MaxMsgsPerSubject: -1,
		MaxBytes:          -1,
		MaxMsgSize:        -1,
		Duplicates:        duplicates,
		Discard:           jetstream.DiscardNew,
		AllowRollup:       true,
		AllowDirect:       true,
	}
}

// Ensured is what EnsureStreams found or made.
type Ensured struct {
	Created   bool      // the stream of the versions was missing
	BlobsMade time.Time // of the object store; another time than before says that it lost all it held
}

// EnsureStreams makes the stream and the object store where they are missing.
// What is there is never changed: it is an error if its settings break what the
// chain promises, or if it keeps versions for less than MaxAge.
func EnsureStreams(ctx context.Context, nc *nats.Conn, o StreamOptions) (Ensured, error) {
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(requestTimeout))
	if err != nil {
		return Ensured{}, fmt.Errorf("make the version stream: %w", err)
	}
	_, made, err := ensure(ctx, js, o.BlobConfig(), checkBlobs)
	if err != nil {
		return Ensured{}, err
	}
	created, _, err := ensure(ctx, js, o.Config(), o.check)
	return Ensured{Created: created, BlobsMade: made}, err
}

// ensure makes a stream, or checks the one that is there, and says when it was
// made.
func ensure(ctx context.Context, js jetstream.JetStream, wanted jetstream.StreamConfig, check func(jetstream.StreamConfig) error) (created bool, made time.Time, err error) {
	s, err := js.Stream(ctx, wanted.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		created = true
		s, err = js.CreateStream(ctx, wanted)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // somebody else was faster
			created = false
			s, err = js.Stream(ctx, wanted.Name)
		}
	}
	if err != nil {
		return false, time.Time{}, fmt.Errorf("make stream %s: %w", wanted.Name, err)
	}
	if err := check(s.CachedInfo().Config); err != nil {
		return false, time.Time{}, fmt.Errorf("stream %s: %w", wanted.Name, err)
	}
	return created, s.CachedInfo().Created, nil
}

// check says which settings of the stream of the versions keep it from being
// used with these options.
func (o StreamOptions) check(c jetstream.StreamConfig) error {
	var m musts
	wants := o.Config()
	m.must(slices.Equal(c.Subjects, wants.Subjects), "subjects", c.Subjects, wants.Subjects, "versions are published there")
	m.must(c.Retention == jetstream.LimitsPolicy, "retention", c.Retention, jetstream.LimitsPolicy, "versions go by age only")
	m.must(c.MaxMsgs <= 0, "max_msgs", c.MaxMsgs, -1, "versions go by age only")
	m.must(c.MaxMsgsPerSubject <= 0, "max_msgs_per_subject", c.MaxMsgsPerSubject, -1, "versions go by age only")
	m.must(c.MaxBytes <= 0 || c.Discard == jetstream.DiscardNew, "discard", c.Discard, jetstream.DiscardNew, "with max_bytes, versions would go before their age")
	m.must(c.MaxMsgSize <= 0 || c.MaxMsgSize >= 2*maxInline, "max_msg_size", c.MaxMsgSize, -1, "versions are that large")
	m.must(c.DenyDelete, "deny_delete", c.DenyDelete, true, "a version that is deleted breaks the chain")
	m.must(c.DenyPurge, "deny_purge", c.DenyPurge, true, "versions go by age only")
	m.must(!c.AllowRollup, "allow_rollup_hdrs", c.AllowRollup, false, "a rollup takes versions away")
	m.must(!c.AllowMsgTTL, "allow_msg_ttl", c.AllowMsgTTL, false, "a version with an age of its own breaks the chain")
	m.must(c.AllowDirect, "allow_direct", c.AllowDirect, true, "frontends read versions so")
	m.must(!c.NoAck, "no_ack", c.NoAck, false, "what is not acknowledged may be lost")
	m.must(c.Mirror == nil && len(c.Sources) == 0, "mirror, sources", "set", "unset", "the chain is written by builders only")
	m.must(c.SubjectTransform == nil, "subject_transform", "set", "unset", "a subject says whose version it is")
	r := c.RePublish
	m.must(r != nil && *r == *wants.RePublish, "republish", republish(r), republish(wants.RePublish), "frontends hear of versions so")
	if c.MaxAge > 0 && (o.MaxAge == 0 || c.MaxAge < o.MaxAge) {
		promised := "for ever"
		if o.MaxAge > 0 {
			promised = "for " + o.MaxAge.String()
		}
		m = append(m, fmt.Errorf("max_age: versions are kept for %s, and are promised to be kept %s", c.MaxAge, promised))
	}
	return errors.Join(m...)
}

func republish(r *jetstream.RePublish) string {
	if r == nil {
		return "unset"
	}
	what := ""
	if r.HeadersOnly {
		what = ", headers only"
	}
	return "from " + r.Source + " to " + r.Destination + what
}

// checkBlobs says which settings of the stream under the object store break
// what it promises.
func checkBlobs(c jetstream.StreamConfig) error {
	var m musts
	wants := StreamOptions{}.BlobConfig()
	m.must(slices.Equal(c.Subjects, wants.Subjects), "subjects", c.Subjects, wants.Subjects, "the object store's are these")
	m.must(c.Retention == jetstream.LimitsPolicy, "retention", c.Retention, jetstream.LimitsPolicy, "blobs are kept while they are named")
	m.must(c.Discard == jetstream.DiscardNew, "discard", c.Discard, jetstream.DiscardNew, "blobs that are named would go")
	m.must(c.MaxAge == 0, "max_age", c.MaxAge, 0, "blobs that are named would go")
	m.must(c.MaxMsgs <= 0, "max_msgs", c.MaxMsgs, -1, "blobs are kept while they are named")
	m.must(c.MaxMsgsPerSubject <= 0, "max_msgs_per_subject", c.MaxMsgsPerSubject, -1, "blobs would lose their beginnings")
	m.must(c.AllowRollup, "allow_rollup_hdrs", c.AllowRollup, true, "the object store needs it")
	m.must(c.AllowDirect, "allow_direct", c.AllowDirect, true, "frontends read blobs so")
	return errors.Join(m...)
}

// musts are the settings that are not as they must be.
type musts []error

func (m *musts) must(holds bool, setting string, is, wants any, why string) {
	if !holds {
		*m = append(*m, fmt.Errorf("%s: is %v, must be %v: %s", setting, is, wants, why))
	}
}
