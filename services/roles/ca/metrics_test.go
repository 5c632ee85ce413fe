package ca

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

	"meshlog.dev/services/ca"
)

const (
	metricsPage  = "../../../deploy/observability/README.md"
	alertsPage   = "../../../deploy/observability/alerts-ca.yaml"
	metricsBegin = "<!-- ca metrics: written by `go test ./services/roles/ca -update` -->\n"
	metricsEnd   = "<!-- end of ca metrics -->\n"
)

var described = regexp.MustCompile(`fqName: "([^"]+)", help: "((?:[^"\\]|\\.)*)".*variableLabels: \{([^}]*)\}`)

// TestMetrics compares the table of metrics and the alerts with what the CA exports.
func TestMetrics(t *testing.T) {
	all := append(ca.NewMetrics().Collectors(), (&serving{}).metric(), (&roots{}).metric())
	help := map[string]string{}
	for _, c := range all {
		ch := make(chan *prometheus.Desc, 10)
		c.Describe(ch)
		close(ch)
		for d := range ch {
			m := described.FindStringSubmatch(d.String())
			if m == nil {
				t.Fatalf("no name and no help in %s", d)
			}
			name := m[1]
			if m[3] != "" {
				name += "{" + m[3] + "}"
			}
			help[name] = m[2]
		}
	}
	var table strings.Builder
	table.WriteString("| Metric | Meaning |\n|---|---|\n")
	var names []string
	for name := range help {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(&table, "| `%s` | %s |\n", name, help[name])
	}
	page, err := os.ReadFile(metricsPage)
	must(t, err)
	before, rest, began := strings.Cut(string(page), metricsBegin)
	have, after, ended := strings.Cut(rest, metricsEnd)
	if !began || !ended {
		t.Fatalf("%s has no table of the CA's metrics", metricsPage)
	}
	if flag.Lookup("update").Value.String() == "true" { // operatetest defines it, for the tests of the same binary
		must(t, os.WriteFile(metricsPage, []byte(before+metricsBegin+table.String()+metricsEnd+after), 0o600))
		have = table.String()
	}
	if diff := cmp.Diff(table.String(), have); diff != "" {
		t.Errorf("%s differs from the metrics; run with -update (-want +got):\n%s", metricsPage, diff)
	}
	alerts, err := os.ReadFile(alertsPage)
	must(t, err)
	for _, used := range regexp.MustCompile(`\b(citadel|meshlog_ca)_\w+`).FindAllString(string(alerts), -1) {
		if !slices.ContainsFunc(names, func(n string) bool { plain, _, _ := strings.Cut(n, "{"); return plain == used }) {
			t.Errorf("%s uses %s, which no CA exports", alertsPage, used)
		}
	}
}
