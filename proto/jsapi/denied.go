package jsapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// Timeout bounds a request to the server.
	Timeout = 5 * time.Second
	// DenialWait is when a request looks whether the server denied it.
	DenialWait = 250 * time.Millisecond
)

// DeniedError reports that the server does not let this user use a subject.
type DeniedError struct {
	User    string // the user's name, and its credentials if they are known
	Publish bool   // false: the user may not subscribe
	Subject string
}

func (e *DeniedError) Error() string {
	verb := "subscribe"
	if e.Publish {
		verb = "publish"
	}
	return fmt.Sprintf("%s may not %s to %s: its permissions on the bus lack that subject; "+
		"`meshlog bus-auth` writes what each role needs, the server must read it again", e.User, verb, e.Subject)
}

// User names the user of a connection. A custom dialer of the connection may
// know more about its user: DeniedError then quotes the dialer's User.
type User interface{ User() string }

// AsDenied returns the permission violation that err reports, nil if it reports
// none. The client library tells it as text only.
func AsDenied(nc *nats.Conn, err error) *DeniedError {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return nil
	}
	d := &DeniedError{User: cmp.Or(nc.Opts.Name, "this user"), Publish: true, Subject: err.Error()} // should the text change
	if u, ok := nc.Opts.CustomDialer.(User); ok {
		d.User = u.User()
	}
	_, rest, ok := strings.Cut(err.Error(), `Publish to "`)
	if !ok {
		_, rest, ok = strings.Cut(err.Error(), `Subscription to "`)
		d.Publish = false
	}
	if ok {
		d.Subject, _, _ = strings.Cut(rest, `"`)
	}
	return d
}

// Denied returns the last violation on the connection if it explains why a
// request to one of these subjects has no answer, else nil. The server denied
// the request to a subject that begins with one of them, or the subscription
// to the connection's inbox.
func Denied(nc *nats.Conn, subjects ...string) error {
	d := AsDenied(nc, nc.LastError())
	if d == nil {
		return nil
	}
	if !d.Publish {
		inbox := nc.NewInbox()
		subjects = []string{inbox[:strings.LastIndexByte(inbox, '.')+1]}
	}
	for _, s := range subjects {
		if strings.HasPrefix(d.Subject, s) {
			return d
		}
	}
	return nil
}

// Watch returns a context that ends, with a *DeniedError as its cause, if the
// server denies a request to one of these subjects (see Denied). The server
// reports that to the connection, so the request itself would wait until its
// deadline. A publish that was denied before does not count: the connection keeps
// its last error. Call the function that it returns when the request has ended.
func Watch(ctx context.Context, nc *nats.Conn, subjects ...string) (context.Context, context.CancelFunc) {
	ctx, deny := context.WithCancelCause(ctx)
	before := nc.LastError()
	look := time.AfterFunc(DenialWait, func() {
		last := nc.LastError()
		if d := AsDenied(nc, last); d != nil && d.Publish && errors.Is(last, before) {
			return
		}
		if err := Denied(nc, subjects...); err != nil {
			deny(err)
		}
	})
	return ctx, func() { look.Stop(); deny(nil) }
}

// Bound is Watch with a deadline.
func Bound(ctx context.Context, nc *nats.Conn, timeout time.Duration, subjects ...string) (context.Context, context.CancelFunc) {
	ctx, stop := Watch(ctx, nc, subjects...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	return ctx, func() { cancel(); stop() }
}

// Cause returns the *DeniedError that ended the context of a failed request,
// else err.
func Cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); err != nil && errors.As(c, new(*DeniedError)) {
		return c
	}
	return err
}

// Explain returns Denied if it explains why a request failed, else err.
func Explain(nc *nats.Conn, err error, subjects ...string) error {
	return cmp.Or(Denied(nc, subjects...), err)
}
