// Demo shows the whole path: files, log, versions, and a real Envoy that answers
// requests. A canary fails no request, Envoy keeps serving while every other
// process is dead, and meshlog serves from its data directory while every file is
// broken. `make demo` builds the programs and runs it. `demo kubernetes` shows
// the path from objects that are applied to a real API server; `make
// demo-kubernetes` runs that. `demo mesh` shows HTTPS, mutual TLS, identities and
// policies; `make demo-mesh` runs that.
//
// On a terminal the demo stays up until Ctrl-C. Otherwise it ends with code 0 if
// every step held, and with 1 if one did not.
package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"golang.org/x/term"

	"meshlog.dev/deploy/e2e/rig"
)

// patience bounds all steps together.
const patience = 3 * time.Minute

// isolated are the demos that have a network of their own.
var isolated = map[string]func(scene) play{"kubernetes": newClusterStage, "mesh": newSecureStage}

func main() {
	play := newStage
	if len(os.Args) > 1 {
		var known bool
		if play, known = isolated[os.Args[1]]; !known || len(os.Args) > 2 {
			fmt.Fprintln(os.Stderr, "demo: want no argument, or one of", slices.Sorted(maps.Keys(isolated)))
			os.Exit(2)
		}
		if err := rig.Isolate(); err != nil {
			fmt.Fprintln(os.Stderr, "demo:", err)
			os.Exit(1)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	terminal := term.IsTerminal(int(os.Stdout.Fd()))
	if err := run(ctx, &printer{w: os.Stdout, colours: terminal}, play, terminal); err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted")
		}
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// step is a chapter of a demo.
type step func(context.Context) error

// play is one of the demos.
type play interface {
	steps() []step
	// yours prints the commands that a user at the terminal can try.
	yours(context.Context) error
	proxy() *rig.Envoy
	end()
}

// ended returns a channel that is closed once e has ended; never, if a demo shows several.
func ended(e *rig.Envoy) <-chan struct{} {
	if e == nil {
		return nil
	}
	return e.Done()
}

func run(ctx context.Context, p *printer, begin func(scene) play, terminal bool) (err error) {
	dir, err := os.MkdirTemp("", "meshlog-demo-")
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			err = os.RemoveAll(dir)
		} else {
			fmt.Fprintln(os.Stderr, "demo: the output of the processes is in", dir)
		}
	}()
	s := begin(scene{printer: p, dir: dir})
	defer s.end()

	steps, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the demo did not end within %s", patience))
	defer cancel()
	for _, step := range s.steps() {
		if err := step(steps); err != nil {
			return err
		}
	}
	if !terminal {
		return nil
	}
	if err := s.yours(steps); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case <-ended(s.proxy()):
		return s.proxy().Running()
	}
}
