package bus

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"meshlog.dev/services/internal/loglimit"
)

// ServerOptions describe an embedded server.
type ServerOptions struct {
	// Dir is the data directory; the server makes it if it is missing. It keeps
	// JetStream in Dir/nats, its users in Dir/auth and its address in Dir/bus, and
	// locks Dir/lock.
	Dir string
	// Listen is the TCP address; port 0 takes a free one. Empty: only
	// connections within this process, and no bus file.
	Listen string
	// Accounts writes AccountsName, a configuration with the accounts of all roles,
	// and the keys of their users into Dir/auth; see busauth.Accounts. nil: only
	// connections within this process without a role, as administrator.
	Accounts func(dir string) error
	Log      *slog.Logger
}

// AccountsName is the name of the file with the accounts.
const AccountsName = "auth.conf"

// Names of accounts.
const (
	// HubAccount has the streams.
	HubAccount = "MESHLOG"
	// SystemAccount is the server's own. It has no user.
	SystemAccount = "SYS"
)

// Server is a NATS server in this process, with JetStream on disk. It syncs every
// write to the disk before it acknowledges it.
type Server struct {
	ns   *server.Server
	lock *os.File
	file string // path of the bus file; empty if there is none
	url  string
	auth string        // directory of the keys; empty if there are no roles
	own  nkeys.KeyPair // key of the administrator within this process
	// temporary is the directory of a copy; Close removes it.
	temporary string
}

// streamsDir is the directory of JetStream within the data directory.
const streamsDir = "nats"

// Times and limits of the server. When it ends, it notifies its clients, waits for
// the grace period, and closes their connections within the rest of the time.
// There is no other server for them, so the time is short.
const (
	serverStart     = 30 * time.Second
	lameDuckGrace   = 50 * time.Millisecond
	lameDuckInAll   = 300 * time.Millisecond
	maxStreamBytes  = 64 << 30
	maxMemoryBytes  = 1 << 30
	streamConsumers = 20_000 // the default, 1000, is too low for a fleet
)

// StartServer starts a server and returns when it accepts connections. The caller
// closes it.
func StartServer(o ServerOptions) (_ *Server, err error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	lock, err := lockDir(o.Dir)
	if err != nil {
		return nil, err
	}
	s := &Server{lock: lock}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if err := adoptStreams(o.Dir); err != nil {
		return nil, err
	}
	opts, err := s.accounts(o)
	if err != nil {
		return nil, fmt.Errorf("accounts of the embedded bus: %w", err)
	}
	opts.ServerName, opts.NoSigs, opts.NoLog = "meshlog", true, true
	opts.JetStream, opts.StoreDir, opts.SyncAlways = true, filepath.Join(o.Dir, streamsDir), true
	opts.JetStreamMaxStore, opts.JetStreamMaxMemory = maxStreamBytes, maxMemoryBytes
	opts.JetStreamLimits = server.JSLimitOpts{DefaultMaxConsumers: streamConsumers}
	opts.LameDuckDuration, opts.LameDuckGracePeriod = lameDuckInAll, lameDuckGrace
	if opts.DontListen = o.Listen == ""; !opts.DontListen {
		if opts.Host, opts.Port, err = splitListen(o.Listen); err != nil {
			return nil, err
		}
	}
	if s.ns, err = server.NewServer(opts); err != nil {
		return nil, fmt.Errorf("embedded bus: %w", err)
	}
	logger := &serverLogger{log: loglimit.New(o.Log, serverLines)}
	s.ns.SetLoggerV2(logger, false, false, false)
	s.ns.Start()
	ready := logger.fatal.Load() == nil && s.ns.ReadyForConnections(serverStart)
	if fatal := logger.fatal.Load(); fatal != nil {
		return nil, fmt.Errorf("embedded bus on %s: %s", o.Dir, *fatal)
	}
	if !ready {
		return nil, fmt.Errorf("embedded bus on %s: not ready after %v", o.Dir, serverStart)
	}
	if o.Listen == "" {
		return s, nil
	}
	s.url = s.ns.ClientURL()
	s.file = filepath.Join(o.Dir, FileName)
	if err := (File{URL: s.url, PID: os.Getpid()}).write(s.file); err != nil {
		return nil, err
	}
	return s, nil
}

