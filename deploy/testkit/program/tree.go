package program

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// Tool returns the path of a third-party tool that deploy/tools/get pins, such as
// "envoy". It downloads a missing tool if this process has a network.
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
