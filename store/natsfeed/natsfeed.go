// Package natsfeed is the version chain on NATS JetStream.
//
// Each version is one message of the stream MESHLOG_VERSIONS, on the subject of
// its domain: manifest and delta together, or, if they are larger than half a
// message may be, the name of a blob with the delta, which is durable before.
// It is published on condition that the stream's last sequence is the one
// known; that, and nothing else, makes the chain linear. Blobs are the objects
// of the store meshlog_blobs, named by their hash.
//
// Readers have no JetStream consumer. The server republishes each message on a
// core subject; what was missed is read by Direct Get. That the end was missed
// is learned from a Hint, or from a new connection.
package natsfeed

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/store"
)

// Names on the bus.
const (
	// Stream has the versions.
	Stream = "MESHLOG_VERSIONS"
	// BlobBucket is the object store of the blobs.
	BlobBucket = "meshlog_blobs"
	// SubjectPrefix, with a domain behind it, is where versions are published.
	SubjectPrefix = "meshlog.ver."
	// LivePrefix, with a domain behind it, is where the server repeats them.
	LivePrefix = "meshlog.live.ver."
)

// requestTimeout is how long the server may take to answer, where the caller's
// context does not end earlier.
const requestTimeout = 5 * time.Second

// StreamOptions say how streams are made.
type StreamOptions struct {
	// Replicas is 1, or 3 in a cluster.
	Replicas int
	// MaxAge is how long versions are kept; 0: for ever.
	MaxAge time.Duration
}

// EnsureStreams makes the stream and the object store where they are missing,
// and says whether the stream was. One that is there is left as it is; it is an
// error if it lacks what the chain needs.
func EnsureStreams(ctx context.Context, nc *nats.Conn, o StreamOptions) (created bool, err error) {
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(requestTimeout))
	if err != nil {
		return false, fmt.Errorf("make the version stream: %w", err)
	}
	if err := ensureBlobs(ctx, js, o); err != nil {
		return false, fmt.Errorf("make object store %s: %w", BlobBucket, err)
	}
	s, err := js.Stream(ctx, Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		created = true
		s, err = js.CreateStream(ctx, streamConfig(o))
	}
	if err != nil {
		return false, fmt.Errorf("make stream %s: %w", Stream, err)
	}
	return created, checkStream(s.CachedInfo().Config)
}

func streamConfig(o StreamOptions) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:        Stream,
		Description: "Published versions: manifest and delta.",
		Subjects:    []string{SubjectPrefix + ">"},
		Storage:     jetstream.FileStorage,
		Replicas:    max(o.Replicas, 1),
		MaxAge:      o.MaxAge,
		AllowDirect: true,
		DenyDelete:  true,
		DenyPurge:   true,
		RePublish:   &jetstream.RePublish{Source: SubjectPrefix + ">", Destination: LivePrefix + ">"},
	}
}

// checkStream says what a stream that is there lacks.
func checkStream(c jetstream.StreamConfig) error {
	want := streamConfig(StreamOptions{})
	switch {
	case !c.AllowDirect:
		return fmt.Errorf("stream %s: allow_direct: is off, readers need it: update the stream", Stream)
	case c.RePublish == nil || c.RePublish.Source != want.RePublish.Source || c.RePublish.Destination != want.RePublish.Destination || c.RePublish.HeadersOnly:
		return fmt.Errorf("stream %s: republish: must be from %s to %s: update the stream", Stream, want.RePublish.Source, want.RePublish.Destination)
	}
	return nil
}

func ensureBlobs(ctx context.Context, js jetstream.JetStream, o StreamOptions) error {
	_, err := js.ObjectStore(ctx, BlobBucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		_, err = js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{
			Bucket:      BlobBucket,
			Description: "Checkpoints and large deltas, by SHA-256.",
			Storage:     jetstream.FileStorage,
			Replicas:    max(o.Replicas, 1),
		})
	}
	return err
}

// Options say which chain is opened.
type Options struct {
	// Domain names the mesh; default "mesh".
	Domain string
}

func (o Options) domain() string {
	if o.Domain == "" {
		return "mesh"
	}
	return o.Domain
}

// subject is where the versions of the domain are published.
func (o Options) subject() string { return SubjectPrefix + o.domain() }

// LiveSubject is where the server repeats the versions of the domain.
func (o Options) LiveSubject() string { return LivePrefix + o.domain() }

var domainPattern = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// Feed is one domain's chain. It implements store.Publisher and store.Chain,
// and is safe for concurrent use.
type Feed struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	stream  jetstream.Stream
	blobs   jetstream.ObjectStore
	subject string
	live    string

	mu        sync.Mutex
	followers map[*Follower]struct{}
}

// Open opens the chain of a domain; the streams must be there. The connection
// stays its owner's. It should have no buffer for reconnecting
// (nats.ReconnectBufSize(-1)), so that what is sent without a server fails.
func Open(ctx context.Context, nc *nats.Conn, o Options) (*Feed, error) {
	if !domainPattern.MatchString(o.domain()) {
		return nil, fmt.Errorf("open the version chain: domain %q: may have letters, digits, - and _ only", o.domain())
	}
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(requestTimeout))
	if err != nil {
		return nil, fmt.Errorf("open the version chain: %w", err)
	}
	f := &Feed{nc: nc, js: js, subject: o.subject(), live: o.LiveSubject(), followers: make(map[*Follower]struct{})}
	ctx, cancel := f.request(ctx, infoAPI)
	defer cancel()
	if f.stream, err = js.Stream(ctx, Stream); err != nil {
		return nil, fmt.Errorf("open stream %s: %w", Stream, cause(ctx, err))
	}
	if f.blobs, err = js.ObjectStore(ctx, BlobBucket); err != nil {
		return nil, fmt.Errorf("open object store %s: %w", BlobBucket, cause(ctx, err))
	}
	return f, nil
}

// Hint tells all followers what the head is said to be. They look for
// themselves if they know another one. It never blocks.
func (f *Feed) Hint(v store.Version, seq uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for fo := range f.followers {
		fo.Hint(v, seq)
	}
}
