package document

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/kubeconv"
)

// Of returns the fields of a document from which Read reads the value v of the key k
// again, with its time of creation. It is an error if this build cannot read the value,
// or no document has it.
func Of(k ident.Key, v ident.Value) (map[string]any, error) {
	kd, ok := kind.ByName(k.Kind)
	if !ok {
		return nil, fmt.Errorf("this build knows no kind %q", k.Kind)
	}
	m, err := kd.Decode(v.Type, v.Bytes)
	if err != nil {
		return nil, err
	}
	fields, err := fieldsOf(kd, k, v, m)
	if err != nil {
		return nil, err
	}
	if o, ok := m.(*registryv1.Object); ok && o.GetApiVersion() != "" {
		fields["apiVersion"] = o.GetApiVersion()
	}
	if !v.Created.IsZero() {
		fields["metadata"].(map[string]any)["creationTimestamp"] = v.Created.UTC().Format(time.RFC3339Nano)
	}
	return fields, nil
}

func fieldsOf(kd *kind.Kind, k ident.Key, v ident.Value, m proto.Message) (map[string]any, error) {
	if kd.Form == kind.Converted {
		fields, err := kubeconv.ToJSON(kd.Name, m)
		if err != nil {
			return nil, err
		}
		return named(kd, k.Namespace, k.Name, fields), nil
	}
	doc, err := kind.Document(k.Kind, v.Type, v.Bytes)
	if err != nil {
		return nil, err
	}
	return Fields(kd, k.Namespace, k.Name, doc)
}

// Fields returns the fields of a document for what kind.Document returned about an
// object of a kind in the form Spec or Whole.
func Fields(kd *kind.Kind, namespace, name string, doc json.RawMessage) (map[string]any, error) {
	fields := map[string]any{"spec": doc}
	if kd.Form == kind.Whole {
		fields = nil
		d := json.NewDecoder(bytes.NewReader(doc))
		d.UseNumber() // the payload has them as they were written
		if err := d.Decode(&fields); err != nil {
			return nil, err
		}
		return named(kd, namespace, name, fields), nil
	}
	annotation := map[string][2]string{ // with the value of a valid and of an invalid one
		"AuthorizationPolicy":   {kind.DryRunAnnotation, "true"},
		"RequestAuthentication": {kind.KeysAnnotation, "envoy"},
	}[kd.Name]
	var wrapped struct { // a registry.v1.DryRun or ProxyKeys
		Policy            json.RawMessage
		InvalidAnnotation bool
	}
	if annotation[0] != "" && json.Unmarshal(doc, &wrapped) == nil && wrapped.Policy != nil {
		var spec map[string]json.RawMessage
		if err := json.Unmarshal(wrapped.Policy, &spec); err != nil {
			return nil, err
		}
		delete(spec, "@type")
		if wrapped.InvalidAnnotation {
			annotation[1] = "unknown" // the log does not have the text
		}
		fields["spec"] = spec
		fields["metadata"] = map[string]any{"annotations": map[string]any{annotation[0]: annotation[1]}}
	}
	return named(kd, namespace, name, fields), nil
}

// named adds what names the object of a document.
func named(kd *kind.Kind, namespace, name string, fields map[string]any) map[string]any {
	meta, ok := fields["metadata"].(map[string]any)
	if !ok {
		meta = map[string]any{}
	}
	meta["name"] = name
	if namespace != "" {
		meta["namespace"] = namespace
	}
	fields["apiVersion"], fields["kind"], fields["metadata"] = kd.APIVersion(), kd.DocumentKind(), meta
	return fields
}

// YAML returns fields as YAML, with numbers as they are in JSON.
func YAML(fields map[string]any) ([]byte, error) {
	text, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	var n yaml.Node
	if err := yaml.Unmarshal(text, &n); err != nil {
		return nil, err
	}
	plain(&n)
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(&n); err != nil {
		return nil, err
	}
	return b.Bytes(), e.Close()
}

// plain writes a node as people do: collections on several lines, and texts without
// quotes where they need none.
func plain(n *yaml.Node) {
	if len(n.Content) > 0 || n.Kind == yaml.ScalarNode {
		n.Style = 0
	}
	for _, c := range n.Content {
		plain(c)
	}
}
