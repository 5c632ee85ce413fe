// Demo shows the whole path: files, log, versions, a real Envoy that answers
// requests; a canary that costs no request; and Envoy serving on while
// everything else is dead. `make demo` builds what it needs and runs it.
//
// On a terminal it stays up until Ctrl-C. Otherwise it ends with code 0 once
// every step was seen to hold, 1 if one did not.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"
)

// patience is how long all steps together may take.
const patience = 2 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	terminal := term.IsTerminal(int(os.Stdout.Fd()))
	if err := run(ctx, &printer{w: os.Stdout, colours: terminal}, terminal); err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted")
		}
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, p *printer, terminal bool) (err error) {
	dir, err := os.MkdirTemp("", "meshlog-demo-")
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			err = os.RemoveAll(dir)
		} else {
			fmt.Fprintln(os.Stderr, "demo: what the processes printed is in", dir)
		}
	}()
	s := &stage{printer: p, dir: dir}
	defer s.end()

	steps, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the demo did not end within %s", patience))
	defer cancel()
	for _, step := range []func(context.Context) error{s.set, s.canary, s.alone, s.fromDisk} {
		if err := step(steps); err != nil {
			return err
		}
	}
	if !terminal {
		return nil
	}
	if err := s.again(steps); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case <-s.envoy.Done():
		return s.envoy.Running()
	}
}
