package mcpxds

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	metricsPage  = "../../../deploy/observability/README.md"
	alertsPage   = "../../../deploy/observability/alerts-mcpxds.yaml"
	metricsBegin = "<!-- mcpxds metrics: written by `go test ./services/watcher/mcpxds -update` -->\n"
	metricsEnd   = "<!-- end of mcpxds metrics -->\n"
)

var update = flag.Bool("update", false, "rewrite the table of metrics in deploy/observability/README.md")

var described = regexp.MustCompile(`fqName: "([^"]+)", help: "((?:[^"\\]|\\.)*)".*variableLabels: \{([^}]*)\}`)

// TestMetrics compares the table of metrics and the alerts with what the watcher exports.
func TestMetrics(t *testing.T) {
	ch := make(chan *prometheus.Desc, 20)
	NewMetrics("a").Describe(ch)
	close(ch)
	var rows, names []string
	for d := range ch {
		m := described.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("no name and no help in %s", d)
		}
		name := m[1]
		names = append(names, name)
		if m[3] != "" {
			name += "{" + m[3] + "}"
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s |\n", name, m[2]))
	}
	slices.Sort(rows)
	want := "| Metric | Meaning |\n|---|---|\n" + strings.Join(rows, "")
	page, err := os.ReadFile(metricsPage)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, began := strings.Cut(string(page), metricsBegin)
	have, after, ended := strings.Cut(rest, metricsEnd)
	if !began || !ended {
		t.Fatalf("%s has no table of these metrics", metricsPage)
	}
	if *update {
		if err := os.WriteFile(metricsPage, []byte(before+metricsBegin+want+metricsEnd+after), 0o600); err != nil {
			t.Fatal(err)
		}
		have = want
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("%s differs from the metrics; run with -update (-want +got):\n%s", metricsPage, diff)
	}
	alerts, err := os.ReadFile(alertsPage)
	if err != nil {
		t.Fatal(err)
	}
	for _, used := range regexp.MustCompile(`\bmeshlog_mcpxds_\w+`).FindAllString(string(alerts), -1) {
		if !slices.Contains(names, used) {
			t.Errorf("%s uses %s, which no watcher exports", alertsPage, used)
		}
	}
}
