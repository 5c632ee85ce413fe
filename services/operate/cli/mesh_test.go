package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/roles/up"
)

// mesh is a real `meshlog up` in this process.
type mesh struct {
	config, data string
	xds          string // where it serves
	events       *logEvents
	stop         func() error // ends it and waits
}

// logEvents hands on log lines: they are how a test learns that something has
// happened.
type logEvents struct {
	lines chan slog.Record
}

func newLogEvents() *logEvents { return &logEvents{lines: make(chan slog.Record, 10_000)} }

func (e *logEvents) Enabled(context.Context, slog.Level) bool { return true }
func (e *logEvents) WithAttrs([]slog.Attr) slog.Handler       { return e }
func (e *logEvents) WithGroup(string) slog.Handler            { return e }
func (e *logEvents) Handle(_ context.Context, r slog.Record) error {
	select {
	case e.lines <- r:
	default: // the test looks no more
	}
	return nil
}

// wait returns an attribute of the next line with this message.
func (e *logEvents) wait(t *testing.T, message, attr string) (value string) {
	t.Helper()
	for {
		select {
		case r := <-e.lines:
			if r.Message != message {
				continue
			}
			r.Attrs(func(a slog.Attr) bool {
				if a.Key == attr {
					value = a.Value.String()
				}
				return true
			})
			return value
		case <-t.Context().Done():
			t.Fatalf("never logged: %s", message)
		}
	}
}

func writeConfig(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// start runs `meshlog up` until it serves its first version.
func start(t *testing.T, files map[string]string) *mesh {
	t.Helper()
	m := &mesh{config: t.TempDir(), data: t.TempDir()}
	writeConfig(t, m.config, files)
	m.run(t)
	m.events.wait(t, "serving", "version")
	return m
}

// run runs `meshlog up` on the directories of m.
func (m *mesh) run(t *testing.T) {
	t.Helper()
	m.events = newLogEvents()
	admin, err := process.NewAdmin("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &process.Process{Build: "test", Log: slog.New(m.events), Admin: admin}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	settings := up.DefaultSettings()
	settings.Config, settings.Data, settings.Frontend.Listen = m.config, m.data, "127.0.0.1:0"
	go func() { ended <- up.Run(ctx, p, settings) }()
	m.stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() {
		if err := m.stop(); err != nil {
			t.Errorf("up: %v", err)
		}
	})
	m.xds = m.events.wait(t, "up", "xds")
}

// meshlog runs a command. With into, it reads what it prints as JSON.
func (m *mesh) meshlog(t *testing.T, into any, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	args = append(args, "--data", m.data)
	if into != nil {
		args = append(args, "-o", "json")
	}
	cmd := New()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	var out, errs bytes.Buffer
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	err = cmd.ExecuteContext(t.Context())
	if into != nil && err == nil {
		if err := json.Unmarshal(out.Bytes(), into); err != nil {
			t.Fatalf("meshlog %s: %v in %s", strings.Join(args, " "), err, out.String())
		}
	}
	return out.String(), errs.String(), err
}

// must is meshlog where nothing may fail.
func (m *mesh) must(t *testing.T, into any, args ...string) string {
	t.Helper()
	stdout, stderr, err := m.meshlog(t, into, args...)
	if err != nil {
		t.Fatalf("meshlog %s: %v\n%s%s", strings.Join(args, " "), err, stdout, stderr)
	}
	return stdout
}

func decode[T any](t *testing.T, b []byte) (v T) {
	t.Helper()
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	return v
}
