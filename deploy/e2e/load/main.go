// Load measures meshlog under many proxies: how long all of them take to get a
// first sync at once, a changed endpoint and a changed route, and what that costs
// the frontend. It compares the results with the floor: a grpc-go server that
// only writes the same bytes. `make bench` builds the programs and runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"meshlog.dev/deploy/e2e/load/fleet"
	"meshlog.dev/deploy/e2e/rig"
)

const (
	// patience is the limit of the whole run.
	patience = 10 * time.Minute
	// most is the largest number of proxies: each is a connection, and a machine's
	// ports and files are limited.
	most = 2000
	// garbage makes this process collect less often: its memory is not measured,
	// but its processor time is.
	garbage = 400
)

func main() {
	debug.SetGCPercent(garbage)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the load run did not end within %s", patience))
	defer cancel()
	if err := command(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		stop()
		cancel()
		os.Exit(1)
	}
}

// commands are the measurements besides the standard one, and the processes that a
// measurement starts.
var commands = map[string]func(ctx context.Context, args []string) error{
	floorCommand: serveFloor,
	herdCommand:  func(ctx context.Context, _ []string) error { return beHerd(ctx, os.Stdin, os.Stdout) },
	stormCommand: func(ctx context.Context, args []string) error {
		return measured(ctx, args, parseStorm, runStorms, printStorms)
	},
	joinCommand: func(ctx context.Context, args []string) error {
		return measured(ctx, args, parseJoin, runJoins, printJoins)
	},
	keysCommand: func(ctx context.Context, args []string) error {
		return measured(ctx, args, parseKeys, runKeys, printKeys)
	},
	policiesCommand: func(ctx context.Context, args []string) error {
		return measured(ctx, args, parsePolicies, runPolicies, printPolicies)
	},
	handshakesCommand: func(ctx context.Context, args []string) error {
		return measured(ctx, args, parseHandshakes, runHandshakes, printHandshakes)
	},
	issuingCommand: func(ctx context.Context, args []string) error {
		return measured(ctx, args, parseIssuing, runIssuing, printIssuing)
	},
	kubernetesCommand: func(ctx context.Context, args []string) error {
		// The cluster's endpoints have addresses of networks that may exist.
		if err := rig.Isolate(); err != nil {
			return err
		}
		return measured(ctx, args, parseKubernetes, runKubernetes, func(w io.Writer, _ kubernetesPlan, r *kubernetesResults) { r.print(w) })
	},
}

// command runs the command that args name.
func command(ctx context.Context, args []string) error {
	if len(args) > 0 {
		if c, ok := commands[args[0]]; ok {
			return c(ctx, args[1:])
		}
	}
	return measured(ctx, args, parse, run, func(w io.Writer, _ plan, r *results) { r.print(w) })
}

// measured reads the flags of a measurement, makes it, and prints its result.
func measured[P, R any](
	ctx context.Context, args []string,
	parse func([]string) (P, error), run func(context.Context, P) (R, error), print func(io.Writer, P, R),
) error {
	p, err := parse(args)
	if err != nil {
		return err
	}
	r, err := run(ctx, p)
	if err != nil {
		return err
	}
	print(os.Stdout, p, r)
	return nil
}

// parse reads the flags of a load run.
func parse(args []string) (plan, error) {
	p := standard
	fs := flag.NewFlagSet("load", flag.ContinueOnError)
	fs.Func("streams", "numbers of proxies, as `N,N,...`; at most 2000 each", numbers(&p.streams))
	fs.Func("classes", "numbers of namespaces to spread the proxies over, as `N,N,...`", numbers(&p.classes))
	fs.IntVar(&p.size.Services, "services", p.size.Services, "`services` in the mesh")
	fs.IntVar(&p.size.Endpoints, "endpoints", p.size.Endpoints, "`endpoints` of each service")
	fs.IntVar(&p.size.Policies, "policies", p.size.Policies, "`policies` that each select all proxies; at most 1000")
	fs.IntVar(&p.rounds, "rounds", p.rounds, "`changes` of each kind; at most 100")
	fs.Func("mode", "variant of xDS: `sotw` or delta", func(s string) error {
		for _, m := range []fleet.Mode{fleet.SotW, fleet.Delta} {
			if s == m.String() {
				p.mode = m
				return nil
			}
		}
		return errors.New("want sotw or delta")
	})
	if err := fs.Parse(args); err != nil {
		return p, err
	}
	return p, p.check()
}

func numbers(into *[]int) func(string) error {
	return func(s string) error {
		*into = nil
		for field := range strings.SplitSeq(s, ",") {
			n, err := strconv.Atoi(field)
			if err != nil {
				return err
			}
			*into = append(*into, n)
		}
		return nil
	}
}
