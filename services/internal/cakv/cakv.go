// Package cakv keeps the join tokens of the certificate authority on the bus, for all
// of its replicas (CA-6).
//
// # The stream
//
// The bucket meshlog_ca is the stream KV_meshlog_ca. A subject takes one message ever,
// and the stream drops it after 25 hours:
//
//	$KV.meshlog_ca.<domain>.join.<key>    a token that an operator has made
//	$KV.meshlog_ca.<domain>.spent.<key>   a CA has spent it
//
// A token is spent by the message under spent, which the server stores once: of several
// CAs one succeeds. So a CA needs no right to write under join, and the key of a CA on
// the bus makes no tokens. A token lasts 24 hours at most and spent messages stay for
// 25, so a token is gone before the message that it is spent.
//
// What is stored is the SHA-256 of a token and what it is good for; neither is a token.
package cakv

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/events"
	"meshlog.dev/proto/jsapi"
	"meshlog.dev/services/internal/bus"
)

const (
	bucket = "meshlog_ca"
	// Stream is the name of the stream.
	Stream = "KV_" + bucket

	subjectPrefix = "$KV." + bucket + "."
	joinToken     = ".join."
	spentToken    = ".spent."
	anyToken      = "*"

	// keep is how long a message stays: longer than a token lasts, lasts.
	keep  = lasts + time.Hour
	lasts = 24 * time.Hour
	// maxBytes holds some 40,000 tokens. A full stream refuses new tokens, and spends none.
	maxBytes   = 16 << 20
	maxMessage = 4 << 10
	// callTimeout bounds a call that has no other bound.
	callTimeout = 5 * time.Second
)

// Config returns the settings with which EnsureStream makes the stream.
func Config(replicas int) bus.StreamConfig {
	return jetstream.StreamConfig{
		Name:                 Stream,
		Description:          "Join tokens of the certificate authority: their hashes.",
		Subjects:             []string{subjectPrefix + ">"},
		Storage:              jetstream.FileStorage,
		Replicas:             max(1, replicas),
		Retention:            jetstream.LimitsPolicy,
		Discard:              jetstream.DiscardNew,
		DiscardNewPerSubject: true, // a token is made once and spent once, whatever a client asks
		MaxMsgsPerSubject:    1,
		MaxMsgs:              -1,
		MaxBytes:             maxBytes,
		MaxMsgSize:           maxMessage,
		MaxAge:               keep,
		Duplicates:           2 * time.Minute,
		DenyDelete:           true,
		DenyPurge:            true,
	}
}

// EnsureStream makes the stream if it is missing. It never changes an existing one; it
// fails if a token could be spent twice in it.
func EnsureStream(ctx context.Context, nc *bus.Conn, replicas int) error {
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(callTimeout))
	if err != nil {
		return fmt.Errorf("make stream %s: %w", Stream, err)
	}
	info, _, err := jsapi.Ensure(ctx, js, Config(replicas))
	if err != nil {
		return fmt.Errorf("stream %s: %w", Stream, jsapi.Explain(nc, err, CreatePermissions()...))
	}
	if err := faults(info.Config).Err(); err != nil {
		return fmt.Errorf("stream %s: %w", Stream, err)
	}
	return nil
}

func faults(c bus.StreamConfig) (f jsapi.Faults) {
	const twice = "or a join token could be spent twice"
	f.Must(c.Discard == jetstream.DiscardNew, "discard", c.Discard, jetstream.DiscardNew, twice)
	f.Must(c.DiscardNewPerSubject, "discard_new_per_subject", c.DiscardNewPerSubject, true, twice)
	f.Must(c.MaxMsgsPerSubject == 1, "max_msgs_per_subject", c.MaxMsgsPerSubject, 1, twice)
	f.Must(c.MaxAge == 0 || c.MaxAge >= keep, "max_age", c.MaxAge, keep, twice)
	f.Must(c.DenyDelete, "deny_delete", c.DenyDelete, true, twice)
	f.Must(c.DenyPurge, "deny_purge", c.DenyPurge, true, twice)
	f.Must(!c.AllowRollup, "allow_rollup_hdrs", c.AllowRollup, false, twice)
	f.Must(!c.AllowMsgTTL, "allow_msg_ttl", c.AllowMsgTTL, false, twice)
	f.Must(!c.NoAck, "no_ack", c.NoAck, false, "without acknowledgements, a CA does not know whether it spent a token")
	f.Must(c.Mirror == nil && len(c.Sources) == 0, "mirror, sources", "set", "unset", "only operators make join tokens")
	f.Must(c.SubjectTransform == nil, "subject_transform", "set", "unset", twice)
	f.Republish(c)
	return f
}

