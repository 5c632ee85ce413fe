// Package audit keeps the audit of a mesh: which process gave which key or certificate
// for which proxy (KEY-13). A record states an observation, so it is no event; it must
// last, so it is no report.
//
// # The stream
//
// MESHLOG_AUDIT holds one message for each record. The time of a record is the
// server's, and the subject names the account that wrote it:
//
//	meshlog.audit.<domain>.frontend                     the frontends
//	meshlog.audit.<domain>.operator                     operators, for what no process of the mesh does for them
//	meshlog.audit.<domain>.watcher.<source>.<instance>  the watchers of a shard, the ca among them
//
// A process may write under the subject of its role or shard only, and only operators
// read. No client deletes a record: the server drops the oldest when they
// are too old, or when the stream is full. A writer has one subject, and a subject
// takes half of the stream at most, so that a compromised key does not push out the
// records of others.
//
// The audit is never folded, and no archive holds it.
package audit

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/proto/jsapi"
	"meshlog.dev/services/internal/bus"
)

// Stream is the name of the stream.
const Stream = "MESHLOG_AUDIT"

const (
	subjectPrefix = "meshlog.audit."
	frontendToken = "frontend"
	operatorToken = "operator"
	watcherToken  = "watcher."
	anyToken      = "*"
	// maxRecord is the largest message, with its headers.
	maxRecord = 2 << 10
	// shares is the part of the stream that one writer may fill: one of two.
	shares = 2
	// duplicates is how long the server recognizes a record that a Writer repeats.
	duplicates = 2 * time.Minute
)

// The settings of a stream whose options give none.
const (
	DefaultHistory = 90 * 24 * time.Hour
	DefaultBytes   = 1 << 30
)

// StreamOptions describe the stream.
type StreamOptions struct {
	Replicas int           // 1, or 3 on a cluster
	History  time.Duration // how long records stay; DefaultHistory if 0
	Bytes    int64         // how large the stream may grow; DefaultBytes if 0
}

// Config returns the settings with which EnsureStream makes the stream.
func (o StreamOptions) Config() bus.StreamConfig {
	if o.History == 0 {
		o.History = DefaultHistory
	}
	if o.Bytes == 0 {
		o.Bytes = DefaultBytes
	}
	perWriter := int64(-1) // a stream without a limit is never full
	if o.Bytes > 0 {
		perWriter = max(1, o.Bytes/maxRecord/shares)
	}
	return jetstream.StreamConfig{
		Name:        Stream,
		Description: "Audit: which process gave which key or certificate for which proxy.",
		Subjects:    []string{subjectPrefix + ">"},
		Storage:     jetstream.FileStorage,
		Replicas:    max(1, o.Replicas),

		Retention:         jetstream.LimitsPolicy,
		Discard:           jetstream.DiscardOld, // a full audit must not keep keys from being served
		MaxAge:            o.History,
		MaxBytes:          o.Bytes,
		MaxMsgs:           -1,
		MaxMsgsPerSubject: perWriter,
		MaxMsgSize:        maxRecord,
		DenyDelete:        true,
		DenyPurge:         true,

		Duplicates:  min(duplicates, o.History),
		AllowDirect: true,
	}
}

// EnsureStream makes the stream if it is missing. It never changes an existing one; it
// fails if a client could delete records, or have the server write other subjects.
func EnsureStream(ctx context.Context, nc *bus.Conn, o StreamOptions) error {
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(jsapi.Timeout))
	if err != nil {
		return fmt.Errorf("make stream %s: %w", Stream, err)
	}
	info, _, err := jsapi.Ensure(ctx, js, o.Config())
	if err != nil {
		return jsapi.Explain(nc, err, CreatePermissions()...)
	}
	if err := o.faults(info.Config).Err(); err != nil {
		return fmt.Errorf("stream %s: %w", Stream, err)
	}
	return nil
}

func (o StreamOptions) faults(c bus.StreamConfig) (f jsapi.Faults) {
	const lost = "no client deletes records of the audit"
	wants := o.Config()
	f.Must(slices.Equal(c.Subjects, wants.Subjects), "subjects", c.Subjects, wants.Subjects, "processes write there")
	f.Must(c.Retention == jetstream.LimitsPolicy, "retention", c.Retention, jetstream.LimitsPolicy, lost)
	f.Must(c.DenyDelete, "deny_delete", c.DenyDelete, true, lost)
	f.Must(c.DenyPurge, "deny_purge", c.DenyPurge, true, lost)
	f.Must(!c.AllowRollup, "allow_rollup_hdrs", c.AllowRollup, false, lost)
	f.Must(!c.AllowMsgTTL, "allow_msg_ttl", c.AllowMsgTTL, false, lost)
	f.Must(!c.NoAck, "no_ack", c.NoAck, false, "without acknowledgements, records get lost unnoticed")
	f.Must(c.AllowDirect, "allow_direct", c.AllowDirect, true, "operators read records by Direct Get")
	f.Must(c.Mirror == nil && len(c.Sources) == 0, "mirror, sources", "set", "unset", "only processes write records")
	f.Must(c.SubjectTransform == nil, "subject_transform", "set", "unset", "the subject names the writer")
	f.Republish(c)
	return f
}

// WriterPermissions returns the subjects that the writers of a role publish to. It is
// empty for roles that write no audit.
func WriterPermissions(r bus.Role, domain string) []string {
	if s, ok := subject(r, domain); ok {
		return []string{s}
	}
	return nil
}

// ReadPermissions returns the subjects to read the audit.
func ReadPermissions() []string {
	return []string{jsapi.StreamInfo + Stream, jsapi.MessageGet + Stream, jsapi.DirectGet + Stream}
}

// CreatePermissions returns the subjects for EnsureStream.
func CreatePermissions() []string {
	return []string{jsapi.StreamInfo + Stream, jsapi.StreamCreate + Stream}
}

func domainPrefix(domain string) string { return subjectPrefix + events.Token(domain) + "." }

// subject returns the subject of a role's records, or the wildcard of a process that
// watches all instances of a source.
func subject(r bus.Role, domain string) (s string, ok bool) {
	shard, watches := r.Shard()
	switch {
	case watches && shard.Instance == "":
		s = watcherToken + events.Token(shard.Source) + "." + anyToken
	case watches:
		s = watcherToken + events.Token(shard.Source) + "." + events.Token(shard.Instance)
	case r == bus.Frontend():
		s = frontendToken
	case r == bus.Operator():
		s = operatorToken
	default:
		return "", false
	}
	return domainPrefix(domain) + s, true
}

var errSubject = errors.New("its subject names no writer")

// writer returns the writer that a subject names: the role of frontends or operators, or
// the shard of watchers as SOURCE/INSTANCE.
func writer(domain, subject string) (string, error) {
	rest, found := strings.CutPrefix(subject, domainPrefix(domain))
	if found && (rest == frontendToken || rest == operatorToken) {
		return rest, nil
	}
	tokens, watches := strings.CutPrefix(rest, watcherToken)
	source, instance, two := strings.Cut(tokens, ".")
	if !found || !watches || !two {
		return "", errSubject
	}
	shard := ident.Shard{Source: name(source), Instance: name(instance)}
	if watcherToken+events.Token(shard.Source)+"."+events.Token(shard.Instance) != rest {
		return "", errSubject
	}
	return shard.String(), nil
}

// name returns the name that events.Token encodes as token, if there is one.
func name(token string) string {
	if token == events.Token("") {
		return ""
	}
	n, err := url.PathUnescape(strings.ReplaceAll(token, "=", "%"))
	if err != nil {
		return token
	}
	return n
}
