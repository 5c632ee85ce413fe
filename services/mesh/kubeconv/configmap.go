package kubeconv

import (
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/types/known/anypb"

	corev1 "k8s.io/api/core/v1"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/manifest"
	"meshlog.dev/services/mesh/problem"
)

// ConfigMap converts a ConfigMap: its data.
func ConfigMap(c *corev1.ConfigMap) (*registryv1.Object, error) {
	content := map[string]any{}
	if len(c.Data) > 0 {
		content["data"] = c.Data
	}
	if len(c.BinaryData) > 0 {
		content["binaryData"] = c.BinaryData
	}
	b, err := json.Marshal(content)
	if err != nil {
		return nil, &problem.Diagnostic{Reason: err.Error()}
	}
	return &registryv1.Object{ApiVersion: "v1", Kind: "ConfigMap", Json: b}, nil
}

// Document is an object in the text of another one.
type Document struct {
	Kind, Name string
	Payload    *anypb.Any
	// Origin tells users where it is, with the line of the first error in it.
	Origin string
}

// Mesh converts the ConfigMap with Istio's settings of a mesh: the key mesh has the
// MeshConfig and meshNetworks the MeshNetworks, each named default. Invalid text
// becomes an Undecoded.
func Mesh(c *corev1.ConfigMap) []Document {
	var docs []Document
	for _, of := range [][2]string{{"mesh", "MeshConfig"}, {"meshNetworks", "MeshNetworks"}} {
		text, there := c.Data[of[0]]
		k, known := kind.ByName(of[1])
		if !there || !known {
			continue
		}
		d := Document{Kind: of[1], Name: k.Only}
		var line int
		d.Payload, line = settings(k, []byte(text))
		d.Origin = fmt.Sprintf("ConfigMap %s/%s, %s:%d", c.Namespace, c.Name, of[0], line)
		docs = append(docs, d)
	}
	return docs
}

// settings returns the payload of the text of a spec, and the line of the first error
// in it.
func settings(k *kind.Kind, text []byte) (*anypb.Any, int) {
	bad := func(e *problem.Diagnostic) (*anypb.Any, int) {
		return undecoded(text, "application/yaml", e), max(e.Line, 1)
	}
	d := manifest.Spec(text)
	if d.Err != nil {
		return bad(d.Err)
	}
	m, err := k.DecodeJSON(d.Spec)
	if err != nil {
		return bad(located(k, d, err))
	}
	p, err := encoded(k, m)
	if err != nil {
		return bad(&problem.Diagnostic{Reason: err.Error()})
	}
	for _, found := range k.Validate(m) {
		if found.Severity == problem.Error {
			return p, d.FieldLine(found.Field)
		}
	}
	return p, 1
}
