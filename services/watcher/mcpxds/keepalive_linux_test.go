package mcpxds_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/mcptest"
	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/services/watcher/mcpxds"
)

// MCP-12: TCP's keepalive is due within 15 s, as the kernel has it for the connection to the
// source. gRPC's pings come less often than the 5 minutes that servers in Java demand.
func TestMCP12Keepalive(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{})
	watch(t, s, nil).list()
	_, text, err := net.SplitHostPort(s.Address())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := program.Until(ctx, "the timer of keepalive", func(context.Context) error { return keptAlive(port) }); err != nil {
		t.Error(err)
	}
	if mcpxds.Pings <= 5*time.Minute {
		t.Errorf("a ping every %s", mcpxds.Pings)
	}
}

// keptAlive returns nil if the connection to a local port has a timer of keepalive that ends
// within 15 s. While something is on its way, it has another timer.
func keptAlive(port uint64) error {
	table, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(table)) {
		const remote, state, timer = 2, 3, 5
		f := strings.Fields(line)
		if len(f) <= timer || !strings.HasSuffix(f[remote], fmt.Sprintf(":%04X", port)) || f[state] != "01" {
			continue
		}
		kind, due, _ := strings.Cut(f[timer], ":")
		ticks, err := strconv.ParseUint(due, 16, 64) // of 10 ms
		if kind != "02" || err != nil || time.Duration(ticks)*10*time.Millisecond > 15*time.Second {
			return fmt.Errorf("timer %s", f[timer])
		}
		return nil
	}
	return fmt.Errorf("no connection to port %d", port)
}
