package rig

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The test binary is also the process that the tests start: it prints "up" and
// ends on SIGTERM with the code that it was given.
func TestMain(m *testing.M) {
	switch os.Getenv("RIG_CHILD") {
	case "":
		os.Exit(m.Run())
	case "ends":
		fmt.Fprintln(os.Stdout, "cannot go on")
		os.Exit(3)
	default:
		term := make(chan os.Signal, 1)
		signal.Notify(term, syscall.SIGTERM)
		fmt.Fprintln(os.Stdout, "up")
		<-term
		if os.Getenv("RIG_CHILD") == "orderly" {
			os.Exit(0)
		}
		os.Exit(4)
	}
}

func child(t *testing.T, manner string) *Process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := Start("child", t.TempDir(), []string{self}, "RIG_CHILD="+manner)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

func (p *Process) waitUp(t *testing.T) {
	t.Helper()
	err := p.UntilAlive(t.Context(), "up", func(context.Context) error {
		if p.Tail(1) != "up" {
			return errors.New(p.Tail(1))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestProcessEnds(t *testing.T) {
	p := child(t, "orderly")
	p.waitUp(t)
	if err := p.Running(); err != nil {
		t.Error(err)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}

	p = child(t, "badly")
	p.waitUp(t)
	if err := p.Stop(); err == nil || !strings.Contains(err.Error(), "exit status 4") {
		t.Errorf("Stop of a process that ends with code 4: %v", err)
	}

	p = child(t, "orderly")
	p.waitUp(t)
	p.Kill()
	if err := p.Running(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("Running after Kill: %v", err)
	}
}

func TestWaitingEndsWithTheProcess(t *testing.T) {
	p := child(t, "ends")
	err := p.UntilAlive(t.Context(), "a word", func(context.Context) error { return errors.New("silence") })
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "cannot go on") {
		t.Errorf("UntilAlive on a process that ended: %v", err)
	}
}

func TestUntilSaysWhatWasWaitedFor(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	err := Until(ctx, "the moon", func(context.Context) error { return errors.New("clouds") })
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "the moon") || !strings.Contains(err.Error(), "clouds") {
		t.Errorf("Until: %v", err)
	}
}

func TestTally(t *testing.T) {
	b, err := StartBackend("one")
	if err != nil {
		t.Fatal(err)
	}
	url := fmt.Sprintf("http://127.0.0.1:%d/", b.Port)
	got := Send(t.Context(), url, 50)
	if err := got.Err(); err != nil || got.Backends["one"] != 50 || got.Share("one") != 100 || b.Served() != 50 {
		t.Errorf("50 requests: %+v, %v", got, err)
	}
	b.Stop()
	if got := Send(t.Context(), url, 3); got.Failed != 3 || got.Err() == nil {
		t.Errorf("3 requests to no server: %+v", got)
	}

	sick := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }))
	t.Cleanup(sick.Close)
	if got := Send(t.Context(), sick.URL, 2); got.Statuses[503] != 2 || got.Err() == nil {
		t.Errorf("2 requests to a sick server: %+v", got)
	}
}

func TestLoadCountsEveryRequest(t *testing.T) {
	b, err := StartBackend("one")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Stop)
	url := fmt.Sprintf("http://127.0.0.1:%d/", b.Port)
	if _, err := StartLoad(t.Context(), url, 1); err == nil {
		t.Error("a load without a deadline was started")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := StartLoad(ctx, url, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := Until(ctx, "requests", func(context.Context) error {
		if b.Served() < 20 {
			return fmt.Errorf("%d so far", b.Served())
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	first := l.Reset()
	rest := l.Stop()
	if n := int64(first.Sent + rest.Sent); n != b.Served() || first.Sent == 0 || first.Err() != nil {
		t.Errorf("counted %d of %d requests: %v", n, b.Served(), first.Err())
	}
}

// Every Envoy that starts with the bootstraps of this tree connects.
func TestBootstrapsAreValid(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "deploy", "envoy")
	istio, err := os.ReadFile(filepath.Join(dir, "istio-node.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	rigs, err := bootstrap(EnvoyConfig{Node: "n", Cluster: "c", XDS: []int{1, 2}, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	for path, overlay := range map[string]string{filepath.Join(dir, "sotw.yaml"): string(istio), rigs: ""} {
		if err := ValidateBootstrap(t.Context(), path, overlay); err != nil {
			t.Error(err)
		}
	}
	if err := ValidateBootstrap(t.Context(), filepath.Join(dir, "sotw.yaml"), "node: {nodes: x}"); err == nil {
		t.Error("Envoy takes anything: this test tests nothing")
	}
}
