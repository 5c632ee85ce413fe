package kind_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"sigs.k8s.io/yaml"

	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/mesh/kind"
)

// definition holds the parts of a CustomResourceDefinition that the test reads.
type definition struct {
	Spec struct {
		Group    string
		Scope    string
		Names    struct{ Kind, Plural string }
		Versions []struct {
			Name   string
			Schema struct{ OpenAPIV3Schema schema }
		}
	}
}

type schema struct {
	Type       string
	Properties map[string]*schema
	Items      *schema
	Enum       []string
	// Open means that the schema accepts fields that it does not name.
	Open bool `json:"x-kubernetes-preserve-unknown-fields"`
}

// TestDefinitions checks that the definitions of meshlog's own kinds have the
// fields of the protobuf types in the table, with the same names.
func TestDefinitions(t *testing.T) {
	const dir = "../../../deploy/kubernetes/crds"
	var own []string
	for _, k := range kind.All() {
		if k.Form == kind.Produced {
			continue // no cluster has one
		}
		if k.Group == "meshlog.dev" || strings.HasSuffix(k.Group, ".meshlog.dev") {
			own = append(own, k.Name)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if filepath.Base(file) == "kustomization.yaml" {
			continue
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d definition
		if err := yaml.Unmarshal(b, &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		own = slices.DeleteFunc(own, func(name string) bool { return name == d.Spec.Names.Kind })
		checkDefinition(t, d)
	}
	if len(own) > 0 || len(files) == 0 {
		t.Errorf("no definition of %v in %s", own, dir)
	}
}

func checkDefinition(t *testing.T, d definition) {
	k := mustKind(t, d.Spec.Names.Kind)
	if k.Group != d.Spec.Group || k.Namespaced != (d.Spec.Scope == "Namespaced") {
		t.Errorf("%s: group %s and scope %s differ from the table", k.Name, d.Spec.Group, d.Spec.Scope)
	}
	var versions []string
	for _, v := range d.Spec.Versions {
		versions = append(versions, v.Name)
		m, err := k.Decode(k.TypeURL, nil)
		if err != nil {
			t.Fatal(err)
		}
		checkSchema(t, k.Name+" spec", v.Schema.OpenAPIV3Schema.Properties["spec"], m.ProtoReflect().Descriptor())
	}
	if !slices.Equal(versions, k.Versions) {
		t.Errorf("%s: got versions %v, the table has %v", k.Name, versions, k.Versions)
	}
}

func checkSchema(t *testing.T, path string, s *schema, m protoreflect.MessageDescriptor) {
	if s == nil || s.Type != "object" {
		t.Errorf("%s: want an object", path)
		return
	}
	free := m.FullName() == "google.protobuf.Any" || m.FullName() == "google.protobuf.Struct"
	if s.Open != free {
		t.Errorf("%s: preserve-unknown-fields is %t; the type is %s, want %t", path, s.Open, m.FullName(), free)
	}
	if free {
		return
	}
	names := map[string]bool{}
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		names[f.JSONName()] = true
		checkField(t, path+"."+f.JSONName(), s.Properties[f.JSONName()], f)
	}
	for name := range s.Properties {
		if !names[name] {
			t.Errorf("%s.%s: %s has no such field", path, name, m.FullName())
		}
	}
}

// schemaTypes maps protobuf types to types in a schema.
var schemaTypes = map[protoreflect.Kind]string{
	protoreflect.StringKind: "string", protoreflect.BoolKind: "boolean", protoreflect.Uint32Kind: "integer",
}

func checkField(t *testing.T, path string, s *schema, f protoreflect.FieldDescriptor) {
	if s == nil {
		t.Errorf("%s: is missing", path)
		return
	}
	if f.IsMap() {
		if s.Type != "object" {
			t.Errorf("%s: type %q, want object", path, s.Type)
		}
		return
	}
	if f.IsList() {
		if s.Type != "array" || s.Items == nil {
			t.Errorf("%s: want an array", path)
			return
		}
		s = s.Items
	}
	if f.Message() != nil && f.Message().FullName() == "google.protobuf.Duration" { // in JSON, a text such as 1.5s
		if s.Type != "string" {
			t.Errorf("%s: type %q, want string", path, s.Type)
		}
		return
	}
	if f.Message() != nil {
		checkSchema(t, path, s, f.Message())
		return
	}
	if want := schemaTypes[f.Kind()]; s.Type != want || want == "" {
		t.Errorf("%s: type %q, want %q", path, s.Type, want)
	}
}

// TestDefinitionOfResource checks that the definition accepts exactly the Envoy
// types that meshlog serves.
func TestDefinitionOfResource(t *testing.T) {
	b, err := os.ReadFile("../../../deploy/kubernetes/crds/resources.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var d definition
	if err := yaml.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	types := d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["resource"].Properties["@type"].Enum
	if len(types) != 4 {
		t.Errorf("%d types, want 4: %v", len(types), types)
	}
	k := mustKind(t, "Resource")
	for _, url := range types {
		for _, p := range k.Validate("", &configv1.Resource{Resource: &anypb.Any{TypeUrl: url}}) {
			if p.Field == "spec.resource" {
				t.Errorf("%s: %s", url, p.Reason)
			}
		}
	}
}
