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
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/proto/ident"
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
func (f *Feed) Hint(v ident.Position, seq uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for fo := range f.followers {
		fo.Hint(v, seq)
	}
}
