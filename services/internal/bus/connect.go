package bus

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"meshlog.dev/events"
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

	// TokenFile holds the token, CredsFile a user's JWT and key as nsc writes
	// them. At most one of them.
	TokenFile string
	CredsFile string
	// CAFile, CertFile and KeyFile are PEM files for TLS: whom to trust, and
	// who the client is.
	CAFile, CertFile, KeyFile string

	// Name is the process's name, shown by the server.
	Name string
	Log  *slog.Logger
}

// Production settings; the library's own suit short-lived clients: it gives up
// after 60 attempts, and notices a dead peer after four minutes.
const (
	dialTimeout    = 2 * time.Second
	reconnectWait  = 250 * time.Millisecond
	reconnectTLS   = time.Second
	pingInterval   = 5 * time.Second
	pingsMissed    = 2
	firstRetry     = 50 * time.Millisecond
	silentRetry    = time.Second
	retryAtMost    = 5 * time.Second
	drainTimeout   = 2 * time.Second
	inboxPrefixFmt = "_IN.%s"
)

// Connect makes one attempt. The connection is renewed by itself for ever;
// the caller closes it.
func Connect(o ConnectOptions) (*Conn, error) {
	urls, opts, err := o.nats()
	if err != nil {
		return nil, err
	}
	nc, err := nats.Connect(urls, opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to the bus at %s: %w", o.where(), o.advise(err))
	}
	return nc, nil
}

// CheckURL says what is wrong with the URL of ConnectOptions, which no waiting
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

// ConnectWait is Connect, tried until it succeeds or ctx is done.
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

// Ready says why a connection is of no use now; nil if it is.
func Ready(nc *Conn) error {
	switch {
	case nc.IsConnected():
		return nil
	case nc.LastError() != nil:
		return fmt.Errorf("%w: %w", ErrNotConnected, nc.LastError())
	}
	return ErrNotConnected
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

// where is the bus, for people.
func (o ConnectOptions) where() string {
	if o.Server != nil {
		return "this process"
	}
	return o.URL
}

// advise says what to do about an error that everybody meets.
func (o ConnectOptions) advise(err error) error {
	switch {
	case errors.Is(err, nats.ErrNoServers), errors.Is(err, nats.ErrTimeout):
		return fmt.Errorf("%w; is it running there?", err)
	case errors.Is(err, nats.ErrAuthorization):
		return fmt.Errorf("%w; it takes another token or other credentials", err)
	}
	return err
}

// nats is o in the library's words.
func (o ConnectOptions) nats() (urls string, opts []nats.Option, err error) {
	opts = []nats.Option{
		nats.Name(o.Name),
		nats.Timeout(dialTimeout),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(), // a token may be replaced
		nats.ReconnectWait(reconnectWait), nats.ReconnectJitter(reconnectWait, reconnectTLS),
		nats.PingInterval(pingInterval), nats.MaxPingsOutstanding(pingsMissed),
		nats.ReconnectBufSize(-1), // a publish without a connection fails at once
		nats.DrainTimeout(drainTimeout),
		nats.CustomInboxPrefix(fmt.Sprintf(inboxPrefixFmt, events.Token(o.Name))),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			subject := ""
			if sub != nil {
				subject = sub.Subject
			}
			o.Log.Warn("bus", "error", err, "subject", subject)
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // nil: closed by us
				o.Log.Warn("connection to the bus lost; trying on", "error", err)
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			o.Log.Info("connection to the bus renewed", "url", nc.ConnectedUrlRedacted())
		}),
	}
	if o.Server != nil {
		return "", append(opts, nats.InProcessServer(o.Server.ns), nats.Token(o.Server.token)), nil
	}
	if o.URL == "" {
		return "", nil, errors.New("the address of the bus is missing: give --bus nats://HOST:PORT, or the path of a bus file")
	}
	if !strings.Contains(o.URL, "://") {
		return o.fromFile(opts)
	}
	credentials, err := o.credentials()
	return o.URL, append(opts, credentials...), err
}

// fromFile connects to where a bus file says, which may be somewhere else
// after its server was restarted.
func (o ConnectOptions) fromFile(opts []nats.Option) (string, []nats.Option, error) {
	if o.TokenFile != "" || o.CredsFile != "" {
		return "", nil, fmt.Errorf("bus file %s: it holds the token; a token or credentials beside it are one too many", o.URL)
	}
	f, err := ReadBusFile(o.URL)
	if err != nil {
		return "", nil, err
	}
	return f.URL, append(opts, nats.SetCustomDialer(fileDialer(o.URL)), nats.TokenHandler(func() string {
		f, _ := ReadBusFile(o.URL) // the dialer has just said what is wrong with it
		return f.Token
	})), nil
}

// fileDialer dials the address in a bus file, whatever it is asked for.
type fileDialer string

// Dial implements nats.CustomDialer.
func (path fileDialer) Dial(network, _ string) (net.Conn, error) {
	f, err := ReadBusFile(string(path))
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(f.URL)
	if err != nil {
		return nil, fmt.Errorf("bus file %s: url: %w", path, err)
	}
	return net.DialTimeout(network, u.Host, dialTimeout)
}

func (o ConnectOptions) credentials() ([]nats.Option, error) {
	var opts []nats.Option
	if o.TokenFile != "" && o.CredsFile != "" {
		return nil, errors.New("credentials of the bus: a token file and a credentials file; give one of them")
	}
	if o.TokenFile != "" {
		if _, err := readToken(o.TokenFile); err != nil {
			return nil, err
		}
		opts = append(opts, nats.TokenHandler(func() string {
			t, _ := readToken(o.TokenFile) // without a token the server refuses, and says so
			return t
		}))
	}
	if o.CredsFile != "" {
		opts = append(opts, nats.UserCredentials(o.CredsFile))
	}
	if o.CAFile == "" && o.CertFile == "" {
		return opts, nil
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		return nil, errors.New("TLS of the bus: a certificate and its key belong together; give both")
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("TLS of the bus: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("TLS of the bus: %s: holds no PEM certificate", o.CAFile)
		}
	}
	if o.CertFile != "" {
		if _, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile); err != nil {
			return nil, fmt.Errorf("TLS of the bus: %w", err)
		}
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			c, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
			return &c, err
		}
	}
	return append(opts, nats.Secure(conf)), nil
}

func readToken(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("token of the bus: %w", err)
	}
	t := strings.TrimSpace(string(b))
	if t == "" {
		return "", fmt.Errorf("token of the bus: %s is empty", path)
	}
	return t, nil
}
