package natsfeed

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// The requests that are made of a server, each with the name of a stream, and
// in some cases more, behind it.
const (
	infoAPI         = "$JS.API.STREAM.INFO."
	createStreamAPI = "$JS.API.STREAM.CREATE."
	updateStreamAPI = "$JS.API.STREAM.UPDATE."
	purgeAPI        = "$JS.API.STREAM.PURGE."
	getAPI          = "$JS.API.STREAM.MSG.GET."
	directGetAPI    = "$JS.API.DIRECT.GET."
)

// The object store's own subjects: of what an object is, and of its bytes.
const (
	blobMeta   = "$O." + BlobBucket + ".M."
	blobChunks = "$O." + BlobBucket + ".C."
)

// ReadPermissions are the subjects that a client must be allowed to publish to,
// beside listening to its inbox and to LiveSubject, to open and read a chain.
// The streams are all meshes': whoever may read one chain may read all of an
// account.
func ReadPermissions() []string {
	return []string{
		infoAPI + Stream, getAPI + Stream, directGetAPI + Stream,
		infoAPI + blobStream, directGetAPI + blobStream, directGetAPI + blobStream + "." + blobMeta + "*",
	}
}

// PublishPermissions are those to write a chain and its blobs, beside reading
// them.
func PublishPermissions(o Options) []string {
	return []string{o.subject(), blobMeta + "*", blobChunks + "*", purgeAPI + blobStream}
}

// CreatePermissions are those of EnsureStreams.
func CreatePermissions() []string {
	return []string{infoAPI + Stream, createStreamAPI + Stream, infoAPI + blobStream, createStreamAPI + blobStream}
}

// UpdatePermissions are those to change the settings of the streams.
func UpdatePermissions() []string {
	return []string{infoAPI + Stream, updateStreamAPI + Stream, infoAPI + blobStream, updateStreamAPI + blobStream}
}

// denialWait is when a request looks whether it was denied.
const denialWait = 250 * time.Millisecond

// request bounds a request, which publishes to subjects that begin so.
func (f *Feed) request(ctx context.Context, subjects ...string) (context.Context, context.CancelFunc) {
	ctx, unwatch := f.undenied(ctx, subjects...)
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	return ctx, func() { cancel(); unwatch() }
}

// undenied ends, with its cause, what is denied. A server that denies a request
// tells the connection, not the request: that would wait in vain.
func (f *Feed) undenied(ctx context.Context, subjects ...string) (context.Context, context.CancelFunc) {
	ctx, deny := context.WithCancelCause(ctx)
	look := time.AfterFunc(denialWait, func() {
		for _, s := range subjects {
			if err := denial(f.nc, s); err != nil {
				deny(err)
			}
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
