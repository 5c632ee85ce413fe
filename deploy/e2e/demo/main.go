// Demo shows the whole path: files, log, versions, and a real Envoy that answers
// requests. A canary fails no request, Envoy keeps serving while every other
// process is dead, and meshlog serves from its data directory while every file is
// broken. `make demo` builds the programs and runs it. `demo kubernetes` shows
// the path from objects that are applied to a real API server; `make
// demo-kubernetes` runs that. `demo mesh` shows HTTPS, mutual TLS, identities and
// policies; `make demo-mesh` runs that. `demo registries` shows a service that moves from
// Consul to Nacos while both fail; `make demo-registries` runs that.
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
const patience = 5 * time.Minute

// named are the demos besides the first one.
var named = map[string]struct {
	begin    func(scene) play
	isolated bool // it has a network of its own
}{
	"kubernetes": {newClusterStage, true},
	"mesh":       {newSecureStage, true},
	"registries": {newRegistriesStage, false},
}

func main() {
	begin := newStage
	if len(os.Args) > 1 {
		demo, known := named[os.Args[1]]
		if !known || len(os.Args) > 2 {
			fmt.Fprintln(os.Stderr, "demo: want no argument, or one of", slices.Sorted(maps.Keys(named)))
			os.Exit(2)
		}
		begin = demo.begin
		if demo.isolated {
			if err := rig.Isolate(); err != nil {
				fmt.Fprintln(os.Stderr, "demo:", err)
				os.Exit(1)
			}
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	terminal := term.IsTerminal(int(os.Stdout.Fd()))
	if err := run(ctx, &printer{w: os.Stdout, colours: terminal}, begin, terminal); err != nil {
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
