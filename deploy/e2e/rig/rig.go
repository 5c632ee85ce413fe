// Package rig runs the real parts that tests, the demo and the bench drive
// from outside: the programs in bin/, a NATS server, Envoy, backends behind it
// and clients before it. It knows of meshlog what a user knows: files, flags,
// ports and `-o json`.
//
// A test ends every process that it started. All traffic stays on loopback, or in
// networks that no other machine is on: the one that
// Isolate makes for a whole program, and a Network.
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

// Root is the directory of the workspace: the one with go.work, at or above
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

// Bin is the path of a program of ours, by its name in bin/.
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
		return "", fmt.Errorf("bin/%s is not there: run `%s` first", name, make)
	}
	return path, nil
}

// Tool is the path of a pinned tool of others, fetched first where it is
// missing, unless Isolate was called: "envoy", "nats-server".
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

// dial says whether something takes connections on an address.
func dial(ctx context.Context, addr string) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	return c.Close()
}

// Until asks check every few milliseconds until it returns nil. Where ctx ends
// first, the error names what was waited for and what check said last.
func Until(ctx context.Context, what string, check func(context.Context) error) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	last := errors.New("not asked yet")
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		// A check that ctx cut short knows less than the one before.
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
