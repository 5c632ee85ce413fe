package proxyless_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"sigs.k8s.io/yaml"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds"
)

var update = flag.Bool("update", false, "rewrite the output in testdata")

// Each archive in testdata has a world and what a gRPC client is served from it.
func TestRows(t *testing.T) {
	for _, path := range archives(t) {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got := output(t, a)
			if *update {
				if err := os.WriteFile(path, txtar.Format(got), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(txtar.Format(a)), string(txtar.Format(got))); diff != "" {
				t.Errorf("(-want +got; -update writes it):\n%s", diff)
			}
		})
	}
}

func archives(t testing.TB) []string {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no testdata (%v)", err)
	}
	return paths
}

var types = map[string]ident.ResourceType{"clusters": ident.CDS, "endpoints": ident.EDS, "listeners": ident.LDS, "routes": ident.RDS}

// output returns the archive with the current output of its world.
func output(t *testing.T, a *txtar.Archive) *txtar.Archive {
	t.Helper()
	out := &txtar.Archive{Comment: a.Comment}
	w := &world{t: t, name: "world.yaml"}
	for _, f := range a.Files {
		switch rt, ok := types[f.Name]; {
		case f.Name == "metadata.yaml":
			w.metadata = new(structpb.Struct)
			text, err := yaml.YAMLToJSON(f.Data)
			if err == nil {
				err = protojson.Unmarshal(text, w.metadata)
			}
			if err != nil {
				t.Fatal(err)
			}
		case f.Name == "world.yaml":
			w.load(f.Data)
		case ok:
			f.Data = orNone(w.show(rt))
		case f.Name == "problems":
			f.Data = orNone(w.problems())
		default:
			t.Fatalf("unknown output %q", f.Name)
		}
		out.Files = append(out.Files, f)
	}
	if len(out.Files) < 2 {
		t.Fatal("the archive has no output")
	}
	return out
}

// orNone returns text, or "none": an empty section would hide a broken test.
func orNone(text []byte) []byte {
	if len(text) == 0 {
		return []byte("none\n")
	}
	return text
}

// world generates the resources of a gRPC client of namespace shop.
type world struct {
	t     *testing.T
	name  string
	pc    *index.PushContext
	class index.ProxyClass

	metadata *structpb.Struct // of the client
}

func (w *world) load(text []byte) {
	w.t.Helper()
	w.pc = meshtest.PushContext(w.t, meshtest.YAML(w.t, string(text))...)
	w.class = index.Classify(w.pc, &proxy.Proxy{GRPC: true, Namespace: "shop", Metadata: w.metadata})
}

func (w *world) generate(rt ident.ResourceType) (*xds.Set, []problem.Diagnostic) {
	catalog := xds.NewCatalog(w.pc)
	return catalog.Set(w.class, rt), catalog.Diagnostics()
}

// show returns all resources of a type as YAML.
func (w *world) show(rt ident.ResourceType) []byte {
	w.t.Helper()
	var out []byte
	set, _ := w.generate(rt)
	for i, r := range set.Resources {
		if i > 0 {
			out = append(out, "---\n"...)
		}
		m := decode(w.t, rt, r)
		for _, p := range validate.CheckGRPC(m) {
			if p.Code != validate.Unsupported {
				w.t.Errorf("gRPC clients would reject %s: %v", r.Name, p)
			}
		}
		b, err := protojson.Marshal(m)
		if err != nil {
			w.t.Fatal(err)
		}
		if b, err = yaml.JSONToYAML(b); err != nil {
			w.t.Fatal(err)
		}
		out = append(out, b...)
	}
	return out
}

func (w *world) problems() []byte {
	var all []string
	for rt := range ident.ResourceTypes {
		_, problems := w.generate(rt)
		for _, d := range problems {
			line := fmt.Sprintf("%s %s %s/%s %s: %s; %s; %s\n", d.Severity, d.Code, d.Key.Kind, d.Key.Name, d.Field, d.Reason, d.Advice, d.Effect)
			if !slices.Contains(all, line) {
				all = append(all, line)
			}
		}
	}
	return []byte(strings.Join(all, ""))
}

func decode(t testing.TB, rt ident.ResourceType, r *xds.Resource) proto.Message {
	t.Helper()
	m := [...]proto.Message{
		ident.CDS: new(clusterv3.Cluster), ident.EDS: new(endpointv3.ClusterLoadAssignment),
		ident.LDS: new(listenerv3.Listener), ident.RDS: new(routev3.RouteConfiguration),
	}[rt]
	if err := proto.Unmarshal(r.Value(), m); err != nil {
		t.Fatal(err)
	}
	return m
}
