package route_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	"sigs.k8s.io/yaml"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/xds/route"
	"meshlog.dev/services/suite/envoytest"
)

var update = flag.Bool("update", false, "rewrite the output in testdata")

// Each archive in testdata shows a row of ROWS.md: a VirtualService and its
// routes. Routes show only fields that differ from plain.txtar.
func TestTranslate(t *testing.T) {
	for _, path := range archives(t) {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			row := readRow(t, path)
			got := row.output(t)
			if *update {
				if err := os.WriteFile(path, txtar.Format(got), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(txtar.Format(row.archive)), string(txtar.Format(got))); diff != "" {
				t.Errorf("(-want +got; -update writes it):\n%s", diff)
			}
		})
	}
}

// A real Envoy accepts the routes of all rows.
func TestEnvoyTakesRoutes(t *testing.T) {
	var config envoytest.Config
	for _, path := range archives(t) {
		row := readRow(t, path)
		routes, _ := route.Translate(row.key, row.vs, row.options)
		c := &routev3.RouteConfiguration{
			Name: strings.TrimSuffix(filepath.Base(path), ".txtar"), ValidateClusters: wrapperspb.Bool(false),
			VirtualHosts: []*routev3.VirtualHost{{Name: "all", Domains: []string{"*"}, Routes: routes}},
		}
		if err := c.ValidateAll(); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		config.Routes = append(config.Routes, c)
	}
	envoytest.Validate(t, config)
}

func archives(t testing.TB) []string {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no testdata (%v)", err)
	}
	return paths
}

// row is an archive.
type row struct {
	archive *txtar.Archive
	key     ident.Key
	vs      *networking.VirtualService
	options route.Options
	plain   bool // show all fields
}

func readRow(t testing.TB, path string) *row {
	t.Helper()
	a, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	mesh := &meshconfig.MeshConfig{}
	r := &row{
		archive: a,
		key:     ident.Key{Source: "file", Instance: "default", Kind: "VirtualService", Namespace: "shop", Name: "vs"},
		vs:      &networking.VirtualService{},
		options: route.Options{Port: 80, Gateway: route.Mesh, Mesh: func() *meshconfig.MeshConfig { return mesh }},
		plain:   filepath.Base(path) == "plain.txtar",
	}
	rule := &networking.DestinationRule{}
	for _, f := range a.Files {
		switch f.Name {
		case "http.yaml":
			readYAML(t, []byte("http:\n"+indent(f.Data)), r.vs)
		case "rule.yaml":
			readYAML(t, f.Data, rule)
		case "mesh.yaml":
			readYAML(t, f.Data, mesh)
		case "caller":
			r.readCaller(t, string(f.Data))
		case "routes", "diagnostics": // output
		default:
			t.Fatalf("%s: unknown section %q", path, f.Name)
		}
	}
	r.options.Service = func(host string) *index.Service {
		ports, ok := services[host]
		if !ok {
			return nil
		}
		s := &index.Service{ServiceID: index.ServiceID{Namespace: "shop", Hostname: host}}
		for _, n := range ports {
			s.Ports = append(s.Ports, index.Port{Number: n})
		}
		return s
	}
	r.options.Rule = func(host string) *networking.DestinationRule {
		if host == rule.GetHost() {
			return rule
		}
		return nil
	}
	return r
}

// services are the known services with their ports.
var services = map[string][]uint32{"a": {80}, "b": {80}, "one": {9080}, "two": {80, 8080}}

func indent(b []byte) string {
	return "  " + strings.ReplaceAll(strings.TrimSuffix(string(b), "\n"), "\n", "\n  ")
}

// readCaller reads lines: port N, gateway NAME, from LABEL=VALUE, grpc.
func (r *row) readCaller(t testing.TB, text string) {
	for line := range strings.Lines(text) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "port":
			n, err := strconv.ParseUint(rest, 10, 16)
			if err != nil {
				t.Fatal(err)
			}
			r.options.Port = uint32(n)
		case "gateway":
			r.options.Gateway = rest
		case "from":
			name, value, _ := strings.Cut(rest, "=")
			r.options.Sources = index.SelectorSet(index.SourceSelector(map[string]string{name: value}, ""))
		case "grpc":
			r.options.GRPC = true
		default:
			t.Fatalf("%q: want port, gateway, from or grpc", line)
		}
	}
}

func readYAML(t testing.TB, b []byte, m proto.Message) {
	t.Helper()
	j, err := yaml.YAMLToJSON(b)
	if err != nil {
		t.Fatalf("%v:\n%s", err, b)
	}
	if err := protojson.Unmarshal(j, m); err != nil {
		t.Fatalf("%v:\n%s", err, b)
	}
}

// output returns the archive with the current output.
func (r *row) output(t testing.TB) *txtar.Archive {
	routes, problems := route.Translate(r.key, r.vs, r.options)
	out := &txtar.Archive{Comment: r.archive.Comment}
	for _, f := range r.archive.Files {
		if f.Name != "routes" && f.Name != "diagnostics" {
			out.Files = append(out.Files, f)
		}
	}
	out.Files = append(out.Files, txtar.File{Name: "routes", Data: r.show(t, routes)})
	if len(problems) > 0 {
		var b strings.Builder
		for _, d := range problems {
			fmt.Fprintf(&b, "%s: %s: %s; %s: %s\n", d.Severity, d.Field, d.Reason, d.Advice, d.Effect)
		}
		out.Files = append(out.Files, txtar.File{Name: "diagnostics", Data: []byte(b.String())})
	}
	return out
}

func (r *row) show(t testing.TB, routes []*routev3.Route) []byte {
	t.Helper()
	var all []any
	for _, one := range routes {
		b, err := protojson.Marshal(one)
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		if !r.plain {
			leaveOut(m)
		}
		all = append(all, m)
	}
	b, err := yaml.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// leaveOut removes the fields that every route has.
func leaveOut(m map[string]any) {
	delete(m, "metadata")
	delete(m, "decorator")
	to, ok := m["route"].(map[string]any)
	if !ok {
		return
	}
	if to["timeout"] == "0s" {
		delete(to, "timeout")
		delete(to, "maxStreamDuration")
	}
	if p, ok := to["retryPolicy"].(map[string]any); ok && p["numRetries"] == 2.0 && len(p) == 4 {
		delete(to, "retryPolicy")
	}
}

// A route that matches every request ends the list. Conditions that do not depend
// on the request are decided when routes are generated (VSM-1, VSM-9, VSM-10).
func TestNothingApplies(t *testing.T) {
	row := readRow(t, "testdata/VSM-10-source.txtar")
	row.options.Sources = ""
	routes, problems := route.Translate(row.key, row.vs, row.options)
	names := make([]string, len(routes))
	for i, r := range routes {
		names[i] = r.GetName()
	}
	if !slices.Equal(names, []string{"everybody"}) || len(problems) > 0 {
		t.Errorf("got %v, %v", names, problems)
	}
}
