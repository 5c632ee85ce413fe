//go:build registries

package registries

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/istiotest"
	"meshlog.dev/deploy/testkit/kubetest"
	"meshlog.dev/deploy/testkit/testport"
)

// istioObjects are a service that a sidecar without redirection calls at its own port.
const istioObjects = `apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.internal]
  location: MESH_INTERNAL
  ports: [{number: %d, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 127.0.0.1, ports: {http: %d}}]
`

// TestIstiod has a real istiod configure an Envoy that is not Istio's own: the Envoy takes
// all that it is sent, and serves by it. What istiod reads from a mesh, it can therefore
// give to such an Envoy (TST-6).
func TestIstiod(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	kube := kubetest.Start(t)
	must(t, kube.InstallIstioCRDs(ctx))
	access, err := kubetest.Kubeconfig(kube.Config())
	must(t, err)
	dir := t.TempDir()
	file := filepath.Join(dir, "kubeconfig")
	must(t, os.WriteFile(file, access, 0o600))
	web, err := rig.StartBackend("web")
	must(t, err)
	t.Cleanup(web.Stop)
	port, err := testport.TCP()
	must(t, err)
	must(t, kube.Apply(ctx, fmt.Sprintf(istioObjects, port, web.Port)))
	istiod := istiotest.Start(t, istiotest.Options{Kubeconfig: file})

	envoy, err := rig.StartEnvoy(ctx, rig.EnvoyConfig{
		Node: "app", Dir: dir, XDS: []int{istiod.XDS},
		Overlay: "node: {id: sidecar~127.0.0.1~app.shop~shop.svc.cluster.local, cluster: app, metadata: {NAMESPACE: shop, CLUSTER_ID: Kubernetes, INTERCEPTION_MODE: NONE}}",
	})
	must(t, err)
	t.Cleanup(envoy.Kill)
	must(t, envoy.UntilAlive(ctx, "an answer of web", func(ctx context.Context) error {
		_, err := ask(ctx, port, fmt.Sprintf("web.internal:%d", port))
		return err
	}))
	if n, err := envoy.Rejected(ctx); err != nil || n != 0 {
		t.Errorf("Envoy rejected %d responses, %v", n, err)
	}
}
