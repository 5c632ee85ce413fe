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

	"meshlog.dev/jsapi"
)

// Conn is a connection; an alias, so that who only hands one on need not import
// the client.
type Conn = nats.Conn

// ConnectOptions say where the bus is and who calls. Credentials in files are
// read anew for every connection, so that they may be replaced.
type ConnectOptions struct {
	// URL is one or more NATS URLs, separated by commas; or the path of a bus
	// file, as `meshlog up` writes it. A server in this process needs none.
	URL    string
	Server *Server

	// TokenFile holds the token, NkeyFile the seed of a user's key, CredsFile a
	// user's JWT and key as nsc writes them. At most one of them.
	TokenFile string
	NkeyFile  string
	CredsFile string
	// CAFile, CertFile and KeyFile are PEM files for TLS: whom to trust, and
	// who the client is.
	CAFile, CertFile, KeyFile string

	// Name is the process's name, shown by the server.
	Name string
	// Role is what it does; nobody's role, where permissions do not matter.
	Role Role
	Log  *slog.Logger
}

// Production settings; the library's own suit short-lived clients: it gives up
// after 60 attempts, and notices a dead peer after four minutes.
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

// Connect makes one attempt. The connection is renewed by itself for ever, also
// where its server is of no use; the caller closes it.
func Connect(o ConnectOptions) (*Conn, error) {
	l := &link{o: o}
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

// CheckURL returns what is wrong with the URL of ConnectOptions, which no waiting
// makes right.
func CheckURL(urls string) error {
	if !strings.Contains(urls, "://") {
		return nil // a bus file, which may come yet
	}
	for s := range strings.SplitSeq(urls, ",") {
		u, err := url.Parse(strings.TrimSpace(s))
		if err != nil {
			return fmt.Errorf("address of the bus: %w", errors.Unwrap(err)) // without the URL: it may hold a password
		}
		if !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) || u.Hostname() == "" {
			return fmt.Errorf("address of the bus: %s is not one of a NATS server: give nats://HOST:PORT (or tls, ws, wss), several separated by commas", u.Redacted())
		}
	}
	return nil
}

// ConnectWait returns Connect, tried until it succeeds or ctx is done.
func ConnectWait(ctx context.Context, o ConnectOptions) (nc *Conn, err error) {
	if err := CheckURL(o.URL); err != nil {
		return nil, err
	}
	err = Retry(ctx, o.Log, func(context.Context) error {
		nc, err = Connect(o)
		return err
	})
	return nc, err
}

// ErrNotConnected says that there is no connection to the bus now.
var ErrNotConnected = errors.New("no connection to the bus")

// Ready returns why a connection is of no use now, or not of all the use that it
// should be; nil if it is.
func Ready(nc *Conn) error {
	if !nc.IsConnected() {
		l, ok := nc.Opts.CustomDialer.(*link)
		if !ok {
			return ErrNotConnected
		}
		err := l.failure()
		// Where TLS fails, the library tells nobody who does not ask.
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

// Retry calls f until it succeeds or ctx is done, with pauses that grow, and
// logs each new reason of a failure that lasts. A bus that has just started
// answers errors for some seconds.
func Retry(ctx context.Context, log *slog.Logger, f func(context.Context) error) error {
	said := ""
	for wait := firstRetry; ; wait = min(2*wait, retryAtMost) {
		err := f(ctx)
		if err == nil {
			return nil
		}
		if wait > silentRetry && err.Error() != said {
			said = err.Error()
			log.Warn("trying on", "error", err)
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(wait):
		}
	}
}
