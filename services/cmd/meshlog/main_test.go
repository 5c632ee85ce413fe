package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"golang.org/x/tools/txtar"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/internal/process/processtest"
	"meshlog.dev/services/operate/operatetest"
)

func TestMain(m *testing.M) { operatetest.Main(m) }

func TestUpRefuses(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	running := operatetest.Start(t, nil)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	config := t.TempDir()
	for _, c := range []struct {
		name string
		args []string
		want []string
		code int
	}{
		{"no config", []string{"--data", t.TempDir()}, []string{"--config is missing"}, 2},
		{"no data", []string{"--config", config}, []string{"--data is missing"}, 2},
		{"config is missing", []string{"--config", config + "/x", "--data", t.TempDir()}, []string{config + "/x", "create the directory"}, 2},
		{"config is a file", []string{"--config", file, "--data", t.TempDir()}, []string{file, "not a directory"}, 2},
		{"data is a file", []string{"--config", config, "--data", file}, []string{file, "not a directory"}, 1},
		{"data in use", []string{"--config", config, "--data", running.Data}, []string{running.Data, "in use by another process", fmt.Sprint(os.Getpid())}, 1},
		{"port in use", []string{"--config", config, "--data", t.TempDir(), "--listen", taken.Addr().String()}, []string{taken.Addr().String(), "address already in use", "--listen"}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := command()
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			cmd.SetErr(io.Discard)
			args := append([]string{"up", "--admin", "127.0.0.1:0", "--console-listen", "127.0.0.1:0"}, c.args...)
			if !strings.Contains(strings.Join(args, " "), "--listen") {
				args = append(args, "--listen", "127.0.0.1:0")
			}
			cmd.SetArgs(args)
			err := cmd.ExecuteContext(t.Context())
			if err == nil {
				t.Fatal("the command ran")
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q does not say %q", err, w)
				}
			}
			if usage := errors.As(err, new(*process.UsageError)); usage != (c.code == 2) {
				t.Errorf("%v: is an error of the command line: %t, want exit code %d", err, usage, c.code)
			}
		})
	}
}

// TestHelp compares the help of every command with testdata/help.golden, so that the
// author of a change reviews the new text.
func TestHelp(t *testing.T) {
	var ar txtar.Archive
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Hidden || !c.IsAvailableCommand() && c.HasParent() {
			return
		}
		var b bytes.Buffer
		c.SetOut(&b)
		if err := c.Help(); err != nil {
			t.Fatal(err)
		}
		ar.Files = append(ar.Files, txtar.File{Name: c.CommandPath(), Data: b.Bytes()})
		if c.Short == "" || c.Long == "" || c.Example == "" {
			t.Errorf("%s: it has no short text, no long one or no examples", c.CommandPath())
		}
		for line := range strings.Lines(b.String()) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); n > 110 {
				t.Errorf("%s: a line of %d characters: %s", c.CommandPath(), n, line)
			}
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(command())
	operatetest.GoldenFile(t, "help", string(txtar.Format(&ar)))
}

func TestSettingsFile(t *testing.T) {
	processtest.SettingsFile(t, upCommand, "../../../deploy/config/up.yaml", *operatetest.Update)
}
