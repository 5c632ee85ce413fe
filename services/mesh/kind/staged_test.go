package kind_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/services/mesh/kind"
)

// A pin and a rollout are about these kinds only. Endpoints, what describes workloads,
// Secrets, roots, keys of tokens, policies and grants are the same for all proxies at any time, and
// so are the settings of the whole mesh.
func TestStaged(t *testing.T) {
	var staged, same []string
	for _, k := range kind.All() {
		if k.Staged() {
			staged = append(staged, k.Name)
		} else {
			same = append(same, k.Name)
		}
	}
	if diff := cmp.Diff([]string{
		"BackendTLSPolicy", "DestinationRule", "EnvoyFilter", "GRPCRoute", "Gateway", "GatewayClass",
		"HTTPRoute", "Ingress", "IngressClass", "KubernetesGateway", "ListenerSet", "ProxyConfig",
		"Resource", "Service", "ServiceEntry", "Sidecar", "TCPRoute", "TLSRoute", "Telemetry",
		"TrafficExtension", "VirtualService", "WasmPlugin", "WorkloadGroup",
	}, staged); diff != "" {
		t.Errorf("kinds of which proxies may have different objects (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"AuthorizationPolicy", "ConfigMap", "EndpointSlice", "Jwks", "MeshConfig", "MeshNetworks",
		"MeshPolicy", "Namespace", "Node", "PeerAuthentication", "Pod", "ReferenceGrant",
		"RequestAuthentication", "Secret", "TrustBundle", "WorkloadEntry",
	}, same); diff != "" {
		t.Errorf("kinds that are the same for all proxies (-want +got):\n%s", diff)
	}
}

// The README of the watchers lists the kinds that a rollout stages.
func TestStagedInReadme(t *testing.T) {
	readme, err := os.ReadFile("../../watcher/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(readme), "*What is staged*: objects of the kinds ")
	list, _, ok := strings.Cut(list, ".\n")
	if !ok {
		t.Fatal("the README lists no kinds that are staged")
	}
	list = strings.NewReplacer("Gateway (Istio's and Kubernetes')", "Gateway, KubernetesGateway", " and ", ", ").Replace(list)
	got := strings.Split(list, ", ")
	slices.Sort(got)
	var want []string
	for _, k := range kind.All() {
		if k.Staged() {
			want = append(want, k.Name)
		}
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kinds that are staged (-want +got):\n%s", diff)
	}
}
