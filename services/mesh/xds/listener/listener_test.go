package listener_test

import (
	"fmt"
	"slices"
	"testing"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/listener"
)

// A change of the MeshConfig makes all parts again that have read it. Each TCP
// service has a filter chain, so filter chains must not read the MeshConfig.
func TestFilterChainsDoNotReadMeshConfig(t *testing.T) {
	pc := meshtest.PushContext(t, meshtest.YAML(t, `apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {clusterIP: 10.1.0.1, ports: [{name: tcp, port: 3306}]}
---
apiVersion: v1
kind: Service
metadata: {name: cache, namespace: shop}
spec: {clusterIP: 10.1.0.2, ports: [{name: tcp, port: 6379}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: cache, namespace: shop}
spec:
  hosts: [cache]
  tcp: [{route: [{destination: {host: db, port: {number: 3306}}}]}]
`)...)
	class := index.Classify(pc, &proxy.Proxy{Type: proxy.Sidecar, Namespace: "shop"}).LDS
	var all, reading []string
	for _, part := range listener.Listeners(pc.Read(), class) {
		r := pc.Read()
		part.Make(r)
		all = append(all, fmt.Sprintf("%T", part))
		if slices.Contains(r.Inputs(), index.Input{Kind: index.InputMesh}) {
			reading = append(reading, fmt.Sprintf("%T", part))
		}
	}
	want := []string{"listener.virtualOutbound", "listener.head", "listener.connections", "listener.head", "listener.connections",
		"listener.inboundHead", "listener.closedPorts", "listener.inboundChains"}
	reads := []string{want[0], want[5], want[7]}
	if !slices.Equal(all, want) {
		t.Fatalf("the parts are %v, want %v", all, want)
	}
	if !slices.Equal(reading, reads) {
		t.Errorf("%v read the MeshConfig, want %v", reading, reads)
	}
}