// splitListen parses a listen address. Port 0 becomes -1, a free port for the server.
func splitListen(addr string) (host string, port int, err error) {
	host, p, err := net.SplitHostPort(addr)
	if err == nil {
		port, err = strconv.Atoi(p)
	}
	if err != nil {
		return "", 0, fmt.Errorf("listen address of the bus: %w", err)
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	return host, port, nil
}

// URL returns the address of the server, empty if it does not listen.
func (s *Server) URL() string { return s.url }

// accounts returns options with the accounts, and makes the key of the
// administrator within this process.
func (s *Server) accounts(o ServerOptions) (*server.Options, error) {
	opts := new(server.Options)
	var err error
	switch {
	case o.Accounts != nil:
		s.auth = filepath.Join(o.Dir, authDir)
		if err := o.Accounts(s.auth); err != nil {
			return nil, err
		}
		opts, err = server.ProcessConfigFile(filepath.Join(s.auth, AccountsName))
	case o.Listen != "":
		err = errors.New("a server that listens needs accounts for its clients")
	default:
		err = opts.ProcessConfigString(fmt.Sprintf("accounts { %s {}, %s { jetstream: enabled } }\nsystem_account: %[1]s\n", SystemAccount, HubAccount))
	}
	if err != nil {
		return nil, err
	}
	if s.own, err = nkeys.CreateUser(); err != nil {
		return nil, err
	}
	public, err := s.own.PublicKey()
	if err != nil {
		return nil, err
	}
	hub := slices.IndexFunc(opts.Accounts, func(a *server.Account) bool { return a.Name == HubAccount })
	if hub < 0 {
		return nil, fmt.Errorf("there is no account %s", HubAccount)
	}
	opts.Nkeys = append(opts.Nkeys, &server.NkeyUser{Nkey: public, Account: opts.Accounts[hub]})
	return opts, nil
}

// key returns the option with which a client in this process connects. A client
// without a role is the administrator.
func (s *Server) key(r Role) (nats.Option, error) {
	if r != (Role{}) && s.auth != "" {
		path, err := keyOf(filepath.Join(filepath.Dir(s.auth), FileName), r)
		if err != nil {
			return nil, err
		}
		return nats.NkeyOptionFromSeed(path)
	}
	public, err := s.own.PublicKey()
	return nats.Nkey(public, s.own.Sign), err
}

// adoptStreams moves the streams in a data directory of an older build, which had
// one account for all, to the account of this build. Sequences and settings stay.
func adoptStreams(dir string) error {
	old, hub := accountDir(dir, server.DEFAULT_GLOBAL_ACCOUNT), accountDir(dir, HubAccount)
	if _, err := os.Stat(old); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if _, err := os.Stat(hub); err == nil {
		return fmt.Errorf("%s and %s both hold streams: an older build has run on this directory after a newer one; move one of the two away", old, hub)
	}
	if err := os.Rename(old, hub); err != nil {
		return fmt.Errorf("streams of an older build: %w", err)
	}
	return nil
}

// accountDir returns the directory with the streams of an account.
func accountDir(dir, account string) string {
	return filepath.Join(dir, streamsDir, server.JetStreamStoreDir, account)
}

// Close disconnects the clients and stops the server. Close the connections of this
// process first, so that no request is cut off.
func (s *Server) Close() error {
	var errs []error
	if s.file != "" {
		if err := os.Remove(s.file); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if s.ns != nil {
		s.ns.LameDuckShutdown() // does nothing if the server does not listen
		s.ns.Shutdown()
		s.ns.WaitForShutdown()
	}
	// The lock last: the directory is free when the server has stopped writing.
	errs = append(errs, s.lock.Close())
	if s.temporary != "" {
		errs = append(errs, os.RemoveAll(s.temporary))
	}
	return errors.Join(errs...)
}

// serverLogger passes the server's log lines on. It keeps a fatal one, which
// StartServer returns as an error.
type serverLogger struct {
	log   *loglimit.Logger
	fatal atomic.Pointer[string]
}

// Noticef implements server.Logger. The server writes many notices.
func (l *serverLogger) Noticef(format string, v ...any) { l.log.Debug(fmt.Sprintf(format, v...)) }

// serverLines is how many lines of one format the server may log in a second: it
// logs every message that a client must not publish.
const serverLines = 5

// Warnf implements server.Logger.
func (l *serverLogger) Warnf(format string, v ...any) {
	l.log.Line(slog.LevelWarn, format, fmt.Sprintf(format, v...))
}

// Errorf implements server.Logger.
func (l *serverLogger) Errorf(format string, v ...any) {
	l.log.Line(slog.LevelError, format, fmt.Sprintf(format, v...))
}

// Debugf implements server.Logger.
func (l *serverLogger) Debugf(string, ...any) {}

// Tracef implements server.Logger.
func (l *serverLogger) Tracef(string, ...any) {}

// Fatalf implements server.Logger.
func (l *serverLogger) Fatalf(format string, v ...any) {
	m := fmt.Sprintf(format, v...)
	l.fatal.CompareAndSwap(nil, &m)
}