// Permissions returns the subjects that a role publishes to: operators make tokens, the
// watchers of the source ca read and spend them. It is empty for other roles.
func Permissions(r bus.Role, domain string) []string {
	shard, watches := r.Shard()
	switch {
	case r == bus.Operator():
		// `meshlog streams` compares the settings.
		return []string{jsapi.StreamInfo + Stream, subjectPrefix + events.Token(domain) + joinToken + anyToken}
	case watches && shard.Source == bus.CASource:
		return []string{jsapi.MessageGet + Stream, subjectPrefix + events.Token(domain) + spentToken + anyToken}
	}
	return nil
}

// CreatePermissions returns the subjects for EnsureStream.
func CreatePermissions() []string {
	return []string{jsapi.StreamInfo + Stream, jsapi.StreamCreate + Stream}
}

// Tokens are the join tokens of a mesh. Its methods are those of jointoken.Store. It is
// safe for concurrent use.
type Tokens struct {
	nc     *bus.Conn
	js     jetstream.JetStream
	prefix string
}

// New returns the join tokens of the mesh called domain.
func New(nc *bus.Conn, domain string) (*Tokens, error) {
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(callTimeout))
	if err != nil {
		return nil, fmt.Errorf("join tokens: %w", err)
	}
	return &Tokens{nc, js, subjectPrefix + events.Token(domain)}, nil
}

// hash matches the keys of tokens. Callers of a CA choose tokens, not their hashes; no
// other text becomes a subject.
var hash = regexp.MustCompile(`^[0-9a-f]{64}$`)

// errNone says that the bus has no such token, or that it is spent.
var errNone = fmt.Errorf("no such join token on the bus, or it is spent: %w", fs.ErrNotExist)

// Create keeps a value until a time, 24 hours ahead at most.
func (t *Tokens) Create(ctx context.Context, key string, value []byte, until time.Time) error {
	if !hash.MatchString(key) {
		return fmt.Errorf("key %q is no SHA-256 in hex", key)
	}
	if time.Until(until) > lasts {
		return fmt.Errorf("until %s: the bus keeps join tokens for %s at most", until.UTC().Format(time.RFC3339), lasts)
	}
	err := t.once(ctx, t.prefix+joinToken+key, value)
	if isThere(err) {
		return fmt.Errorf("key %s: %w", key, fs.ErrExist)
	}
	return err
}

// Get returns a value and its revision. The error wraps fs.ErrNotExist if there is none,
// or if it is spent. The leader of the stream answers: a replica may not have the token yet.
func (t *Tokens) Get(ctx context.Context, key string) (value []byte, revision uint64, err error) {
	if !hash.MatchString(key) {
		return nil, 0, errNone
	}
	switch _, err := t.last(ctx, spentToken+key); {
	case err == nil:
		return nil, 0, errNone
	case !errors.Is(err, jetstream.ErrMsgNotFound):
		return nil, 0, err
	}
	m, err := t.last(ctx, joinToken+key)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, 0, errNone
	}
	return m.Data, m.Seq, err
}

func (t *Tokens) last(ctx context.Context, subject string) (jsapi.Message, error) {
	m, err := jsapi.Get(ctx, t.nc, Stream, jsapi.GetRequest{LastFor: t.prefix + subject})
	if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
		err = fmt.Errorf("read a join token: %w", err)
	}
	return m, err
}

// Delete spends a token. Of several callers one succeeds; the others get an error that
// wraps fs.ErrNotExist. The revision is for people: a key has one value ever.
func (t *Tokens) Delete(ctx context.Context, key string, revision uint64) error {
	if !hash.MatchString(key) {
		return errNone
	}
	err := t.once(ctx, t.prefix+spentToken+key, []byte(strconv.FormatUint(revision, 10)))
	if isThere(err) {
		return errNone
	}
	return err
}

// once stores a message under a subject that has none.
func (t *Tokens) once(ctx context.Context, subject string, data []byte) error {
	ctx, cancel := jsapi.Bound(ctx, t.nc, callTimeout, subject)
	defer cancel()
	m := nats.NewMsg(subject)
	m.Data = data
	// After an error the message may be stored, and the token is lost with it. The library
	// sends it again only if no stream got it.
	_, err := t.js.PublishMsg(ctx, m, jetstream.WithExpectStream(Stream), jetstream.WithExpectLastSequencePerSubject(0))
	if errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrNoResponders) {
		return fmt.Errorf("the bus keeps no join tokens now (%w): a builder of this build makes their stream, %s, when it starts", err, Stream)
	}
	if err != nil {
		return fmt.Errorf("write a join token: %w", jsapi.Cause(ctx, jsapi.Explain(t.nc, err, subject)))
	}
	return nil
}

// isThere reports whether the server refused a message because its subject has one.
func isThere(err error) bool { return jsapi.IsConflict(err) }
