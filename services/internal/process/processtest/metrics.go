package processtest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// MetricsTable is a table of metrics in the README of deploy/observability, and the alerts
// that use them.
type MetricsTable struct {
	Name    string // in the comments around the table
	Package string // below services/, whose tests write the table
	Alerts  string // name of the file in deploy/observability
	Prefix  string // regular expression of the names of its metrics
}

var described = regexp.MustCompile(`fqName: "([^"]+)", help: "((?:[^"\\]|\\.)*)".*variableLabels: \{([^}]*)\}`)

// Metrics checks that the table has the metrics of some collectors with their texts, and
// that alerts use no others. With update, Metrics writes the table.
func Metrics(t *testing.T, table MetricsTable, update bool, collectors ...prometheus.Collector) {
	t.Helper()
	help := describe(t, collectors)
	want := "| Metric | Meaning |\n|---|---|\n" + strings.Join(rows(help), "")
	dir := filepath.Join(strings.Repeat("../", strings.Count(table.Package, "/")+2), "deploy", "observability")
	page := filepath.Join(dir, "README.md")
	text := read(t, page)
	begin := fmt.Sprintf("<!-- %s metrics: written by `go test ./services/%s -update` -->\n", table.Name, table.Package)
	end := fmt.Sprintf("<!-- end of %s metrics -->\n", table.Name)
	before, rest, began := strings.Cut(text, begin)
	have, after, ended := strings.Cut(rest, end)
	if !began || !ended {
		t.Fatalf("%s has no table of the %s metrics", page, table.Name)
	}
	if update {
		if err := os.WriteFile(page, []byte(before+begin+want+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
		have = want
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("%s differs from the metrics; run with -update (-want +got):\n%s", page, diff)
	}
	for _, used := range regexp.MustCompile(`\b(?:`+table.Prefix+`)_\w+`).FindAllString(read(t, filepath.Join(dir, table.Alerts)), -1) {
		if help[used] == "" && !labelled(help, used) {
			t.Errorf("%s uses %s, which nothing exports", table.Alerts, used)
		}
	}
}

// describe returns the texts of metrics by name, with their labels: name{label,label}.
func describe(t *testing.T, collectors []prometheus.Collector) map[string]string {
	t.Helper()
	help := map[string]string{}
	for _, c := range collectors {
		ch := make(chan *prometheus.Desc, 100)
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
	return help
}

// rows returns the rows of a table, sorted.
func rows(help map[string]string) (all []string) {
	for name, text := range help {
		all = append(all, fmt.Sprintf("| `%s` | %s |\n", name, text))
	}
	slices.Sort(all)
	return all
}

func labelled(help map[string]string, name string) bool {
	for n := range help {
		if strings.HasPrefix(n, name+"{") {
			return true
		}
	}
	return false
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
