// Package child runs an Envoy as a child process: it starts it again after a crash, and
// replaces it by a hot restart when its bootstrap changes (AGT-2).
package child

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"meshlog.dev/services/internal/seal"
)

// Times of restarts.
const (
	firstPause = 200 * time.Millisecond
	lastPause  = 10 * time.Second
	// stable is how long an Envoy has run that counts as good: crashes before are
	// forgotten.
	stable = time.Minute
	// budget is how many crashes in a row end the agent, whose supervisor knows what to
	// do.
	budget = 10
	// parentMargin is how much later than the drain time the old epoch of a hot restart
	// ends.
	parentMargin = 15 * time.Second
	// grace is how long Envoys have to end after SIGTERM.
	grace = 5 * time.Second
)

// Command holds the program of an epoch of Envoy, its arguments and its user.
type Command struct {
	Path string
	Args []string
	// UID and GID are of the user that runs it; negative: this process's.
	UID, GID int
	Output   io.Writer
}

// Config configures a Supervisor.
type Config struct {
	Command
	// Dir gets the bootstraps. It belongs to the user that runs Envoy.
	Dir string
	// Drain is the time in which the old epoch of a hot restart sends its clients away.
	Drain time.Duration
	Log   *slog.Logger
	// Starter starts processes.
	Starter Starter
}

// Starter starts a process.
type Starter func(Command) (Process, error)

// Process is a started process.
type Process interface {
	PID() int
	Signal(os.Signal) error
	// Wait returns how the process ended.
	Wait() error
}

// epoch is a running Envoy.
type epoch struct {
	Process

	number    int
	bootstrap string
	since     time.Time
}

type ended struct {
	e   *epoch
	err error
}

// Supervisor runs Envoys.
type Supervisor struct {
	Config

	wanted chan string
	ends   chan ended
	renew  chan struct{} // has room; wakes Run

	mu       sync.Mutex
	epochs   []*epoch // those that run, the oldest first
	next     int      // the number of the next epoch
	life     int      // counts Envoys that were not hot restarts
	crashes  int      // in a row
	restarts int      // hot ones
	stale    bool     // the newest epoch is to be replaced, though its bootstrap has not changed
}

// New returns a Supervisor. It starts nothing until it has a bootstrap.
func New(c Config) *Supervisor {
	return &Supervisor{Config: c, wanted: make(chan string), ends: make(chan ended), renew: make(chan struct{}, 1)}
}

// Want sets the bootstrap. Envoy is started with it, or replaced.
func (s *Supervisor) Want(ctx context.Context, bootstrap []byte) {
	select {
	case s.wanted <- string(bootstrap):
	case <-ctx.Done():
	}
}

// EndConnections replaces Envoy by a hot restart, so that all connections of its clients
// end. It returns when the last of those that stand now has ended, or an error if no Envoy
// runs.
func (s *Supervisor) EndConnections() (until time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.epochs) == 0 {
		return until, errors.New("no Envoy runs")
	}
	until = time.Now()
	if len(s.epochs) > 1 { // one hot restart at a time
		until = s.ending(s.epochs[len(s.epochs)-1].since)
	}
	s.stale = true
	select {
	case s.renew <- struct{}{}:
	default:
	}
	return s.ending(until), nil
}

// ending returns when the epoch before a hot restart has ended, by the time of that.
func (s *Supervisor) ending(restart time.Time) time.Time {
	return restart.Add(s.Drain + parentMargin)
}

// Run runs Envoys until ctx is done, and then ends them.
func (s *Supervisor) Run(ctx context.Context) error {
	defer s.stop()
	var bootstrap string
	var pause <-chan time.Time // nil: start when there is something to start
	for {
		if pause == nil {
			if err := s.step(bootstrap); err != nil {
				s.Log.Error("cannot start Envoy", "error", err)
				if pause, err = s.crashed(err); err != nil {
					return err
				}
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case bootstrap = <-s.wanted:
		case <-s.renew:
		case <-pause:
			pause = nil
		case e := <-s.ends:
			if !s.gone(e) {
				continue
			}
			var err error
			if pause, err = s.crashed(e.err); err != nil {
				return err
			}
		}
	}
}

// step starts an Envoy if one is missing, or if it has another bootstrap or is stale. It
// waits until an earlier hot restart is complete.
func (s *Supervisor) step(bootstrap string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case bootstrap == "" || len(s.epochs) > 1:
		return nil
	case len(s.epochs) == 0:
		s.next, s.life = 0, s.life+1
	case s.epochs[0].bootstrap != bootstrap:
		s.Log.Info("replacing Envoy by a hot restart: its bootstrap has changed", "epoch", s.next)
		s.restarts++
	case s.stale:
		s.Log.Info("replacing Envoy by a hot restart, so that all connections end", "epoch", s.next)
		s.restarts++
	default:
		return nil
	}
	s.stale = false
	return s.start(bootstrap)
}

