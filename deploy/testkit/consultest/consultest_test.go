//go:build registries

package consultest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/consultest"
	"meshlog.dev/deploy/testkit/program"
)

// entry has the fields of an instance that these tests read.
type entry struct {
	Service struct {
		ID   string
		Port int
	}
}

// register registers an instance of the service web with the agent.
func register(t *testing.T, c consultest.Client) {
	t.Helper()
	instance := map[string]any{"ID": "web-1", "Name": "web", "Address": "127.0.0.9", "Port": 8080}
	if err := c.Put(t.Context(), "/v1/agent/service/register", instance, nil); err != nil {
		t.Fatal(err)
	}
}

// awaitRegistered waits until the instance of register is in the catalog.
func awaitRegistered(t *testing.T, c consultest.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := program.Until(ctx, "the instance web-1", func(ctx context.Context) error { return registered(ctx, c) }); err != nil {
		t.Fatal(err)
	}
}

func registered(ctx context.Context, c consultest.Client) error {
	var entries []entry
	if _, err := c.Get(ctx, "/v1/health/service/web", &entries); err != nil {
		return err
	}
	if len(entries) != 1 || entries[0].Service.ID != "web-1" || entries[0].Service.Port != 8080 {
		return fmt.Errorf("the catalog has %+v, want web-1 at port 8080", entries)
	}
	return nil
}

// TestServer registers and reads an instance (CON-1), and checks that it survives a crash
// and that a paused server answers again once it is resumed.
func TestServer(t *testing.T) {
	s := consultest.Start(t, consultest.Options{})
	register(t, s.Client)
	awaitRegistered(t, s.Client)
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitRegistered(t, s.Client)

	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := registered(ctx, s.Client); ctx.Err() == nil {
		t.Errorf("a paused server answered: %v", err)
	}
	if err := s.Resume(); err != nil {
		t.Fatal(err)
	}
	awaitRegistered(t, s.Client)
}

// TestCluster reads through a client agent what another server has (TST-1), also after the
// crash of a server.
func TestCluster(t *testing.T) {
	c := consultest.StartCluster(t, consultest.Options{})
	register(t, c.Agent.Client)
	for _, s := range c.Servers {
		awaitRegistered(t, s.Client)
	}
	c.Servers[0].Kill()
	awaitRegistered(t, c.Agent.Client)
}

// TestTokens checks that a token reads what its rules allow, and nothing once it is narrowed
// or deleted (CON-9).
func TestTokens(t *testing.T) {
	s := consultest.Start(t, consultest.Options{Token: "f9b4a3c8-6f0e-4c3c-8f51-0d6d1a0f2f11"})
	register(t, s.Client)
	reader, err := s.NewToken(t.Context(), "reader", `service_prefix "" { policy = "read" } node_prefix "" { policy = "read" }`)
	if err != nil {
		t.Fatal(err)
	}
	awaitRegistered(t, s.As(reader.Secret))
	if err := s.SetRules(t.Context(), reader, `service_prefix "other" { policy = "read" }`); err != nil {
		t.Fatal(err)
	}
	if err := registered(t.Context(), s.As(reader.Secret)); err == nil || !strings.Contains(err.Error(), "the catalog has []") {
		t.Errorf("a narrowed token read: %v, want an empty answer", err)
	}
	if err := s.DeleteToken(t.Context(), reader); err != nil {
		t.Fatal(err)
	}
	if err := registered(t.Context(), s.As(reader.Secret)); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("a deleted token read: %v, want 403", err)
	}
}

// TestHTTPS checks that HTTPS negotiates HTTP/2 (CON-10).
func TestHTTPS(t *testing.T) {
	s := consultest.Start(t, consultest.Options{CA: certtest.NewCA("consul")})
	req, err := s.Request(t.Context(), "GET", "/v1/status/leader", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.HTTP.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.ProtoMajor != 2 {
		t.Errorf("the answer came by %s, want HTTP/2", resp.Proto)
	}
	register(t, s.Client)
	awaitRegistered(t, s.Client)
}
