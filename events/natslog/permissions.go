package natslog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
)

// The requests that are made of a server, each with the name of a stream, and
// in some cases more, behind it.
const (
	infoAPI           = "$JS.API.STREAM.INFO."
	createStreamAPI   = "$JS.API.STREAM.CREATE."
	updateStreamAPI   = "$JS.API.STREAM.UPDATE."
	getAPI            = "$JS.API.STREAM.MSG.GET."
	directGetAPI      = "$JS.API.DIRECT.GET."
	createConsumerAPI = "$JS.API.CONSUMER.CREATE."
	deleteConsumerAPI = "$JS.API.CONSUMER.DELETE."
	resetConsumerAPI  = "$JS.API.CONSUMER.RESET."
	nextAPI           = "$JS.API.CONSUMER.MSG.NEXT."
)

// ShardPermissions are the subjects that a client must be allowed to publish
// to, beside listening to its inbox, to open the log of one shard, write there
// and read that.
func ShardPermissions(o Options, s ident.Shard) []string {
	return subjectPermissions(o.withDefaults(), events.ShardSubjects(s))
}

// SourcePermissions are ShardPermissions for all instances of a source.
func SourcePermissions(o Options, source string) []string {
	return subjectPermissions(o.withDefaults(), events.SourceSubjects(source))
}

func subjectPermissions(o Options, s events.Subject) []string {
	own := s.In(o.Domain)
	return []string{own, infoAPI + o.Stream, directGetAPI + o.Stream + "." + own}
}

// ReadPermissions are those to open the log, and to read and follow it.
func ReadPermissions(o Options) []string {
	o = o.withDefaults()
	return []string{
		infoAPI + o.Stream, getAPI + o.Stream,
		createConsumerAPI + o.Stream + ".>", nextAPI + o.Stream + ".*",
		resetConsumerAPI + o.Stream + ".*", deleteConsumerAPI + o.Stream + ".*",
	}
}

// CreatePermissions are those of EnsureStream.
func CreatePermissions(o Options) []string {
	o = o.withDefaults()
	return []string{infoAPI + o.Stream, createStreamAPI + o.Stream}
}

// UpdatePermissions are those to change the stream's settings.
func UpdatePermissions(o Options) []string {
	o = o.withDefaults()
	return []string{infoAPI + o.Stream, updateStreamAPI + o.Stream}
}

// denialWait is when a request looks whether it was denied.
const denialWait = 250 * time.Millisecond

// request bounds a request, which publishes to a subject that begins so.
func (l *Log) request(ctx context.Context, timeout time.Duration, subject string) (context.Context, context.CancelFunc) {
	ctx, unwatch := l.undenied(ctx, subject)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	return ctx, func() { cancel(); unwatch() }
}

// undenied ends, with its cause, what is denied. A server that denies a request
// tells the connection, not the request: that would wait in vain.
func (l *Log) undenied(ctx context.Context, subject string) (context.Context, context.CancelFunc) {
	ctx, deny := context.WithCancelCause(ctx)
	look := time.AfterFunc(denialWait, func() {
		if err := denial(l.nc, subject); err != nil {
			deny(err)
		}
	})
	return ctx, func() { look.Stop(); deny(nil) }
}

// cause is why a request failed, if its context says more than err.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); err != nil && errors.Is(c, nats.ErrPermissionViolation) {
		return c
	}
	return err
}

// denial is what the server has said last, if that was that this user may not
// publish to a subject that begins so, or not listen to its answers.
func denial(nc *nats.Conn, subject string) error {
	err := nc.LastError()
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return nil
	}
	said, inbox := err.Error(), nc.NewInbox()
	inbox = inbox[:strings.LastIndexByte(inbox, '.')+1]
	if !strings.Contains(said, `Publish to "`+subject) && !strings.Contains(said, `Subscription to "`+inbox) {
		return nil
	}
	return fmt.Errorf("%w; the permissions of this user lack it: `meshlog bus-auth` writes what each role needs", err)
}
