package program_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/program"
)

// The test binary is also the process that the tests start. PROGRAM_CHILD selects how
// that process ends: by itself, or on SIGTERM with code 0 or another code.
func TestMain(m *testing.M) {
	switch os.Getenv("PROGRAM_CHILD") {
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
		if os.Getenv("PROGRAM_CHILD") == "orderly" {
			os.Exit(0)
		}
		os.Exit(4)
	}
}

func child(t *testing.T, manner string) *program.Process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := program.Start("child", t.TempDir(), []string{self}, "PROGRAM_CHILD="+manner)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

func waitUp(t *testing.T, p *program.Process) {
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
	waitUp(t, p)
	if err := p.Running(); err != nil {
		t.Error(err)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}

	p = child(t, "badly")
	waitUp(t, p)
	if err := p.Stop(); err == nil || !strings.Contains(err.Error(), "exit status 4") {
		t.Errorf("Stop of a process that ends with code 4: %v", err)
	}

	p = child(t, "orderly")
	waitUp(t, p)
	p.Kill()
	if err := p.Running(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("Running after Kill: %v", err)
	}
	again, err := p.Again()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(again.Kill)
	waitUp(t, again)
	if got := again.Tail(10); got != "up" {
		t.Errorf("a process that runs again printed %q, want its own output only", got)
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
	err := program.Until(ctx, "the moon", func(context.Context) error { return errors.New("clouds") })
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "the moon") || !strings.Contains(err.Error(), "clouds") {
		t.Errorf("Until: %v", err)
	}
}
