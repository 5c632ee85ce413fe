package program

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"
)

const (
	// serverGrace is the time that Stop gives a server to end after SIGTERM.
	serverGrace = 30 * time.Second
	// serverPatience is how long a server may take until it is ready.
	serverPatience = 2 * time.Minute
)

// Server is a program that is ready some time after its start, such as etcd. It keeps
// its arguments, and so its ports and data, when it is restarted. Its methods must not
// be called concurrently.
type Server struct {
	*Process // the process of the last start; nil before the first

	Name, Dir string // Dir has its output, as for Start
	Data      string // its data directory, for Wipe
	Argv, Env []string
	Ready     func(ctx context.Context) error // returns nil when the server is ready
}

// Start starts the server, which must not be running, and waits until it is ready. It
// kills a server that does not get ready.
func (s *Server) Start(ctx context.Context) error {
	if s.Running() {
		return fmt.Errorf("start %s: it is already running", s.Name)
	}
	var err error
	if s.Process, err = Start(s.Name, s.Dir, s.Argv, s.Env...); err != nil {
		return err
	}
	s.Grace = serverGrace
	ctx, cancel := context.WithTimeout(ctx, serverPatience)
	defer cancel()
	if err := s.UntilAlive(ctx, s.Name+" to be ready", s.Ready); err != nil {
		s.Kill()
		return err
	}
	return nil
}

// Running reports whether the server was started and has not ended. A paused server is
// running.
func (s *Server) Running() bool { return s.Process != nil && s.Process.Running() == nil }

// Stop sends SIGTERM and waits until the server has ended, whatever its exit code. After
// half a minute it kills the server and returns an error. Stop does nothing if the server
// is not running.
func (s *Server) Stop() error {
	if !s.Running() {
		return nil
	}
	err := s.Process.Stop()
	if errors.As(err, new(*exec.ExitError)) {
		return nil
	}
	return err
}

// Kill kills the server, as a crash would, and waits until it has ended. Kill does
// nothing if the server is not running.
func (s *Server) Kill() {
	if s.Running() {
		s.Process.Kill()
	}
}

// Wipe deletes the data of the server, which must not be running.
func (s *Server) Wipe() error {
	if s.Running() {
		return fmt.Errorf("wipe %s: it is running", s.Name)
	}
	return os.RemoveAll(s.Data)
}

// Restart kills the server if it is running, starts it, and waits until it is ready.
func (s *Server) Restart(ctx context.Context) error {
	s.Kill()
	return s.Start(ctx)
}
