package natsfeed

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/proto/jsapi"
)

// duplicates is how long the server remembers message ids. The chain uses none;
// it is explicit because the server sets a value anyway.
const duplicates = 2 * time.Minute

// StreamOptions describe the streams of a chain.
type StreamOptions struct {
	// Replicas is 1, or 3 in a cluster.
	Replicas int
	// MaxAge is how long the stream keeps versions; 0: for ever.
	MaxAge time.Duration
}

// Config returns the settings of the stream of the versions.
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

// BlobConfig returns the settings of the stream under the object store.
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

// Ensured describes the streams after EnsureStreams.
type Ensured struct {
	Created   bool      // the stream of the versions was missing
	BlobsMade time.Time // when the object store was made; if it changes, all blobs are lost
}

// EnsureStreams makes the stream and the object store if they are missing. It
// never changes existing ones: it fails if their settings break a promise of the
// chain, or if the stream keeps versions for less than MaxAge.
func EnsureStreams(ctx context.Context, nc *nats.Conn, o StreamOptions) (Ensured, error) {
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(jsapi.Timeout))
	if err != nil {
		return Ensured{}, fmt.Errorf("make the version stream: %w", err)
	}
	blobs, _, err := jsapi.Ensure(ctx, js, o.BlobConfig())
	if err != nil {
		return Ensured{}, err
	}
	if err := blobFaults(blobs.Config).Err(); err != nil {
		return Ensured{}, fmt.Errorf("stream %s: %w", blobStream, err)
	}
	versions, created, err := jsapi.Ensure(ctx, js, o.Config())
	if err != nil {
		return Ensured{}, err
	}
	if err := o.faults(versions.Config).Err(); err != nil {
		return Ensured{}, fmt.Errorf("stream %s: %w", Stream, err)
	}
	return Ensured{Created: created, BlobsMade: blobs.Created}, nil
}

// faults returns the settings of the stream of the versions that keep it from
// being used with these options.
func (o StreamOptions) faults(c jetstream.StreamConfig) (f jsapi.Faults) {
	wants := o.Config()
	f.Must(slices.Equal(c.Subjects, wants.Subjects), "subjects", c.Subjects, wants.Subjects, "builders publish versions there")
	f.History(c, "versions")
	f.Must(c.MaxBytes <= 0 || c.Discard == jetstream.DiscardNew, "discard", c.Discard, jetstream.DiscardNew, "with max_bytes, versions would expire before their age")
	f.Must(c.MaxMsgSize <= 0 || c.MaxMsgSize >= 2*maxInline, "max_msg_size", c.MaxMsgSize, -1, "versions may be that large")
	r := c.RePublish
	f.Must(r != nil && *r == *wants.RePublish, "republish", republish(r), republish(wants.RePublish), "frontends receive versions so")
	f.Age(c, o.MaxAge, "versions")
	return f
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

// blobFaults returns the settings of the stream under the object store that
// break a promise of PutBlob.
func blobFaults(c jetstream.StreamConfig) (f jsapi.Faults) {
	const lost = "the server would drop blobs that versions name"
	wants := StreamOptions{}.BlobConfig()
	f.Must(slices.Equal(c.Subjects, wants.Subjects), "subjects", c.Subjects, wants.Subjects, "the object store uses these")
	f.Must(c.Retention == jetstream.LimitsPolicy, "retention", c.Retention, jetstream.LimitsPolicy, lost)
	f.Must(c.Discard == jetstream.DiscardNew, "discard", c.Discard, jetstream.DiscardNew, lost)
	f.Must(c.MaxAge == 0, "max_age", c.MaxAge, 0, lost)
	f.Must(c.MaxMsgs <= 0, "max_msgs", c.MaxMsgs, -1, lost)
	f.Must(c.MaxMsgsPerSubject <= 0, "max_msgs_per_subject", c.MaxMsgsPerSubject, -1, "blobs would lose their first chunks")
	f.Must(c.AllowRollup, "allow_rollup_hdrs", c.AllowRollup, true, "the object store needs it")
	f.Must(c.AllowDirect, "allow_direct", c.AllowDirect, true, "frontends read blobs by Direct Get")
	f.Republish(c)
	return f
}
