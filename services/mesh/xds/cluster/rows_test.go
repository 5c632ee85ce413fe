package cluster

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	"sigs.k8s.io/yaml"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds/piece"
)

var update = flag.Bool("update", false, "rewrite the output in testdata")

// Each archive in testdata shows a row of ROWS.md: parts of a world, and the
// output. Clusters show only fields that differ from those of plain.txtar.
func TestRows(t *testing.T) {
	for _, path := range archives(t) {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			row := readRow(t, a)
			if *update {
				if err := os.WriteFile(path, txtar.Format(row.archive(t)), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			got := row.archive(t)
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

// row is an archive.
type row struct {
	comment []byte
	input   []txtar.File
	output  []string // names of the output files
	service *index.Service
	mesh    *meshconfig.MeshConfig
	rule    *networking.DestinationRule
	ends    index.Endpoints
}

// inputs are the input files of an archive; all others are output.
var inputs = []string{"service.yaml", "rule.yaml", "mesh.yaml"}

func readRow(t *testing.T, a *txtar.Archive) *row {
	t.Helper()
	r := &row{comment: a.Comment, mesh: &meshconfig.MeshConfig{}}
	for _, f := range a.Files {
		if !slices.Contains(inputs, f.Name) {
			r.output = append(r.output, f.Name)
			continue
		}
		r.input = append(r.input, f)
		switch f.Name {
		case "service.yaml":
			r.service, r.ends = readService(t, f.Data)
		case "rule.yaml":
			r.rule = &networking.DestinationRule{}
			readMessage(t, f.Data, r.rule)
		case "mesh.yaml":
			readMessage(t, f.Data, r.mesh)
		}
	}
	if r.mesh.ConnectTimeout == nil {
		r.mesh.ConnectTimeout = &durationpb.Duration{Seconds: 10}
	}
	return r
}

func (r *row) maker(router bool) *maker {
	m := &maker{mesh: r.mesh, service: r.service, rule: r.rule, endpoints: r.ends, router: router}
	if r.rule != nil {
		m.ruleKey = ident.Key{Source: "file", Kind: "DestinationRule", Namespace: "shop", Name: "rule"}
	}
	return m
}

// certify makes m that of a proxy with a certificate, in a mesh without PeerAuthentications.
func (m *maker) certify(all index.Endpoints) {
	m.mutual, m.certificates, m.trust = true, proxy.Certificates{Agent: true}, index.NewPushContext(world.NewWorld()).Read().Trust()
	for _, list := range all {
		for _, e := range list {
			m.identities.MutualTLS = m.identities.MutualTLS || e.MutualTLS
			if account := "shop/" + e.ServiceAccount; e.ServiceAccount != "" && !slices.Contains(m.identities.Accounts, account) {
				m.identities.Accounts = append(m.identities.Accounts, account)
			}
		}
	}
	slices.Sort(m.identities.Accounts)
}

// archive returns the row with the current output.
func (r *row) archive(t *testing.T) *txtar.Archive {
	t.Helper()
	if len(r.output) == 0 {
		t.Fatal("the archive has no output")
	}
	a := &txtar.Archive{Comment: r.comment, Files: slices.Clone(r.input)}
	sidecar, router, certified := r.maker(false), r.maker(true), r.maker(false)
	certified.certify(r.ends)
	for _, name := range r.output {
		f := txtar.File{Name: name}
		switch name {
		case "sidecar":
			f.Data = show(t, sidecar.clusters())
		case "router":
			f.Data = show(t, router.clusters())
		case "certified": // a sidecar that has a certificate of the mesh
			f.Data = show(t, certified.clusters())
		case "networks": // of a router between networks
			f.Data = append(show(t, certified.networkClusters()), show(t, certified.networkAssignments())...)
		case "endpoints":
			f.Data = show(t, sidecar.assignments())
		case "certified-endpoints":
			f.Data = show(t, certified.assignments())
		case "problems":
			for _, d := range append(sidecar.problems, certified.problems...) {
				f.Data = fmt.Appendf(f.Data, "%s %s %s %s: %s; %s; %s\n", d.Severity, d.Code, d.Key.Name, d.Field, d.Reason, d.Advice, d.Effect)
			}
		default:
			t.Fatalf("unknown output %q", name)
		}
		if len(f.Data) == 0 {
			f.Data = []byte("none\n") // so that an empty section always fails
		}
		a.Files = append(a.Files, f)
	}
	return a
}

// show returns pieces as YAML.
func show(t *testing.T, pieces []piece.Piece) []byte {
	t.Helper()
	var out []byte
	for i, p := range pieces {
		if i > 0 {
			out = append(out, "---\n"...)
		}
		if c, ok := p.Message.(*clusterv3.Cluster); ok && !strings.HasPrefix(p.Name, "outbound|9999|") {
			out = append(out, differences(t, c)...)
			continue
		}
		out = append(out, asYAML(t, p.Message)...)
	}
	return out
}

// differences returns c without metadata and without the fields that every cluster
// of an HTTP port has. A comment names those of these fields that c lacks.
func differences(t *testing.T, c *clusterv3.Cluster) []byte {
	t.Helper()
	plain := &maker{mesh: &meshconfig.MeshConfig{ConnectTimeout: &durationpb.Duration{Seconds: 10}}, service: &index.Service{
		Ports: []index.Port{{Number: 80, Protocol: index.HTTP}},
	}}
	shown := proto.Clone(c).(*clusterv3.Cluster)
	shown.Metadata = nil
	var without []string
	plain.clusters()[0].Message.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, usual protoreflect.Value) bool {
		switch m := shown.ProtoReflect(); {
		case fd.Name() == "name":
		case !m.Has(fd):
			without = append(without, fd.JSONName())
		case m.Get(fd).Equal(usual):
			m.Clear(fd)
		}
		return true
	})
	out := asYAML(t, shown)
	if len(without) > 0 {
		slices.Sort(without)
		out = fmt.Appendf(out, "# without %s\n", strings.Join(without, ", "))
	}
	return out
}

func asYAML(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if b, err = yaml.JSONToYAML(b); err != nil {
		t.Fatal(err)
	}
	return b
}

func readMessage(t *testing.T, text []byte, m proto.Message) {
	t.Helper()
	b, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := protojson.Unmarshal(b, m); err != nil {
		t.Fatal(err)
	}
}

// readService reads a service from service.yaml.
func readService(t *testing.T, text []byte) (*index.Service, index.Endpoints) {
	t.Helper()
	var in struct {
		index.Service
		Resolution string
		Ports      []struct {
			index.Port
			Protocol string
		}
		Endpoints map[string][]struct {
			index.Endpoint
			Health   string
			Locality string
		}
	}
	if err := yaml.UnmarshalStrict(text, &in); err != nil {
		t.Fatal(err)
	}
	s := &in.Service
	s.Namespace = "shop"
	s.Key = ident.Key{Source: "file", Kind: "Service", Namespace: "shop", Name: "service"}
	s.Resolution = word(t, in.Resolution, map[string]index.Resolution{
		"": index.Static, "DNS": index.DNS, "DNS_ROUND_ROBIN": index.DNSRoundRobin, "NONE": index.Passthrough, "DYNAMIC_DNS": index.DynamicDNS,
	})
	for _, p := range in.Ports {
		p.Port.Protocol = word(t, p.Protocol, map[string]index.Protocol{
			"": index.Sniffed, "HTTP": index.HTTP, "HTTP2": index.HTTP2, "GRPC": index.GRPC, "HTTPS": index.HTTPS, "TCP": index.TCP,
		})
		s.Ports = append(s.Ports, p.Port)
	}
	ends := index.Endpoints{}
	for port, all := range in.Endpoints {
		var number uint32
		if err := json.Unmarshal([]byte(port), &number); err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			e.Endpoint.Health = word(t, e.Health, map[string]index.Health{"": index.Healthy, "unhealthy": index.Unhealthy, "draining": index.Draining})
			e.Endpoint.Weight = max(e.Endpoint.Weight, 1)
			parts := append(strings.Split(e.Locality, "/"), "", "", "")
			e.Endpoint.Locality = proxy.Locality{Region: parts[0], Zone: parts[1], SubZone: parts[2]}
			ends[number] = append(ends[number], e.Endpoint)
		}
	}
	return s, ends
}

func word[T any](t *testing.T, text string, words map[string]T) T {
	t.Helper()
	v, ok := words[text]
	if !ok {
		t.Fatalf("unknown word %q", text)
	}
	return v
}

// Clusters and assignments have the same bytes each time, and pass the validation
// that is generated for their messages.
func TestRowsAreValidAndDeterministic(t *testing.T) {
	for _, path := range archives(t) {
		a, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		row := readRow(t, a)
		for _, router := range []bool{false, true} {
			m, again := row.maker(router), row.maker(router)
			pieces, repeated := append(m.clusters(), m.assignments()...), append(again.clusters(), again.assignments()...)
			for i, p := range pieces {
				if err := validate(p.Message); err != nil {
					t.Errorf("%s: %s: %v", path, p.Name, err)
				}
				if !slices.Equal(encoded(t, p.Message), encoded(t, repeated[i].Message)) {
					t.Errorf("%s: %s has other bytes the second time", path, p.Name)
				}
			}
		}
	}
}

func validate(m proto.Message) error {
	switch m := m.(type) {
	case *clusterv3.Cluster:
		return m.ValidateAll()
	case *endpointv3.ClusterLoadAssignment:
		return m.ValidateAll()
	}
	return fmt.Errorf("%T is no message of CDS or EDS", m)
}

func encoded(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