// start starts the next epoch; s.mu is locked.
func (s *Supervisor) start(bootstrap string) error {
	path := filepath.Join(s.Dir, fmt.Sprintf("envoy-%d.json", s.next))
	if err := seal.WriteFile(path, []byte(bootstrap)); err != nil {
		return err
	}
	if s.UID >= 0 && s.UID != os.Geteuid() {
		if err := os.Chown(path, s.UID, s.GID); err != nil {
			return err
		}
	}
	c := s.Command
	c.Args = slices.Concat([]string{
		"-c", path, "--restart-epoch", strconv.Itoa(s.next),
		"--drain-time-s", seconds(s.Drain), "--parent-shutdown-time-s", seconds(s.Drain + parentMargin),
	}, s.baseID(), c.Args)
	p, err := s.Starter(c)
	if err != nil {
		return err
	}
	e := &epoch{p, s.next, bootstrap, time.Now()}
	s.epochs = append(s.epochs, e)
	s.next++
	s.Log.Info("started Envoy", "epoch", e.number, "pid", p.PID())
	go func() { // ends with the process
		err := p.Wait()
		s.ends <- ended{e, err}
	}()
	return nil
}

// baseID returns the flags for the base id, by which the epochs of one Envoy find each
// other. The first epoch chooses one that no other Envoy on this machine has.
func (s *Supervisor) baseID() []string {
	file := filepath.Join(s.Dir, fmt.Sprintf("base-id-%d", s.life))
	if s.next == 0 {
		return []string{"--use-dynamic-base-id", "--base-id-path", file}
	}
	id, err := os.ReadFile(file)
	if err != nil {
		s.Log.Warn("the base id of Envoy is unknown; it may be that of another one", "error", err)
		return nil
	}
	return []string{"--base-id", strings.TrimSpace(string(id))}
}

func seconds(d time.Duration) string { return strconv.Itoa(int(d.Round(time.Second) / time.Second)) }

// gone forgets an epoch that has ended, and reports whether that was a crash.
func (s *Supervisor) gone(e ended) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.epochs, e.e)
	newest := i == len(s.epochs)-1
	s.epochs = slices.Delete(s.epochs, i, i+1)
	if !newest {
		s.Log.Info("the epoch of Envoy before a hot restart has ended", "epoch", e.e.number, "error", e.err)
		return false
	}
	if len(s.epochs) > 0 {
		s.next = e.e.number // the next one takes its place
	}
	if time.Since(e.e.since) >= stable {
		s.crashes = 0
	}
	s.Log.Error("Envoy has ended", "epoch", e.e.number, "error", e.err, "ran", time.Since(e.e.since).Round(time.Millisecond))
	return true
}

// crashed counts a crash and returns when to start again.
func (s *Supervisor) crashed(reason error) (<-chan time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.crashes++
	if s.crashes > budget {
		return nil, fmt.Errorf("the Envoy ended %d times in a row, within %s each: %w", s.crashes, stable, errors.Join(reason, errors.New("its log says why")))
	}
	return time.After(min(firstPause<<(s.crashes-1), lastPause)), nil
}

// Signal sends a signal to all Envoys.
func (s *Supervisor) Signal(sig os.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.epochs {
		_ = e.Signal(sig) // fails only if it has ended
	}
}

// stop ends all Envoys and waits until they have ended.
func (s *Supervisor) stop() {
	s.Signal(syscall.SIGTERM)
	kill := time.NewTimer(grace)
	defer kill.Stop()
	for s.running() > 0 {
		select {
		case e := <-s.ends:
			s.mu.Lock()
			s.epochs = slices.DeleteFunc(s.epochs, func(o *epoch) bool { return o == e.e })
			s.mu.Unlock()
		case <-kill.C:
			s.Log.Warn("Envoy did not end in time; killing it", "after", grace)
			s.Signal(syscall.SIGKILL)
		}
	}
}

func (s *Supervisor) running() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.epochs)
}

// Report describes the Envoys for people.
type Report struct {
	PIDs        []int `json:"pids"`
	Epoch       int   `json:"epoch"`
	HotRestarts int   `json:"hotRestarts"`
	Crashes     int   `json:"crashesInARow"`
	Starts      int   `json:"starts"` // not hot
}

// Report returns the state.
func (s *Supervisor) Report() Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := Report{HotRestarts: s.restarts, Crashes: s.crashes, Starts: s.life, Epoch: s.next - 1}
	for _, e := range s.epochs {
		r.PIDs = append(r.PIDs, e.PID())
	}
	return r
}
