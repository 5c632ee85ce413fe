package kubeconv

import (
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	corev1 "k8s.io/api/core/v1"

	"meshlog.dev/services/mesh/kind/validate"
)

// Node converts a Node: its labels (NOD-1) and its external addresses (SVC-5).
func Node(n *corev1.Node) (proto.Message, error) {
	return context("Node", n.Labels, nil, externalIPs(n))
}

// Namespace converts a Namespace: its labels (NS-1) and the annotations that its
// Services inherit (SVC-11).
func Namespace(n *corev1.Namespace) (proto.Message, error) {
	return context("Namespace", n.Labels, meaningful(n.Annotations), nil)
}

func context(document string, labels, annotations map[string]string, externalIPs []string) (proto.Message, error) {
	object := map[string]any{
		"apiVersion": "v1", "kind": document,
		"metadata": map[string]any{"labels": labels, "annotations": annotations},
	}
	if len(externalIPs) > 0 {
		object["externalIPs"] = externalIPs
	}
	b, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("a %s: %w", document, err)
	}
	return validate.FromObject(b)
}

// meaningful returns the annotations that may affect proxies, or nil.
func meaningful(annotations map[string]string) map[string]string {
	var out map[string]string
	for k, v := range annotations {
		domain, _, _ := strings.Cut(k, "/")
		if domain != "istio.io" && !strings.HasSuffix(domain, ".istio.io") && domain != "meshlog.dev" {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[k] = v
	}
	return out
}
