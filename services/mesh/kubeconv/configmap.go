package kubeconv

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/manifest"
	"meshlog.dev/services/mesh/problem"
)

// ConfigMap converts a ConfigMap: its data.
func ConfigMap(c *corev1.ConfigMap) *registryv1.Object {
	b, _ := json.Marshal(struct { // it cannot fail for texts and bytes
		BinaryData map[string][]byte `json:"binaryData,omitempty"`
		Data       map[string]string `json:"data,omitempty"`
	}{c.BinaryData, c.Data})
	return &registryv1.Object{ApiVersion: "v1", Kind: "ConfigMap", Json: b}
}

// settingsKeys has the key of the settings of a kind in the ConfigMap with Istio's
// settings of a mesh.
var settingsKeys = map[string]string{"MeshConfig": "mesh", "MeshNetworks": "meshNetworks"}

// Mesh converts the settings of a kind in the ConfigMap with Istio's settings of a
// mesh; ok is false if it has none. Invalid text becomes an Undecoded. origin tells
// users where the settings are, with the line of the first error in them.
func Mesh(k *kind.Kind, c *corev1.ConfigMap) (p ident.Value, origin string, ok bool) {
	key := settingsKeys[k.Name]
	text, ok := c.Data[key]
	if !ok {
		return p, "", false
	}
	p, line := settings(k, []byte(text))
	return p, fmt.Sprintf("ConfigMap %s/%s, %s:%d", c.Namespace, c.Name, key, line), true
}

// settings returns the payload of the text of a spec, and the line of the first error
// in it.
func settings(k *kind.Kind, text []byte) (ident.Value, int) {
	d := manifest.Spec(text)
	m, bad := DecodeSpec(k, &d)
	if bad != nil {
		return kind.Undecoded(text, "application/yaml", bad), max(bad.Line, 1)
	}
	p, err := Encode(k, m)
	if err != nil {
		return undecoded(text, "application/yaml", err), 1
	}
	if found := k.Validate("", m); len(found) > 0 && found[0].Severity == problem.Error {
		return p, d.FieldLine(found[0].Field)
	}
	return p, 1
}
