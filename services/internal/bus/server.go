package bus

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// ServerOptions say how an embedded server runs.
type ServerOptions struct {
	// Dir is the data directory, made if it is missing. The server keeps
	// JetStream in Dir/nats and its address in Dir/bus, and locks Dir/lock.
	Dir string
	// Listen is the TCP address; port 0 takes a free one. Empty: only
	// connections within this process, and no bus file.
	Listen string
	Log    *slog.Logger
}

// Server is a NATS server in this process, with JetStream on disk. What it has
// acknowledged is on the disk: every write is synced first.
type Server struct {
	ns    *server.Server
	lock  *os.File
	file  string // path of the bus file; empty if there is none
	url   string
	token string
	// temporary is the directory of a copy, which goes with the server.
	temporary string
}

// streamsDir is the server's own, within the data directory.
const streamsDir = "nats"

// How long the server may take to start, and how its clients are sent away:
// they are told, get the grace period, and are then closed within the rest.
// There is no other server to spread them over, so it is short.
const (
	serverStart     = 30 * time.Second
	lameDuckGrace   = 50 * time.Millisecond
	lameDuckInAll   = 300 * time.Millisecond
	maxStreamBytes  = 64 << 30
	maxMemoryBytes  = 1 << 30
	streamConsumers = 20_000 // the server's own default, 1000, is below a fleet
)

// StartServer starts a server and returns once it takes connections. The
// caller closes it.
func StartServer(o ServerOptions) (_ *Server, err error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	lock, err := lockDir(o.Dir)
	if err != nil {
		return nil, err
	}
	s := &Server{lock: lock, token: rand.Text()}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	opts := &server.Options{
		ServerName: "meshlog", DontListen: o.Listen == "", NoSigs: true,
		Authorization: s.token,
		JetStream:     true, StoreDir: filepath.Join(o.Dir, streamsDir), SyncAlways: true,
		JetStreamMaxStore: maxStreamBytes, JetStreamMaxMemory: maxMemoryBytes,
		JetStreamLimits:  server.JSLimitOpts{DefaultMaxConsumers: streamConsumers},
		LameDuckDuration: lameDuckInAll, LameDuckGracePeriod: lameDuckGrace,
	}
	if o.Listen != "" {
		if opts.Host, opts.Port, err = splitListen(o.Listen); err != nil {
			return nil, err
		}
	}
	if s.ns, err = server.NewServer(opts); err != nil {
		return nil, fmt.Errorf("embedded bus: %w", err)
	}
	logger := &serverLogger{log: o.Log}
	s.ns.SetLoggerV2(logger, false, false, false)
	s.ns.Start()
	fatal := logger.fatal.Load()
	if fatal == nil && s.ns.ReadyForConnections(serverStart) {
		fatal = logger.fatal.Load()
	} else if fatal == nil {
		return nil, fmt.Errorf("embedded bus on %s: not ready after %v", o.Dir, serverStart)
	}
	if fatal != nil {
		return nil, fmt.Errorf("embedded bus on %s: %s", o.Dir, *fatal)
	}
	if o.Listen == "" {
		return s, nil
	}
	s.url = s.ns.ClientURL()
	s.file = filepath.Join(o.Dir, FileName)
	if err := (File{URL: s.url, Token: s.token, PID: os.Getpid()}).write(s.file); err != nil {
		return nil, err
	}
	return s, nil
}

// splitListen reads a listen address; the server's word for "a free port" is -1.
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

// URL returns where the server listens; empty if it does not.
func (s *Server) URL() string { return s.url }

// Token opens the server.
func (s *Server) Token() string { return s.token }

// Close sends the clients away and stops the server. Connections of this
// process should be closed before, so that nothing is cut off.
func (s *Server) Close() error {
	var errs []error
	if s.file != "" {
		if err := os.Remove(s.file); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if s.ns != nil {
		s.ns.LameDuckShutdown() // nothing to do where nobody listens
		s.ns.Shutdown()
		s.ns.WaitForShutdown()
	}
	// The lock last: the directory is free when nobody writes there any more.
	errs = append(errs, s.lock.Close())
	if s.temporary != "" {
		errs = append(errs, os.RemoveAll(s.temporary))
	}
	return errors.Join(errs...)
}

// serverLogger hands the server's log lines on. What the server calls fatal is
// kept for StartServer, which returns it.
type serverLogger struct {
	log   *slog.Logger
	fatal atomic.Pointer[string]
}

// Noticef implements server.Logger; notices are the server's small talk.
func (l *serverLogger) Noticef(format string, v ...any) { l.log.Debug(fmt.Sprintf(format, v...)) }

// Warnf implements server.Logger.
func (l *serverLogger) Warnf(format string, v ...any) { l.log.Warn(fmt.Sprintf(format, v...)) }

// Errorf implements server.Logger.
func (l *serverLogger) Errorf(format string, v ...any) { l.log.Error(fmt.Sprintf(format, v...)) }

// Debugf implements server.Logger.
func (l *serverLogger) Debugf(string, ...any) {}

// Tracef implements server.Logger.
func (l *serverLogger) Tracef(string, ...any) {}

// Fatalf implements server.Logger.
func (l *serverLogger) Fatalf(format string, v ...any) {
	m := fmt.Sprintf(format, v...)
	l.fatal.CompareAndSwap(nil, &m)
}
