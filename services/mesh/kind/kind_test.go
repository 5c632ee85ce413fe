package kind_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
)

func TestTable(t *testing.T) {
	names := map[string]bool{}
	for _, k := range kind.All() {
		if names[k.Name] {
			t.Errorf("%s is in the table twice", k.Name)
		}
		names[k.Name] = true
		if got, ok := kind.ByName(k.Name); !ok || got != k {
			t.Errorf("ByName(%s) = %v, %t", k.Name, got, ok)
		}
		for _, v := range k.Versions {
			if got, ok := kind.ByGVK(k.Group, v, k.DocumentKind()); !ok || got != k {
				t.Errorf("ByGVK(%s, %s, %s) = %v, %t", k.Group, v, k.DocumentKind(), got, ok)
			}
		}
		m, err := k.Decode(k.TypeURL, nil)
		if err != nil {
			t.Errorf("%s: an empty payload: %v", k.Name, err)
		}
		if url := "type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName()); url != k.TypeURL {
			t.Errorf("%s decodes to %s, its payload is %s", k.Name, url, k.TypeURL)
		}
	}
	if _, ok := kind.ByGVK("envoy.meshlog.dev", "v2", "Resource"); ok {
		t.Error("ByGVK finds a version that is not in the table")
	}
}

func mustKind(t testing.TB, name string) *kind.Kind {
	t.Helper()
	k, ok := kind.ByName(name)
	if !ok {
		t.Fatalf("no kind %s", name)
	}
	return k
}

func TestDecode(t *testing.T) {
	k := mustKind(t, "Resource")
	u, err := proto.Marshal(&registryv1.Undecoded{Error: "line 3: unknown field \"x\""})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, typeURL string
		bytes         []byte
		want          string
	}{
		{"undecoded", ident.Undecoded, u, "line 3: unknown field \"x\""},
		{"another type", "type.googleapis.com/meshlog.config.v1.MeshPolicy", nil, "a Resource holds"},
		{"no protobuf", k.TypeURL, []byte{0xff}, "type.googleapis.com/meshlog.config.v1.Resource: "},
	} {
		if _, err := k.Decode(c.typeURL, c.bytes); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", c.name, err, c.want)
		}
	}
}

func TestDecodeJSON(t *testing.T) {
	for _, c := range []struct{ name, kind, json, want string }{
		{"unknown field", "MeshPolicy", "{\n \"guard\": {\n  \"max\": 1\n }\n}", `line 3: unknown field "max"`},
		{"unknown field within @type", "Resource", "{\"resource\": {\n\"@type\": \"type.googleapis.com/envoy.config.cluster.v3.Cluster\",\n\"nam\": \"x\"}}", `line 3: unknown field "nam"`},
		{"unknown @type", "Resource", `{"resource": {"@type": "type.googleapis.com/x.Y"}}`, `line 1: unable to resolve "type.googleapis.com/x.Y": "not found"`},
		{"wrong type", "MeshPolicy", `{"guard": 3}`, "line 1: unexpected token 3"},
		{"number", "MeshPolicy", `{"guard": {"minKeys": "many"}}`, `line 1: invalid value for uint32 field minKeys: "many"`},
		{"syntax", "MeshPolicy", `{`, "unexpected EOF"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := mustKind(t, c.kind).DecodeJSON([]byte(c.json))
			var syntax *problem.Diagnostic
			if !errors.As(err, &syntax) || !strings.Contains(syntax.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestEncode(t *testing.T) {
	k := mustKind(t, "MeshConfig")
	a := `{"accessLogFile": "/dev/stdout", "defaultConfig": {"proxyMetadata": {"A": "1", "B": "2", "C": "3"}}}`
	b := `{"default_config": {"proxy_metadata": {"C": "3", "B": "2", "A": "1"}}, "access_log_file": "/dev/stdout"}`
	var bytes [][]byte
	for _, s := range []string{a, b} {
		m, err := k.DecodeJSON([]byte(s))
		if err != nil {
			t.Fatal(err)
		}
		e, err := k.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		bytes = append(bytes, e)
		back, err := k.Decode(k.TypeURL, e)
		if err != nil || !proto.Equal(m, back) {
			t.Errorf("decoded to %v, %v", back, err)
		}
	}
	if diff := cmp.Diff(bytes[0], bytes[1]); diff != "" {
		t.Errorf("two spellings of one object have different bytes:\n%s", diff)
	}
}

func TestEndpointsOnly(t *testing.T) {
	res := func(name string) proto.Message {
		return &configv1.Resource{Resource: &anypb.Any{TypeUrl: "type.googleapis.com/envoy.config." + name}}
	}
	cla, cluster := res("endpoint.v3.ClusterLoadAssignment"), res("cluster.v3.Cluster")
	k := mustKind(t, "Resource")
	for _, c := range []struct {
		name     string
		old, new proto.Message
		want     bool
	}{
		{"changed", cla, cla, true},
		{"added", nil, cla, true},
		{"removed", cla, nil, true},
		{"became a cluster", cla, cluster, false},
		{"cluster", cluster, cluster, false},
	} {
		if got := k.EndpointsOnly(c.old, c.new); got != c.want {
			t.Errorf("%s: %t, want %t", c.name, got, c.want)
		}
	}
	if mustKind(t, "MeshPolicy").EndpointsOnly(nil, nil) {
		t.Error("a MeshPolicy holds no endpoints")
	}
}

// A namespace that an object is exported to by name and as "." is there twice:
// section 5, item 15 (VIS-1).
func TestExportedTwice(t *testing.T) {
	to := []string{".", "prod"}
	for name, m := range map[string]proto.Message{
		"VirtualService":  &networking.VirtualService{Hosts: []string{"a.b"}, Tcp: []*networking.TCPRoute{{Route: []*networking.RouteDestination{{Destination: &networking.Destination{Host: "a"}}}}}, ExportTo: to},
		"DestinationRule": &networking.DestinationRule{Host: "a", ExportTo: to},
		"ServiceEntry":    &networking.ServiceEntry{Hosts: []string{"a.b"}, ExportTo: to},
		"Service":         &registryv1.Service{ExternalName: "a.b", ExportTo: to},
	} {
		if got := mustKind(t, name).Validate("dev", m); len(got) > 0 {
			t.Errorf("a %s in another namespace: %+v", name, got)
		}
		got := mustKind(t, name).Validate("prod", m)
		want := "spec.exportTo[1]"
		if name == "Service" {
			want = `metadata.annotations["networking.istio.io/exportTo"][1]`
		}
		if len(got) == 0 || got[0].Severity != problem.Error || got[0].Field != want {
			t.Errorf("a %s in prod: %+v", name, got)
		}
	}
}
