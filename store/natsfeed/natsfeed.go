// Package natsfeed keeps the version chain on NATS JetStream.
//
// Each version is one message of the stream MESHLOG_VERSIONS, on the subject of
// its domain. The message holds manifest and delta; if they are larger than half
// the size limit, it holds the manifest and the hash of a blob with the delta,
// which is stored before. The publisher fences each message on the stream's
// last sequence; that, and nothing else, makes the chain linear. Blobs are the
// objects of the store meshlog_blobs, named by their hash.
//
// A message of that stream is a version if a builder published it, it can be read,
// and it follows the version before it. Readers pass over any other message: only
// its sequence counts, as the fence of the next version.
//
// Readers have no JetStream consumer. The server republishes each message on a
// core subject, and a reader gets the messages that it missed by Direct Get. A
// Hint, or a new connection, tells it that it missed the newest one.
package natsfeed

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/proto/ident"
	"meshlog.dev/proto/jsapi"
	"meshlog.dev/store"
)

// Names on the bus.
const (
	// Stream holds the versions.
	Stream = "MESHLOG_VERSIONS"
	// BlobBucket is the object store of the blobs.
	BlobBucket = "meshlog_blobs"
	// SubjectPrefix, followed by a domain, is the subject of its versions.
	SubjectPrefix = "meshlog.ver."
	// LivePrefix, followed by a domain, is the subject on which the server repeats
	// them.
	LivePrefix = "meshlog.live.ver."
)

// Options name the chain.
type Options struct {
	// Domain names the mesh; default "mesh".
	Domain string
	// Foreign, if not nil, is called with the messages behind the newest version
	// that are no versions, once for each newest one. It must not block. Readers
	// pass these messages over.
	Foreign func(*store.ForeignError)
}

func (o Options) domain() string { return cmp.Or(o.Domain, "mesh") }

// subject returns the subject of the domain's versions.
func (o Options) subject() string { return SubjectPrefix + o.domain() }

// LiveSubject returns the subject on which the server repeats the versions.
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
	foreign func(*store.ForeignError)

	mu        sync.Mutex // protects what follows
	followers map[*Follower]struct{}
	known     known
	said      uint64 // the last message that foreign was called with
}

// Open opens the chain of a domain; EnsureStreams has made its streams. The
// caller closes the connection. Give it nats.ReconnectBufSize(-1): a publish
// while it is down then fails at once.
func Open(ctx context.Context, nc *nats.Conn, o Options) (*Feed, error) {
	if !domainPattern.MatchString(o.domain()) {
		return nil, fmt.Errorf("open the version chain: domain %q: only letters, digits, - and _ are allowed", o.domain())
	}
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(jsapi.Timeout))
	if err != nil {
		return nil, fmt.Errorf("open the version chain: %w", err)
	}
	f := &Feed{nc: nc, js: js, subject: o.subject(), live: o.LiveSubject(), foreign: o.Foreign, followers: make(map[*Follower]struct{})}
	ctx, cancel := f.bound(ctx, jsapi.StreamInfo)
	defer cancel()
	if f.stream, err = js.Stream(ctx, Stream); err != nil {
		return nil, fmt.Errorf("open stream %s: %w", Stream, jsapi.Cause(ctx, err))
	}
	if f.blobs, err = js.ObjectStore(ctx, BlobBucket); err != nil {
		return nil, fmt.Errorf("open object store %s: %w", BlobBucket, jsapi.Cause(ctx, err))
	}
	return f, nil
}

// bound bounds a request to a subject that begins with one of these.
func (f *Feed) bound(ctx context.Context, subjects ...string) (context.Context, context.CancelFunc) {
	return jsapi.Bound(ctx, f.nc, jsapi.Timeout, subjects...)
}

// Hint passes a reported head to all followers; see Follower.Hint.
func (f *Feed) Hint(v ident.Position, seq uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for fo := range f.followers {
		fo.Hint(v, seq)
	}
}
