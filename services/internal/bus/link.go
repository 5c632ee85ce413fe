package bus

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"meshlog.dev/events"
	"meshlog.dev/proto/jsapi"
	"meshlog.dev/services/internal/loglimit"
)

// link is the state of this package for a connection: its options, and the errors
// of recent attempts. It is the connection's dialer, so that it runs before each
// attempt, and functions that have the connection find it.
type link struct {
	o   ConnectOptions
	log *loglimit.Logger          // for errors that other clients can cause
	nc  atomic.Pointer[nats.Conn] // once it was connected

	mu     sync.Mutex
	last   error           // of the attempts since the connection was lost
	logged map[string]bool // their texts
}

// nats returns the URLs and options for the library.
func (l *link) nats() (urls string, opts []nats.Option, err error) {
	o := l.o
	opts = []nats.Option{
		nats.Name(o.Name),
		nats.Timeout(dialTimeout),
		// The dialer looks names up within its timeout. The library would wait
		// for the name server with the connection's lock held, which blocks even
		// Close: ten seconds and more for a container that is gone.
		nats.SkipHostLookup(),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(), // credentials may be replaced
		nats.ReconnectWait(reconnectWait), nats.ReconnectJitter(reconnectWait, reconnectTLS),
		nats.PingInterval(pingInterval), nats.MaxPingsOutstanding(pingsMissed),
		nats.ReconnectBufSize(-1), // a publish without a connection fails at once
		nats.DrainTimeout(drainTimeout),
		nats.CustomInboxPrefix(o.inbox()),
		nats.ErrorHandler(l.onError),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // nil: Close
				o.Log.Warn("connection to the bus lost; reconnecting", "error", err)
			}
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { l.onAttempt(err) }),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			l.onAttempt(nil)
			o.Log.Info("connection to the bus renewed", "url", nc.ConnectedUrlRedacted())
		}),
	}
	if o.Server != nil {
		key, err := o.Server.key(o.Role)
		return "", append(opts, nats.InProcessServer(o.Server.ns), key), err
	}
	if o.URL == "" {
		return "", nil, errors.New("the address of the bus is missing: give --bus nats://HOST:PORT, or the path of a bus file")
	}
	opts = append(opts, nats.SetCustomDialer(l))
	if o.fromFile() {
		f, more, err := o.busFile()
		return f.URL, append(opts, more...), err
	}
	credentials, err := o.credentials()
	if err != nil {
		return "", nil, err
	}
	secure, err := o.secure()
	return o.URL, append(append(opts, credentials...), secure...), err
}

// inbox returns the prefix of the connection's inboxes.
func (o ConnectOptions) inbox() string {
	if o.Role == (Role{}) {
		return inboxPrefix + events.Token(o.Name)
	}
	return o.Role.inboxes() + "." + events.Token(o.Name)
}

// Dial implements nats.CustomDialer. The library holds the connection's lock
// meanwhile, so Dial may change its options.
func (l *link) Dial(network, addr string) (net.Conn, error) {
	if l.o.fromFile() { // its server may have another address by now
		f, err := ReadBusFile(l.o.URL)
		if err != nil {
			return nil, err
		}
		u, err := url.Parse(f.URL)
		if err != nil {
			return nil, fmt.Errorf("bus file %s: url: %w", l.o.URL, err)
		}
		addr = u.Host
	}
	key := l.o.NkeyFile
	if l.o.fromFile() {
		var err error
		if key, err = keyOf(l.o.URL, l.o.Role); err != nil {
			return nil, err
		}
	}
	if nc := l.nc.Load(); nc != nil && key != "" {
		user, err := ReadNkey(key)
		if err != nil {
			return nil, err
		}
		nc.Opts.Nkey = user
	}
	return net.DialTimeout(network, addr, dialTimeout)
}

// User implements jsapi.User.
func (l *link) User() string { return l.o.Name + ", " + l.o.user() + "," }

// onError logs errors of the server or the library that answer no request.
func (l *link) onError(nc *nats.Conn, sub *nats.Subscription, err error) {
	if d := jsapi.AsDenied(nc, err); d != nil {
		l.log.Error("permission denied by the bus", "error", d)
		return
	}
	if isAuth(err) { // of an attempt to reconnect: the library reports it here
		l.onAttempt(err)
		return
	}
	subject := ""
	if sub != nil {
		subject = sub.Subject
	}
	l.log.Warn("bus", "error", err, "subject", subject)
}

// onAttempt takes the result of an attempt to reconnect, and logs each new error.
func (l *link) onAttempt(err error) {
	if err != nil {
		err = l.o.advise(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = err
	switch {
	case err == nil:
		l.logged = nil
	case !l.logged[err.Error()]:
		if l.logged == nil {
			l.logged = map[string]bool{}
		}
		l.logged[err.Error()] = true
		l.o.Log.Warn("not connected to the bus; retrying", "error", err)
	}
}

// failure returns the error of the last attempt to reconnect.
func (l *link) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}
