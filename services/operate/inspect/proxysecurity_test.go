package inspect

import (
	"testing"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/operatetest"
)

const protected = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: mesh, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: cart, namespace: shop}
spec:
  selector: {matchLabels: {app: cart}}
  portLevelMtls: {8080: {mode: PERMISSIVE}, 9000: {mode: DISABLE}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: web, namespace: shop}
spec: {rules: [{from: [{source: {namespaces: [web]}}]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: tried, namespace: shop, annotations: {istio.io/dry-run: "true"}}
spec: {action: DENY, rules: [{to: [{operation: {paths: [/admin]}}]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: everywhere, namespace: istio-system}
spec: {action: DENY, rules: [{to: [{operation: {ports: ["1"]}}]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: asked, namespace: shop}
spec: {action: CUSTOM, provider: {name: none}, rules: [{}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: other, namespace: shop}
spec: {selector: {matchLabels: {app: other}}, action: DENY, rules: [{}]}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: shop}
spec: {jwtRules: [{issuer: https://issuer.example, jwksUri: https://issuer.example/keys}]}
`

// The details of a proxy have the mode of each port with the object that sets it, and the
// policies by slot with what they are in it (PA-2, AZ-8, POL-1). gRPC clients and routers
// without Gateways have neither.
func TestPrintSecurity(t *testing.T) {
	pc := index.NewPushContext(meshtest.World(t, meshtest.YAML(t, called+"---"+protected)...))
	cart := map[string]any{"app": "cart"}
	for name, p := range map[string]*proxy.Proxy{
		"security-sidecar": proxyWith(t, "sidecar~10.0.0.1~cart-1.shop~shop.svc.cluster.local", "envoy", cart, "SDS_CLUSTER", proxy.SDSCluster),
		"security-bare":    proxyWith(t, "sidecar~10.0.0.2~old-1.shop~shop.svc.cluster.local", "envoy", nil),
		"security-bound":   proxyWith(t, "sidecar~10.0.0.1~cart-1.shop~shop.svc.cluster.local", "envoy", cart, "INTERCEPTION_MODE", "NONE"),
	} {
		operatetest.Golden(t, name, func(o *command.Output) {
			v := viewSecurity(pc, p)
			o.Print(v, func() { v.show(o) })
		})
	}
	for _, p := range []*proxy.Proxy{proxyWith(t, "edge-1", "envoy", nil), proxyWith(t, "grpc-1", "gRPC Go", cart)} {
		if v := viewSecurity(pc, p); v != nil {
			t.Errorf("%s: %+v", p.ID, v)
		}
	}
}
