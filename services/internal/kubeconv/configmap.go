package kubeconv

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	corev1 "k8s.io/api/core/v1"

	"meshlog.dev/events"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/internal/kind"
	"meshlog.dev/services/internal/manifest"
)

// ConfigMap takes over the data of a ConfigMap. One with a private key in it is
// an *Error: the log is no place for keys.
func ConfigMap(c *corev1.ConfigMap) (*registryv1.Object, error) {
	content := map[string]any{}
	if len(c.Data) > 0 {
		content["data"] = c.Data
	}
	if len(c.BinaryData) > 0 {
		content["binaryData"] = c.BinaryData
	}
	for _, field := range slices.Sorted(maps.Keys(c.Data)) {
		if kind.HasPrivateKey(c.Data[field]) {
			return nil, &Error{Field: fmt.Sprintf("data[%q]", field), Reason: "holds a private key, which does not go on the log; put it into a Secret"}
		}
	}
	for _, field := range slices.Sorted(maps.Keys(c.BinaryData)) {
		if kind.HasPrivateKey(string(c.BinaryData[field])) {
			return nil, &Error{Field: fmt.Sprintf("binaryData[%q]", field), Reason: "holds a private key, which does not go on the log; put it into a Secret"}
		}
	}
	b, err := json.Marshal(content)
	if err != nil {
		return nil, &Error{Reason: err.Error()}
	}
	return &registryv1.Object{ApiVersion: "v1", Kind: "ConfigMap", Json: b}, nil
}

// Document is an object that another one holds as text.
type Document struct {
	Kind, Name string
	Payload    events.Payload
	// Origin is where a person finds it, with the line of what is wrong in it.
	Origin string
}

// Mesh reads the ConfigMap in which Istio keeps the settings of a mesh: of the
// key mesh the MeshConfig, of meshNetworks the MeshNetworks, each named default
// and there if its key is. What cannot be read is an Undecoded.
func Mesh(c *corev1.ConfigMap) []Document {
	var docs []Document
	for _, of := range [][2]string{{"mesh", "MeshConfig"}, {"meshNetworks", "MeshNetworks"}} {
		text, there := c.Data[of[0]]
		k, known := kind.ByName(of[1])
		if !there || !known {
			continue
		}
		d := Document{Kind: of[1], Name: cmp.Or(k.Only, "default")}
		var line int
		d.Payload, line = settings(k, []byte(text))
		d.Origin = fmt.Sprintf("ConfigMap %s/%s, %s:%d", c.Namespace, c.Name, of[0], line)
		docs = append(docs, d)
	}
	return docs
}

// settings is the payload of a text that is a spec, and the line of the first
// thing that is wrong in it.
func settings(k *kind.Kind, text []byte) (events.Payload, int) {
	d := manifest.Spec(text)
	if d.Err != nil {
		return undecodedText(text, &Error{Line: d.Err.Line, Field: d.Err.Field, Reason: d.Err.Reason})
	}
	m, err := k.DecodeJSON(d.Spec)
	if err != nil {
		return undecodedText(text, located(k, d, err))
	}
	b, err := k.Encode(m)
	if err != nil {
		return undecodedText(text, &Error{Line: 1, Field: "spec", Reason: err.Error()})
	}
	for _, p := range k.Validate(m) {
		if !p.Warning {
			return events.Payload{Type: k.TypeURL, Bytes: b}, d.FieldLine(p.Field)
		}
	}
	return events.Payload{Type: k.TypeURL, Bytes: b}, 1
}

func undecodedText(text []byte, e *Error) (events.Payload, int) {
	u := &registryv1.Undecoded{Data: []byte(valid(string(text))), MediaType: "application/yaml", Field: valid(e.Field), Error: valid(e.Reason)}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(u)
	if err != nil { // texts and bytes: it cannot be
		b = nil
	}
	return events.Payload{Type: kind.Undecoded, Bytes: b}, e.Line
}
