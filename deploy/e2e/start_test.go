package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"meshlog.dev/deploy/e2e/rig"
)

// unwritable is a directory that no user can write to, not even root.
const unwritable = "/sys/meshlog"

// TestStartRefused starts programs with settings that cannot work. They end at once
// with the exit code for the kind of error, and print advice.
func TestStartRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken, dir := l.Addr().String(), t.TempDir()
	file := filepath.Join(dir, "settings.yaml")
	if err := os.WriteFile(file, []byte("dta: x\ndrain: soon\nlog-level: loud\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	mesh := filepath.Join(dir, "mesh")
	if err := os.Mkdir(mesh, 0o700); err != nil {
		t.Fatal(err)
	}
	free := []string{"--admin", "127.0.0.1:0"}
	builder := with([]string{"builder", "--bus", "nats://127.0.0.1:1"}, free...)
	frontend := with([]string{"frontend", "--listen", "127.0.0.1:0"}, free...)
	up := with([]string{"meshlog", "up", "--config", mesh, "--listen", "127.0.0.1:0", "--console-listen", "127.0.0.1:0"}, free...)
	watcher := []string{"watcher-file", "--config", mesh}
	for _, c := range []struct {
		name string
		argv []string
		code int
		want []string
	}{
		{"builder: nothing given", []string{"builder"}, 2, []string{"--bus is missing: give nats://", "--data is missing: give a directory", "Run 'builder --help'"}},
		{"frontend: nothing given", []string{"frontend"}, 2, []string{"--data is missing"}},
		{"watcher: nothing given", []string{"watcher-file"}, 2, []string{"--config is missing", "--bus is missing"}},
		{"up: nothing given", []string{"meshlog", "up"}, 2, []string{"--config is missing", "--data is missing", "Run 'meshlog up --help'"}},
		{"unknown flag", []string{"frontend", "--lisen", "x"}, 2, []string{"unknown flag: --lisen; did you mean --listen?"}},
		{"bad value", []string{"builder", "--replicas", "two"}, 2, []string{`invalid argument "two" for "--replicas"`}},
		{"value that makes no sense", with(builder, "--data", dir, "--replicas", "2"), 2, []string{"--replicas 2: want 1, or 3 on a cluster"}},
		{"settings", []string{"frontend", "--settings", file}, 2, []string{
			file + ":1: dta: no such setting; did you mean data?", file + `:2: drain: "soon": time: invalid duration`,
			file + `:3: log-level: "loud": no level "loud"`,
		}},
		{"no settings file", []string{"frontend", "--settings", dir + "/x"}, 2, []string{"settings: open " + dir + "/x: no such file"}},
		{"no bus URL", with(watcher, "--bus", "http://x"), 2, []string{"http://x is not the address of a NATS server: give nats://HOST:PORT"}},
		{"no directory", []string{"watcher-file", "--bus", "nats://x", "--config", dir + "/x"}, 2, []string{"--config " + dir + "/x: no such file or directory; create the directory"}},

		{"admin port taken", with(frontend, "--data", dir, "--admin", taken), 1, []string{taken + ": bind: address already in use; give another address with --admin"}},
		{"xDS port taken", with(frontend, "--data", dir, "--listen", taken), 1, []string{taken + ": bind: address already in use; give another address with --listen"}},
		{"bus port taken", with(up, "--data", dir+"/up", "--bus-listen", taken), 1, []string{taken + ": bind: address already in use; give another address with --bus-listen"}},
		{"frontend: no right to write", with(frontend, "--data", unwritable), 1, []string{"data directory: mkdir " + unwritable, "give another directory with --data"}},
		{"builder: no right to write", with(builder, "--data", unwritable), 1, []string{"data directory: mkdir " + unwritable, "give another directory with --data"}},
		{"up: no right to write", with(up, "--data", unwritable), 1, []string{"data directory: mkdir " + unwritable, "give another directory with --data"}},
		{"data is a file", with(frontend, "--data", file), 1, []string{file, "not a directory"}},
		{"no certificate", with(frontend, "--data", dir, "--tls-cert", file, "--tls-key", file), 1, []string{"TLS for xDS: certificate " + file, "failed to find any PEM data"}},
		{"no token", with(frontend, "--data", dir, "--admin-token-file", dir+"/x"), 2, []string{"--admin-token-file " + dir + "/x: no such file"}},

		{"check: all at once", with(builder, "--check", "--data", unwritable, "--bus-ca", file, "--history", "1m"), 2, []string{
			"--history 1m0s: want an hour at least", file + ": holds no PEM certificate", "--data " + unwritable + ": cannot write in /sys",
		}},
		{"check", with(up, "--check", "--data", dir+"/up"), 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, stderr, err := runTo(t.Context(), c.argv)
			if err != nil {
				t.Fatal(err)
			}
			if code != c.code {
				t.Errorf("%s ends with %d, want %d", strings.Join(c.argv, " "), code, c.code)
			}
			for _, want := range c.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("%s does not say %q:\n%s", strings.Join(c.argv, " "), want, stderr)
				}
			}
		})
	}
	if _, err := os.Stat(dir + "/up"); !os.IsNotExist(err) {
		t.Errorf("--check created the data directory: %v", err)
	}
}

func with(argv []string, more ...string) []string { return slices.Concat(argv, more) }

// runTo runs a program of bin/ until it ends.
func runTo(ctx context.Context, argv []string) (code int, stderr string, err error) {
	bin, err := rig.Bin(argv[0])
	if err != nil {
		return 0, "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, argv[1:]...)
	var said bytes.Buffer
	cmd.Stderr = &said
	err = cmd.Run()
	if ctx.Err() != nil {
		return 0, "", fmt.Errorf("%s did not end; its output:\n%s", strings.Join(argv, " "), &said)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), said.String(), nil
	}
	return 0, said.String(), err
}
