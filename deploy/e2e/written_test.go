package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"time"

	"go.yaml.in/yaml/v3"

	"meshlog.dev/deploy/testkit/program"
)

// dashboard is the part of Grafana's model (schema version 41) that
// deploy/observability/dashboard.json may use.
type dashboard struct {
	UID, Title, Description, Refresh, Timezone string
	Tags                                       []string
	SchemaVersion, Version, GraphTooltip       int
	Editable                                   bool
	Time                                       struct{ From, To string }
	Timepicker, Annotations                    any
	Links                                      []any
	Templating                                 struct {
		List []struct {
			Name, Label, Type, Query, Regex string
			Current                         any
			Hide, Refresh                   int
			IncludeAll, Multi               bool
			Options                         []any
		}
	}
	Panels []panel
}

type panel struct {
	ID                       int
	Type, Title, Description string
	Collapsed                bool
	Panels                   []any
	GridPos                  struct{ H, W, X, Y int }
	Datasource               *datasource
	FieldConfig, Options     any
	Targets                  []struct {
		RefID, Expr, LegendFormat string
		Datasource                datasource
		Range, Instant            bool
	}
}

type datasource struct{ Type, UID string }

// rows are the rows of the dashboard, one for each stage.
var rows = []string{"At a glance", "Sources", "Log", "Builder", "Versions", "Frontends", "Proxies", "Security", "Bus", "Resources"}

// dashboard demands that Grafana accepts the dashboard, and returns its queries,
// by place.
func (f *fixture) dashboard() map[string]string {
	f.Helper()
	var d dashboard
	decoder := json.NewDecoder(bytes.NewReader(f.observability("dashboard.json")))
	decoder.DisallowUnknownFields()
	f.must(decoder.Decode(&d))
	if d.UID == "" || d.Title == "" || d.SchemaVersion < 36 || len(d.Templating.List) != 1 || d.Templating.List[0].Type != "datasource" {
		f.Errorf("the dashboard has uid %q, title %q, schema version %d, variables %v", d.UID, d.Title, d.SchemaVersion, d.Templating.List)
	}
	asked, ids, row := map[string]string{}, map[int]bool{}, []string{}
	taken := map[[2]int]string{}
	for _, p := range d.Panels {
		where := "panel " + p.Title
		if ids[p.ID] || p.ID == 0 || p.Title == "" {
			f.Errorf("%s: id %d is missing, or used twice", where, p.ID)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if before := taken[[2]int{x, y}]; before != "" || x >= 24 {
					f.Fatalf("%s overlaps %q, or exceeds the right border", where, before)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			row = append(row, p.Title)
			continue
		}
		if !slices.Contains([]string{"timeseries", "stat"}, p.Type) || p.Description == "" || len(p.Targets) == 0 || p.Datasource == nil || p.Datasource.UID != "${datasource}" {
			f.Errorf("%s: type %q, description %q, %d targets, data source %v", where, p.Type, p.Description, len(p.Targets), p.Datasource)
		}
		for _, t := range p.Targets {
			asked[t.Expr] = where
		}
	}
	if !slices.Equal(row, rows) {
		f.Errorf("the dashboard's rows are %q, want %q", row, rows)
	}
	return asked
}

// rule is an alert rule in Prometheus' format, with the fields that alerts.yaml
// may use.
type rule struct {
	Alert, Expr string
	For         string
	Labels      map[string]string
	Annotations map[string]string
}

// alerts demands that Prometheus accepts the rules, and that each has advice. It
// returns their queries, by place.
func (f *fixture) alerts() map[string]string {
	f.Helper()
	var file struct {
		Groups []struct {
			Name  string
			Rules []rule
		}
	}
	decoder := yaml.NewDecoder(bytes.NewReader(f.observability("alerts.yaml")))
	decoder.KnownFields(true)
	f.must(decoder.Decode(&file))
	if err := decoder.Decode(new(any)); !errors.Is(err, io.EOF) {
		f.Errorf("alerts.yaml holds more than one document: %v", err)
	}
	asked, names := map[string]string{}, map[string]bool{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			where := "alert " + r.Alert
			if names[r.Alert] || !regexp.MustCompile(`^Meshlog[A-Za-z]+$`).MatchString(r.Alert) || g.Name == "" {
				f.Errorf("%s of group %q: the name is used twice, or does not begin with Meshlog", where, g.Name)
			}
			names[r.Alert] = true
			if _, err := time.ParseDuration(r.For); r.For != "" && err != nil {
				f.Errorf("%s: for: %v", where, err)
			}
			if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) || len(r.Labels) != 1 {
				f.Errorf("%s: labels %v, want severity: critical, warning or info", where, r.Labels)
			}
			for _, a := range []string{"summary", "description", "runbook"} {
				if err := expand(r.Annotations[a]); err != nil {
					f.Errorf("%s: annotation %s: %v", where, a, err)
				}
			}
			if len(r.Annotations) != 3 {
				f.Errorf("%s: annotations %v, want summary, description, runbook", where, r.Annotations)
			}
			asked[r.Expr] = where
		}
	}
	return asked
}

