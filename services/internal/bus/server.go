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

// ServerOptions describe an embedded server.
type ServerOptions struct {
	// Dir is the data directory; the server makes it if it is missing. It keeps
	// JetStream in Dir/nats and its address in Dir/bus, and locks Dir/lock.
	Dir string
	// Listen is the TCP address; port 0 takes a free one. Empty: only
	// connections within this process, and no bus file.
	Listen string
	Log    *slog.Logger
}

// Server is a NATS server in this process, with JetStream on disk. It syncs every
// write to the disk before it acknowledges it.
type Server struct {
	ns    *server.Server
	lock  *os.File
	file  string // path of the bus file; empty if there is none
	url   string
	token string
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
	if err := (File{URL: s.url, Token: s.token, PID: os.Getpid()}).write(s.file); err != nil {
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

// Token returns the token that clients of the server need.
func (s *Server) Token() string { return s.token }

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
	log   *slog.Logger
	fatal atomic.Pointer[string]
}

// Noticef implements server.Logger. The server writes many notices.
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
