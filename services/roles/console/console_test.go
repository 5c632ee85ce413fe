package console_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/internal/process/processtest"
	"meshlog.dev/services/operate/operatetest"
	"meshlog.dev/services/roles/console"
	"meshlog.dev/services/roles/up"
)

func TestMain(m *testing.M) { operatetest.Main(m) }

func TestSettingsFile(t *testing.T) {
	command := func() *cobra.Command { return process.Command(console.Spec("meshlog console")) }
	processtest.SettingsFile(t, command, "../../../deploy/config/console.yaml", *operatetest.Update)
}

// `meshlog up` has a console, and ends with it.
func TestUp(t *testing.T) {
	log, lines := operatetest.NewEvents()
	admin, err := process.NewAdmin("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	page := console.DefaultSettings()
	page.Listen = "127.0.0.1:0"
	s := up.DefaultSettings()
	s.Config, s.Data, s.Frontend.Listen, s.Console = t.TempDir(), t.TempDir(), "127.0.0.1:0", page
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- up.Run(ctx, &process.Process{Build: "test", Log: log, Admin: admin}, s) }()
	until(t, lines.Wait(t, "console", "url"), "up leads")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A console in a process of its own shows a mesh. When the bus is gone it goes on serving what it
// has read, and says so.
func TestWithoutBus(t *testing.T) {
	m := operatetest.Start(t, map[string]string{"shop.yaml": `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: shop, namespace: demo}
spec: {hosts: [shop.internal], resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}]}
`})
	log, lines := operatetest.NewEvents()
	admin, err := process.NewAdmin("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &process.Process{Build: "test", Log: log, Admin: admin}
	settings := console.DefaultSettings()
	settings.Listen = "127.0.0.1:0"
	l, err := settings.Open(log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- settings.Run(ctx, process.DefaultDomain, t.TempDir(), l, func(ctx context.Context) (*bus.Conn, error) {
			return bus.ConnectWait(ctx, bus.ConnectOptions{URL: filepath.Join(m.Data, bus.FileName), Role: bus.Console(), Name: "console", Log: slog.New(slog.DiscardHandler)})
		}, p)
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("the console ended with %v", err)
		}
	}()
	url := strings.TrimSuffix(lines.Wait(t, "console", "url"), "/")
	until(t, url+"/objects?kind=ServiceEntry", "1 object at version")
	until(t, url+"/", "up leads")
	if err := m.Stop(); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/": "up leads", "/objects?kind=ServiceEntry": ">shop</a>", "/fleet": "No proxy matches", "/sources": "file/default"} {
		body := until(t, url+path, "What you see may be old: the newest report is of")
		if !strings.Contains(body, want) {
			t.Errorf("%s lacks %q:\n%s", path, want, body)
		}
	}
}

// until gets a page until it has a text.
func until(t *testing.T, url, want string) string {
	t.Helper()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	body := ""
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-again.C {
		r, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if body = string(b); r.StatusCode == http.StatusOK && strings.Contains(body, want) {
			return body
		}
	}
	t.Fatalf("%s never has %q:\n%s", url, want, body)
	return ""
}
