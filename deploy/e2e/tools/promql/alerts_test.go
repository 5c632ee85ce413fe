package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/promqltest"
)

// TestAlerts evaluates alerts on the time series in testdata/alerts.test, which is a script
// of Prometheus' own tests. $ALERT stands for the expression of an alert, and "for ALERT
// DURATION" demands how long it must hold before the alert fires.
func TestAlerts(t *testing.T) {
	files, err := filepath.Glob("../../../observability/alerts*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no alerts: %v", err)
	}
	rules := map[string]rulefmt.Rule{}
	for _, f := range files {
		all, errs := rulefmt.ParseFile(f, false)
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		for _, g := range all.Groups {
			for _, r := range g.Rules {
				rules[r.Alert] = r
			}
		}
	}
	b, err := os.ReadFile("testdata/alerts.test")
	if err != nil {
		t.Fatal(err)
	}
	unknown := func(alert string) {
		if _, ok := rules[alert]; !ok {
			t.Errorf("there is no alert %s", alert)
		}
	}
	var script []string
	for _, line := range strings.Split(string(b), "\n") {
		if words := strings.Fields(line); len(words) == 3 && words[0] == "for" {
			unknown(words[1])
			if want, err := model.ParseDuration(words[2]); err != nil || rules[words[1]].For != want {
				t.Errorf("%s: for %s, want %s: %v", words[1], rules[words[1]].For, words[2], err)
			}
			continue
		}
		script = append(script, regexp.MustCompile(`\$(Meshlog\w+)`).ReplaceAllStringFunc(line, func(name string) string {
			unknown(name[1:])
			return strings.Join(strings.Fields(rules[name[1:]].Expr), " ")
		}))
	}
	promqltest.RunTest(t, strings.Join(script, "\n"), promqltest.NewTestEngine(t, false, 5*time.Minute, 100_000))
}
