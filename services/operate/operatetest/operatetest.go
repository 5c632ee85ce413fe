// Package operatetest runs a mesh for tests of commands, and compares their
// output with golden files.
package operatetest

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/roles/up"
)

// Update is the flag that rewrites golden files.
var Update = flag.Bool("update", false, "rewrite golden files")

// Main runs the tests of a package in UTC, the zone of the golden files, and without the
// settings of meshlog that the environment has. It starts the program again with that zone:
// goroutines that packages start may read time.Local.
func Main(m *testing.M) {
	if os.Getenv("TZ") != "UTC" {
		self, err := os.Executable()
		if err == nil {
			err = os.Setenv("TZ", "UTC")
		}
		if err == nil {
			err = syscall.Exec(self, os.Args, slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MESHLOG_") }))
		}
		fmt.Fprintln(os.Stderr, "start the tests in UTC:", err)
		os.Exit(1)
	}
	flag.Parse()
	os.Exit(m.Run())
}

// Golden compares what print prints in each format with
// testdata/<name>.golden.
func Golden(t *testing.T, name string, print func(*command.Output)) {
	t.Helper()
	var got bytes.Buffer
	for _, format := range []string{command.Table, command.JSON, command.YAML} {
		got.WriteString("-- " + format + " --\n")
		before := got.Len()
		out := command.NewOutput(&got, format)
		if print(out); out.Err() != nil {
			t.Fatal(out.Err())
		}
		if got.Len() == before {
			t.Errorf("%s: as %s nothing is printed", name, format)
		}
	}
	GoldenFile(t, name, got.String())
}

// GoldenFile compares got with testdata/<name>.golden.
func GoldenFile(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *Update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; `go test -update` writes it", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (`go test -update` rewrites it; read it): %s", path, diff)
	}
}

// Mesh is a real `meshlog up` in the process of the test.
type Mesh struct {
	Config, Data string
	XDS          string // the address of its frontend
	Events       Events
	Stop         func() error // ends it and waits
}

// Events passes log lines to a test, which waits for some of them.
type Events chan map[string]any

// NewEvents returns the log of a process, and its lines.
func NewEvents() (*slog.Logger, Events) {
	e := make(Events, 10_000)
	return slog.New(slog.NewJSONHandler(e, nil)), e
}

// Write implements io.Writer.
func (e Events) Write(line []byte) (int, error) {
	var attrs map[string]any
	if err := json.Unmarshal(line, &attrs); err != nil {
		return 0, err
	}
	select {
	case e <- attrs:
	default: // the test reads no more
	}
	return len(line), nil
}

// Wait returns an attribute of the next line with this message.
func (e Events) Wait(t *testing.T, message, attr string) string {
	t.Helper()
	for {
		select {
		case attrs := <-e:
			if attrs[slog.MessageKey] == message {
				return fmt.Sprint(attrs[attr])
			}
		case <-t.Context().Done():
			t.Fatalf("never logged: %s", message)
		}
	}
}

// WriteFiles writes files into dir.
func WriteFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// Start runs `meshlog up` until it serves its first version.
func Start(t *testing.T, files map[string]string) *Mesh {
	t.Helper()
	m := &Mesh{Config: t.TempDir(), Data: t.TempDir()}
	WriteFiles(t, m.Config, files)
	m.Run(t)
	m.Events.Wait(t, "serving", "version")
	return m
}

// Run runs `meshlog up` on the directories of m.
func (m *Mesh) Run(t *testing.T) {
	t.Helper()
	log, lines := NewEvents()
	m.Events = lines
	admin, err := process.NewAdmin("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &process.Process{Build: "test", Log: log, Admin: admin}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	settings := up.DefaultSettings()
	settings.Config, settings.Data, settings.Frontend.Listen = m.Config, m.Data, "127.0.0.1:0"
	settings.BusWatchers = []string{"file/old", "kubernetes/*"} // tests speak for these
	go func() { ended <- up.Run(ctx, p, settings) }()
	m.Stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() {
		if err := m.Stop(); err != nil {
			t.Errorf("up: %v", err)
		}
	})
	m.XDS = m.Events.Wait(t, "up", "xds")
}
