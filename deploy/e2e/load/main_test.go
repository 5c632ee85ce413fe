package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"meshlog.dev/deploy/e2e/load/fleet"
	"meshlog.dev/deploy/e2e/rig"
)

// TestMain makes the test's own program the floor's server when a run starts it,
// and puts the tests on a network of their own, like the run with Kubernetes.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == floorCommand {
		main()
		return
	}
	if err := rig.Isolate(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// The program runs and reports all cases. The test does not check the figures.
func TestRun(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p, err := parse([]string{"-streams", "5,10", "-classes", "1,5", "-services", "50", "-rounds", "2"})
	if err != nil {
		t.Fatal(err)
	}
	p.pause = 20 * time.Millisecond
	r, err := run(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	r.print(&out)
	if len(r.cases) != 2*3 {
		t.Errorf("%d cases, want the floor, 1 class and 5, each with 5 proxies and with 10", len(r.cases))
	}
	for _, c := range r.cases {
		if got := len(c.first); got != c.streams {
			t.Errorf("%s: %d proxies have everything, want %d", c.name(), got, c.streams)
		}
		for of, ch := range map[fleet.Type]changed{fleet.EDS: c.endpoint, fleet.RDS: c.route} {
			if got := len(ch.all()); got != p.rounds*c.streams {
				t.Errorf("%s: %d responses to changes of %s, want %d for each of %d proxies", c.name(), got, of, p.rounds, c.streams)
			}
			if len(ch.resources) == 0 || ch.usage.bytes < int64(len(ch.resources)*p.rounds*c.streams) {
				t.Errorf("%s: changes of %s: %d bytes for %d each", c.name(), of, ch.usage.bytes, len(ch.resources))
			}
		}
		if c.unexpected != 0 {
			t.Errorf("%s: %d responses without a cause", c.name(), c.unexpected)
		}
		if c.settled.resident <= 0 || c.settled.peak < c.settled.resident {
			t.Errorf("%s: memory %+v", c.name(), c.settled)
		}
	}
	for _, want := range []string{"A first sync is ", "save -> last proxy's ACK", "route change, p99", "memory a proxy"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, out.String())
		}
	}
}

func TestRunKubernetes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p, err := parseKubernetes([]string{"-services", "20", "-endpoints", "2", "-pods", "200", "-streams", "2", "-rounds", "3"})
	if err != nil {
		t.Fatal(err)
	}
	p.pause = 20 * time.Millisecond
	r, err := runKubernetes(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	r.print(&out)
	if c := r.cold; c.begun <= 0 || c.first < c.begun || c.logged < c.first || c.version < c.logged || c.records < r.objects {
		t.Errorf("cold %+v of %d objects", c, r.objects)
	}
	for _, m := range r.changes {
		// The builder notes Published when the bus has acknowledged the publish. A
		// frontend may have the version, and Envoy the change, before that.
		if len(m.acks) != p.streams || m.envoy.Before(m.Built) {
			t.Errorf("change %+v", m)
		}
	}
	for _, h := range r.memory {
		if h.settled <= 0 || h.peak <= 0 {
			t.Errorf("memory %+v", h)
		}
	}
	if len(r.changes) != p.rounds || !strings.Contains(out.String(), "written -> Envoy's ACK") {
		t.Errorf("%d changes:\n%s", len(r.changes), out.String())
	}
}

func TestBounds(t *testing.T) {
	for _, args := range []string{
		"-streams 2001", "-streams 0", "-streams 5,,6", "-classes 101", "-rounds 101", "-services 20001", "-endpoints 1", "-mode both",
	} {
		if _, err := parse(strings.Fields(args)); err == nil {
			t.Errorf("%s is taken", args)
		}
	}
}

func TestKubernetesBounds(t *testing.T) {
	for _, args := range []string{"-services 0", "-endpoints 101", "-pods 999", "-streams 501", "-rounds 0"} {
		if _, err := parseKubernetes(strings.Fields(args)); err == nil {
			t.Errorf("%s is taken", args)
		}
	}
}

func TestPercentile(t *testing.T) {
	took := make([]time.Duration, 200)
	for i := range took {
		took[i] = time.Duration(i + 1)
	}
	for p, want := range map[int]time.Duration{1: 2, 50: 100, 99: 198, 100: 200} {
		if got := percentile(took, p); got != want {
			t.Errorf("p%d of 1 to 200 is %d, want %d", p, got, want)
		}
	}
}
