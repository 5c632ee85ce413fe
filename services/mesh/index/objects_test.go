package index_test

import (
	"encoding/json"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	. "meshlog.dev/services/mesh/meshtest"
)

// Namespace puts a Namespace with these labels.
func Namespace(name string, labels map[string]string) Change {
	return Object("Namespace", "", name, object(labels, nil))
}

// Node puts a Node with these labels and external IPs.
func Node(name string, labels map[string]string, externalIPs ...string) Change {
	return Object("Node", "", name, object(labels, externalIPs))
}

func object(labels map[string]string, externalIPs []string) *registryv1.Object {
	o := map[string]any{"metadata": map[string]any{"labels": labels}}
	if len(externalIPs) > 0 {
		o["externalIPs"] = externalIPs
	}
	b, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return &registryv1.Object{Json: b}
}
