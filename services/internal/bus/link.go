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
	"meshlog.dev/jsapi"
)

// link is what this package keeps of a connection: who connects, and why it
// could not lately. It is the connection's dialer, so it is asked before each
// attempt, and found by who has the connection.
type link struct {
	o  ConnectOptions
	nc atomic.Pointer[nats.Conn] // once it was connected

	mu   sync.Mutex
	last error           // of the attempts since it was connected last
	said map[string]bool // what was logged of them
}

// nats returns the link in the library's words.
func (l *link) nats() (urls string, opts []nats.Option, err error) {
	o := l.o
	opts = []nats.Option{
		nats.Name(o.Name),
		nats.Timeout(dialTimeout),
		// The dialer looks names up within its time. The library would take as
		// long as the name server does, with the connection's lock, so that not
		// even Close gets through: ten seconds and more for a container that is
		// gone.
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
			if err != nil { // nil: closed by us
				o.Log.Warn("connection to the bus lost; trying on", "error", err)
			}
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { l.onAttempt(err) }),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			l.onAttempt(nil)
			o.Log.Info("connection to the bus renewed", "url", nc.ConnectedUrlRedacted())
		}),
	}
	if o.Server != nil {
		return "", append(opts, nats.InProcessServer(o.Server.ns), nats.Token(o.Server.token)), nil
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

// inbox returns where the connection gets its answers.
func (o ConnectOptions) inbox() string {
	if o.Role == (Role{}) {
		return inboxPrefix + events.Token(o.Name)
	}
	return o.Role.inboxes() + "." + events.Token(o.Name)
}

// Dial implements nats.CustomDialer. The library holds the connection's lock
// meanwhile: nobody else reads what is set here.
func (l *link) Dial(network, addr string) (net.Conn, error) {
	if l.o.fromFile() { // its server may be somewhere else by now
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
	if nc := l.nc.Load(); nc != nil && l.o.NkeyFile != "" {
		user, err := readNkey(l.o.NkeyFile)
		if err != nil {
			return nil, err
		}
		nc.Opts.Nkey = user
	}
	return net.DialTimeout(network, addr, dialTimeout)
}

// User implements jsapi.User.
func (l *link) User() string { return l.o.Name + ", " + l.o.user() + "," }

// onError logs what the server, or the library, says beside an answer.
func (l *link) onError(nc *nats.Conn, sub *nats.Subscription, err error) {
	if d := jsapi.AsDenied(nc, err); d != nil {
		l.o.Log.Error("the bus denies", "error", d)
		return
	}
	if isAuth(err) { // an attempt to connect again: the library says that here
		l.onAttempt(err)
		return
	}
	subject := ""
	if sub != nil {
		subject = sub.Subject
	}
	l.o.Log.Warn("bus", "error", err, "subject", subject)
}

// onAttempt takes what an attempt to connect again came to, and logs each new
// reason of a failure that lasts.
func (l *link) onAttempt(err error) {
	if err != nil {
		err = l.o.advise(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = err
	switch {
	case err == nil:
		l.said = nil
	case !l.said[err.Error()]:
		if l.said == nil {
			l.said = map[string]bool{}
		}
		l.said[err.Error()] = true
		l.o.Log.Warn("not connected to the bus; trying on", "error", err)
	}
}

// failure returns why the last attempt to connect again failed; nil if it did not.
func (l *link) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}
