// Compose tests the deployment of deploy/compose.yaml with a real Docker engine;
// `make test-compose` runs it. It checks that the deployment comes up and serves,
// that a gateway serves HTTPS and two services speak mutual TLS, that the services of
// each registry are served, that frontends can be added and removed under load, that any
// container may die, and that the data outlives the containers. It creates a project of
// its own, with free ports, and removes it at the end.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/certtest"
)

// limit bounds the whole run, and cleanup the removal after it.
const (
	limit   = 10 * time.Minute
	cleanup = time.Minute
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run returns the exit code: 2 if it does not understand the arguments.
func run(ctx context.Context, args []string, out, errs io.Writer) int {
	fs := flag.NewFlagSet("compose", flag.ContinueOnError)
	fs.SetOutput(errs)
	age := fs.Duration("age", 15*time.Second, "`age` at which streams end, --max-stream-age of the frontends")
	if err := fs.Parse(args); err != nil || fs.NArg() > 0 || *age < time.Second {
		fmt.Fprintln(errs, "Usage: compose [-age 15s]   after `make images`; the age is at least a second")
		return 2
	}
	if err := test(ctx, out, *age); err != nil {
		fmt.Fprintln(errs, "compose:", err)
		return 1
	}
	return 0
}

func test(ctx context.Context, out io.Writer, age time.Duration) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done after %s", limit))
	defer cancel()
	dir, err := os.MkdirTemp("", "meshlog-compose-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	p, err := newProject(ctx, dir, age)
	if err != nil {
		return err
	}
	t := &trial{project: p, out: out, age: age}
	defer func() {
		t.stop()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
		defer cancel()
		if err != nil {
			fmt.Fprintln(out, p.logs(ctx))
		}
		err = errors.Join(err, p.remove(ctx))
	}()
	began := time.Now()
	for _, s := range t.steps() {
		if err := t.step(ctx, s); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "All of it in %s.\n", time.Since(began).Round(time.Second))
	return nil
}

// trial is one run. The goroutine that runs the steps owns its fields.
type trial struct {
	*project
	out io.Writer
	age time.Duration

	loads   map[string]*rig.Load // running loads, by Envoy
	streams *streams
	edgeCA  *certtest.CA // of the certificates that replace the gateway's first one
	shopper *shopper
	weights int // the version that answers: an index of versions
}

// step is one event; its figure is a measurement to print.
type step struct {
	name string
	do   func(context.Context) (figure string, err error)
}

func (t *trial) step(ctx context.Context, s step) error {
	began := time.Now()
	figure, err := s.do(ctx)
	took := time.Since(began).Round(100 * time.Millisecond)
	if err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	fmt.Fprintf(t.out, "%7s  %-28s %s\n", took, s.name, figure)
	return nil
}

// stop ends the loads and streams.
func (t *trial) stop() {
	for _, l := range t.loads {
		l.Stop()
	}
	t.loads = nil
	if t.streams != nil {
		t.streams.stop()
		t.streams = nil
	}
}
