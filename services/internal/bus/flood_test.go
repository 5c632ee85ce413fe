package bus

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
)

// refused returns the messages that a fleet has refused for a reason, by its metrics.
func refused(t *testing.T, f *Fleet, reason string) float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(f.Metrics("test")...)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if family.GetName() == "meshlog_bus_messages_refused_total" && l.GetName() == "reason" && l.GetValue() == reason {
					return m.GetCounter().GetValue()
				}
			}
		}
	}
	t.Fatalf("no metric has the reason %s", reason)
	return 0
}

// A client that sends messages that cannot be read costs a line of the log a second.
// All of them are counted (BUS-2).
func TestUnreadableMessages(t *testing.T) {
	s := startServer(t, t.TempDir())
	var log lines
	f := NewFleet(connect(t, s), "mesh", slog.New(slog.NewTextHandler(&log, nil)))
	good := make(chan string, 1)
	run(t, func(ctx context.Context) error {
		return f.FrontendReports(ctx, func(r *reportv1.FrontendReport) { good <- r.GetFrontend() })
	})
	attacker, honest := connect(t, s), NewFleet(connect(t, s), "mesh", quiet)
	began := time.Now()
	const messages = 2000
	for refused(t, f, "unreadable") < messages {
		for range messages / 10 {
			if err := attacker.Publish("meshlog.fleet.mesh.report.frontend.forged", []byte{0xff}); err != nil {
				t.Fatal(err)
			}
		}
		if err := attacker.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	most := 1 + int(time.Since(began)/time.Second)
	if n := strings.Count(log.String(), "unreadable message"); n == 0 || n > most {
		t.Errorf("%d lines in %s, want 1 to %d", n, time.Since(began), most)
	}
	run(t, honest.FrontendReporter("f1", func(bool) *reportv1.FrontendReport { return &reportv1.FrontendReport{Frontend: "f1"} }).Run)
	if got := <-good; got != "f1" {
		t.Errorf("heard %q", got)
	}
}

// A client that reports under many names, or under long ones, makes the list of
// processes no longer than it may be, and drops no process from it. Other roles are
// not concerned.
func TestPeersAreBounded(t *testing.T) {
	f := &Fleet{log: NewFleet(nil, "mesh", quiet).log}
	p := NewPeers(f)
	now := time.Now()
	p.since, p.last = now.Add(-peersKnown), now
	p.hear("frontend.honest", false, now)
	for i := range 3000 {
		p.hear(fmt.Sprint("frontend.forged-", i), false, now)
	}
	p.hear("watcher."+strings.Repeat("x", 10_000), false, now)
	p.hear("watcher.w.file.default", false, now)
	p.hear("frontend.honest", false, now)
	names := map[string]bool{}
	for _, peer := range p.list(now) {
		names[peer.GetName()] = true
	}
	if len(names) != maxPeers+1 || !names["frontend.honest"] || !names["watcher.w.file.default"] {
		t.Errorf("%d processes are listed", len(names))
	}
	if n := refused(t, f, "crowded"); n != 3000-maxPeers+2 {
		t.Errorf("%v reports are counted, want %d", n, 3000-maxPeers+2)
	}
}
