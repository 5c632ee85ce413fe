package fleet

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// Fields of envoy.config.core.v3.Node.
const (
	nodeID        = 1
	nodeCluster   = 2
	nodeMetadata  = 3
	nodeUserAgent = 6
)

// Sidecar returns the node of the i-th proxy: a sidecar in Istio's format, of
// a namespace.
func Sidecar(i int, namespace string) ([]byte, error) {
	name, ip := fmt.Sprintf("load-%d", i), fmt.Sprintf("10.1.%d.%d", i/250, i%250+1)
	metadata, err := structpb.NewStruct(map[string]any{
		"NAME": name, "NAMESPACE": namespace, "CLUSTER_ID": "Kubernetes", "MESH_ID": "cluster.local",
		"ISTIO_VERSION": "1.31.1", "INTERCEPTION_MODE": "REDIRECT", "SERVICE_ACCOUNT": "load",
		"WORKLOAD_NAME": "load", "INSTANCE_IPS": ip,
		"PROXY_CONFIG": map[string]any{"discoveryAddress": "istiod.istio-system.svc:15012", "serviceCluster": "istio-proxy"}, // as Istio's agent sends it
		"LABELS":       map[string]any{"app": "load", "version": "v1", "statefulset.kubernetes.io/pod-name": name},
	})
	if err != nil {
		return nil, err
	}
	encoded, err := proto.Marshal(metadata)
	if err != nil {
		return nil, err
	}
	b := appendText(nil, nodeID, fmt.Sprintf("sidecar~%s~%s.%s~%s.svc.cluster.local", ip, name, namespace, namespace))
	b = appendText(b, nodeCluster, "load."+namespace)
	b = appendText(b, nodeMetadata, encoded)
	return appendText(b, nodeUserAgent, "envoy"), nil
}
