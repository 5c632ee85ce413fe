package cli

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	auditv1 "meshlog.dev/proto/meshlog/audit/v1"
	"meshlog.dev/services/internal/audit"
	"meshlog.dev/services/internal/bus"
)

// writeAudit writes a record with the key of the mesh's frontend.
func (m *mesh) writeAudit(t *testing.T, name string) {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	nc, err := bus.Connect(bus.ConnectOptions{URL: filepath.Join(m.Data, bus.FileName), Role: bus.Frontend(), Name: "frontend", Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	w, err := audit.NewWriter(nc, audit.WriterOptions{Domain: "mesh", Role: bus.Frontend(), Process: "up", Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	w.Write(&auditv1.Record{Action: auditv1.Action_ACTION_KEY_GIVEN, Identity: "spiffe://td/ns/shop/sa/edge", Name: name})
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // Run publishes what waits, and ends
	if err := w.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// KEY-13: `meshlog audit` shows which keys a mesh that runs, or has ended, gave for which proxy.
func TestAudit(t *testing.T) {
	m := start(t, map[string]string{"shop.yaml": shopService})
	if got := m.must(t, nil, "audit"); !strings.Contains(got, "The audit is empty") {
		t.Errorf("of an empty audit: %s", got)
	}
	m.writeAudit(t, "kubernetes://one")
	m.writeAudit(t, "kubernetes://two")
	running := m.must(t, nil, "audit")
	for _, want := range []string{"KEY GIVEN", "spiffe://td/ns/shop/sa/edge", "kubernetes://one", "frontend up", "kubernetes://two"} {
		if !strings.Contains(running, want) {
			t.Errorf("the audit does not show %q:\n%s", want, running)
		}
	}
	if got := m.must(t, nil, "audit", "-n", "1"); strings.Contains(got, "kubernetes://one") || !strings.Contains(got, "kubernetes://two") {
		t.Errorf("the newest record:\n%s", got)
	}
	if got := m.must(t, nil, "audit", "--since", "1h ago"); got != running {
		t.Errorf("since an hour ago:\n%s\nwant\n%s", got, running)
	}
	if got := m.must(t, nil, "audit", "--since", "now"); !strings.Contains(got, "No record is of that time or later") {
		t.Errorf("since now:\n%s", got)
	}
	var views []struct{ Writer, Process, What, Name string }
	m.must(t, &views, "audit")
	if len(views) != 2 || views[1].What != "key given" || views[1].Writer != "frontend" || views[1].Name != "kubernetes://two" {
		t.Errorf("as JSON: %+v", views)
	}
	// With the address of the bus in place of the data directory.
	file, err := bus.ReadBusFile(filepath.Join(m.Data, bus.FileName))
	if err != nil {
		t.Fatal(err)
	}
	key := func(r bus.Role) string { return filepath.Join(m.Data, "auth", r.KeyName()) }
	if got, _, err := meshlogAt(t, "audit", "--bus", file.URL, "--bus-nkey", key(bus.Operator())); err != nil || got != running {
		t.Errorf("over the bus: %v\n%s", err, got)
	}
	// A frontend's key reads nothing.
	_, _, err = meshlogAt(t, "audit", "--bus", file.URL, "--bus-nkey", key(bus.Frontend()))
	if err == nil || !strings.Contains(err.Error(), "its permissions on the bus lack that subject") {
		t.Errorf("with a frontend's key: %v", err)
	}
	m.follows(t)

	if err := m.Stop(); err != nil {
		t.Fatal(err)
	}
	got, stderr, err := m.meshlog(t, nil, "audit", "-n", "2")
	if err != nil || !strings.Contains(got, "kubernetes://two") || !strings.Contains(stderr, "reading a copy of its audit") {
		t.Errorf("of a mesh that has ended: %v, %s\n%s", err, stderr, got)
	}
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--data", m.Data, "--follow"}, 2, "gets no new records"},
		{[]string{"--data", t.TempDir()}, 3, "holds no audit"},
		{[]string{"--data", "/nowhere"}, 3, "there is no such directory"},
		{[]string{"--data", m.Data, "--since", "soon"}, 2, "is no time"},
	} {
		if _, _, err := meshlogAt(t, append([]string{"audit"}, test.args...)...); exitCode(err) != test.code || !strings.Contains(err.Error(), test.want) {
			t.Errorf("meshlog audit %q: exit code %d, %v", test.args, exitCode(err), err)
		}
	}
}

// follows demands that --follow shows a record that comes.
func (m *mesh) follows(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out := &until{want: "kubernetes://three", found: cancel}
	cmd := New()
	cmd.SetArgs([]string{"audit", "--data", m.Data, "-n", "1", "--follow"})
	cmd.SetOut(out)
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	m.writeAudit(t, "kubernetes://three")
	if err := <-ended; err != nil || !strings.Contains(out.String(), out.want) {
		t.Errorf("--follow: %v\n%s", err, out.String())
	}
}

// until is a writer that calls found when it has the wanted text.
type until struct {
	bytes.Buffer
	want  string
	found func()
}

func (u *until) Write(b []byte) (int, error) {
	n, err := u.Buffer.Write(b)
	if strings.Contains(u.String(), u.want) {
		u.found()
	}
	return n, err
}
