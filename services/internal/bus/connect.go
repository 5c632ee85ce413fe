package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"meshlog.dev/proto/jsapi"
	"meshlog.dev/services/internal/loglimit"
)

// Conn is a connection. It is an alias, so that packages that only pass it on do
// not import the client library.
type Conn = nats.Conn

// ConnectOptions hold the address of the bus and the client's credentials. Each
// connection reads the files again, so that they may be replaced.
type ConnectOptions struct {
	// URL is one or more NATS URLs, separated by commas, or the path of a bus
	// file, as `meshlog up` writes it: then the key of the role is beside the file.
	// Empty if Server is set.
	URL    string
	Server *Server

	// TokenFile holds the token, NkeyFile the seed of a user's key, CredsFile a
	// user's JWT and key as nsc writes them. At most one of them.
	TokenFile string
	NkeyFile  string
	CredsFile string
	// CAFile, CertFile and KeyFile are PEM files for TLS: the authority of the
	// servers, and the client's certificate and key.
	CAFile, CertFile, KeyFile string

	// Name is the name of the process, which the server shows.
	Name string
	// Role is the role of the process. It is zero for the administrator of an
	// embedded server.
	Role Role
	Log  *slog.Logger
}

// Settings of connections. The library's defaults are for short-lived clients: it
// stops after 60 attempts, and notices a dead peer after four minutes.
const (
	dialTimeout   = 2 * time.Second
	reconnectWait = 250 * time.Millisecond
	reconnectTLS  = time.Second
	pingInterval  = 5 * time.Second
	pingsMissed   = 2
	firstRetry    = 50 * time.Millisecond
	silentRetry   = time.Second
	retryAtMost   = 5 * time.Second
	drainTimeout  = 2 * time.Second
	inboxPrefix   = "_IN."
)

// Connect makes one attempt to connect. The connection then renews itself for
// ever, also if its server is cut off from the cluster. The caller closes it.
func Connect(o ConnectOptions) (*Conn, error) {
	l := &link{o: o, log: loglimit.New(o.Log, 1)}
	urls, opts, err := l.nats()
	if err != nil {
		return nil, err
	}
	nc, err := nats.Connect(urls, opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to the bus at %s: %w", o.where(), o.advise(err))
	}
	l.nc.Store(nc)
	if o.Server == nil {
		go l.stayUseful(nc, nc.StatusChanged(nats.CLOSED), leaderEvery)
	}
	return nc, nil
}

// CheckURL returns an error if the URL of ConnectOptions is malformed.
func CheckURL(urls string) error {
	if !strings.Contains(urls, "://") {
		return nil // a bus file, which may not exist yet
	}
	for s := range strings.SplitSeq(urls, ",") {
		u, err := url.Parse(strings.TrimSpace(s))
		if err != nil {
			return fmt.Errorf("address of the bus: %w", errors.Unwrap(err)) // without the URL: it may hold a password
		}
		if !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) || u.Hostname() == "" {
			return fmt.Errorf("address of the bus: %s is not the address of a NATS server: give nats://HOST:PORT (or tls, ws, wss), several separated by commas", u.Redacted())
		}
	}
	return nil
}

// ConnectWait calls Connect until it succeeds or ctx is done.
func ConnectWait(ctx context.Context, o ConnectOptions) (*Conn, error) {
	if err := CheckURL(o.URL); err != nil {
		return nil, err
	}
	return Retry(ctx, o.Log, func(context.Context) (*Conn, error) { return Connect(o) })
}

// ErrNotConnected reports that there is no connection to the bus now.
var ErrNotConnected = errors.New("no connection to the bus")

// Ready returns an error while the connection is down, or if the server denied the
// user a subject.
func Ready(nc *Conn) error {
	if !nc.IsConnected() {
		l, ok := nc.Opts.CustomDialer.(*link)
		if !ok {
			return ErrNotConnected
		}
		err := l.failure()
		// The library reports a TLS error here only.
		if last := nc.LastError(); last != nil {
			err = l.o.advise(last)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrNotConnected, err)
		}
		return ErrNotConnected
	}
	if d := jsapi.AsDenied(nc, nc.LastError()); d != nil {
		return d
	}
	return nil
}

// Retry calls f until it succeeds or ctx is done, with growing pauses. It logs each
// new error of a failure that lasts longer than a second: a bus that has just
// started returns errors for some seconds.
func Retry[T any](ctx context.Context, log *slog.Logger, f func(context.Context) (T, error)) (T, error) {
	logged := ""
	for wait := firstRetry; ; wait = min(2*wait, retryAtMost) {
		result, err := f(ctx)
		if err == nil {
			return result, nil
		}
		if wait > silentRetry && err.Error() != logged {
			logged = err.Error()
			log.Warn("failed; retrying", "error", err)
		}
		select {
		case <-ctx.Done():
			return result, errors.Join(ctx.Err(), err)
		case <-time.After(wait):
		}
	}
}