// expand expands an annotation as Prometheus does.
func expand(text string) error {
	if text == "" {
		return errors.New("is missing")
	}
	human := func(v any) string { return fmt.Sprint(v) }
	t, err := template.New("").Option("missingkey=error").
		Funcs(template.FuncMap{"humanize": human, "humanizeDuration": human, "humanizePercentage": human}).
		Parse(`{{ $labels := .Labels }}{{ $value := .Value }}` + text)
	if err != nil {
		return err
	}
	labels := map[string]string{"instance": "i", "job": "j", "source": "s", "type": "t", "stream": "m", "connection": "c", "reason": "r"}
	return t.Execute(io.Discard, map[string]any{"Labels": labels, "Value": 1.0})
}

// observability reads a file of deploy/observability.
func (f *fixture) observability(name string) []byte {
	f.Helper()
	root, err := program.Root()
	f.must(err)
	b, err := os.ReadFile(filepath.Join(root, "deploy", "observability", name))
	f.must(err)
	return b
}

// byPrometheus are labels that Prometheus itself adds.
var byPrometheus = []string{"instance", "job"}

// answerable demands that the queries are valid PromQL, and use only metrics and
// labels that programs export.
func (f *fixture) answerable(all map[string]exported, asked map[string]string) {
	f.Helper()
	var expressions, plain []string
	for e := range asked {
		expressions = append(expressions, e)
		plain = append(plain, strings.ReplaceAll(e, "$__rate_interval", "5m"))
	}
	for i, found := range f.promql(plain) {
		where := asked[expressions[i]]
		if found.Error != "" {
			f.Errorf("%s: %s: %s", where, expressions[i], found.Error)
		}
		for name, labels := range found.Metrics {
			m, extra := metric(all, name)
			if m.Name == "" {
				f.Errorf("%s uses %s, which no process exports", where, name)
				continue
			}
			for _, l := range labels {
				if !slices.Contains(slices.Concat(m.Labels, extra, byPrometheus), l) {
					f.Errorf("%s uses label %s of %s, which has %v", where, l, name, m.Labels)
				}
			}
		}
	}
}

// metric returns the metric of a time series, and labels that only the series
// has.
func metric(all map[string]exported, series string) (exported, []string) {
	if m, ok := all[series]; ok && m.Type != "histogram" {
		return m, nil
	}
	for suffix, extra := range map[string][]string{"_bucket": {"le"}, "_sum": nil, "_count": nil} {
		if name, ok := strings.CutSuffix(series, suffix); ok && all[name].Type == "histogram" {
			return all[name], extra
		}
	}
	return exported{}, nil
}

// found is the result of tools/promql for an expression.
type found struct {
	Error   string
	Metrics map[string][]string
}

// promql runs Prometheus' own parser, which is in a separate module.
func (f *fixture) promql(expressions []string) (all []found) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), 5*time.Minute) // the parser may have to be compiled, or fetched
	defer cancel()
	root, err := program.Root()
	f.must(err)
	in, err := json.Marshal(expressions)
	f.must(err)
	cmd := exec.CommandContext(ctx, "go", "run", ".")
	cmd.Dir = filepath.Join(root, "deploy", "e2e", "tools", "promql")
	cmd.Env = append(os.Environ(), "GOWORK=off")
	cmd.Stdin = bytes.NewReader(in)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		f.Fatalf("go run in %s: %v (is the Go module proxy reachable?)\n%s", cmd.Dir, err, stderr.String())
	}
	f.must(json.Unmarshal(out, &all))
	if len(all) != len(expressions) {
		f.Fatalf("%d answers to %d expressions", len(all), len(expressions))
	}
	return all
}
