// Package rig runs the real parts that tests, the demo and the bench drive from
// outside: the programs in bin/, a NATS server, Envoy, backends behind it and
// clients in front of it. It knows only what a user knows of meshlog: files,
// flags, ports and `-o json`.
//
// A test ends every process that it started. All traffic stays on loopback, or in
// networks without another machine: the one that Isolate makes for a whole
// program, and a Network.
package rig

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Root returns the directory of the workspace: the one with go.work, at or above
// the working directory.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("no go.work at or above the working directory: run this inside the meshlog tree")
		}
		dir = up
	}
}

// Bin returns the path of one of our programs, by its name in bin/.
func Bin(name string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, "bin", name)
	if _, err := os.Stat(path); err != nil {
		make := "make build"
		if folder, _, ok := strings.Cut(filepath.ToSlash(name), "/"); ok {
			make += "-" + folder
		}
		return "", fmt.Errorf("bin/%s is missing: run `%s` first", name, make)
	}
	return path, nil
}

// Tool returns the path of a pinned third-party tool, "envoy" or "nats-server".
// It downloads a missing tool, unless Isolate was called.
func Tool(ctx context.Context, name string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(root, "deploy", "tools", "get"), name)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("get %s: %w: run `make tools`", name, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// dial checks that a server accepts connections on an address.
func dial(ctx context.Context, addr string) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	return c.Close()
}

// Until calls check every few milliseconds until it returns nil. If ctx ends
// first, the error names what Until waited for and the last error of check.
func Until(ctx context.Context, what string, check func(context.Context) error) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	last := errors.New("not checked yet")
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		// A check that ctx cut short reports less than the check before it.
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w: %w", what, context.Cause(ctx), last)
		case <-tick.C:
		}
	}
}
