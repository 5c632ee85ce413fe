// Package rig runs the real parts that tests, the demo and the bench drive from
// outside: the programs in bin/, a NATS server, Envoy, backends behind it and
// clients in front of it. It uses meshlog only as a user does: by files, flags,
// ports and `-o json`.
//
// A test ends every process that it started. All traffic stays on loopback, or in
// networks without another machine: the network that Isolate makes for a whole
// program, or a Network.
package rig

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"meshlog.dev/deploy/testkit/program"
)

// Bin returns the path of one of our programs, by its name in bin/.
func Bin(name string) (string, error) {
	root, err := program.Root()
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

// dial checks that a server accepts connections on an address.
func dial(ctx context.Context, addr string) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	return c.Close()
}
