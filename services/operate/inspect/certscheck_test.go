package inspect

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/operatetest"
)

// called are services of the namespace shop: cart, whose endpoints speak mutual TLS of the
// mesh, mixed, of which only one does, and old, which no object says it of.
const called = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: cart, namespace: shop}
spec:
  hosts: [cart.mesh]
  resolution: STATIC
  location: MESH_INTERNAL
  ports: [{number: 80, name: grpc, protocol: GRPC, targetPort: 8080}]
  endpoints: [{address: 10.0.0.1, labels: {app: cart}, serviceAccount: cart}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: mixed, namespace: shop}
spec:
  hosts: [mixed.mesh]
  resolution: STATIC
  location: MESH_INTERNAL
  ports: [{number: 80, name: grpc, protocol: GRPC, targetPort: 9090}]
  endpoints:
  - {address: 10.0.0.1, labels: {app: cart}, serviceAccount: cart}
  - {address: 10.0.0.9, labels: {app: other}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: old, namespace: shop}
spec:
  hosts: [old.mesh]
  resolution: STATIC
  location: MESH_INTERNAL
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 7070}]
  endpoints: [{address: 10.0.0.2, labels: {app: old}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: plain, namespace: legacy}
spec: {host: cart.mesh, trafficPolicy: {tls: {mode: DISABLE}}}
`

const strictShop = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: all, namespace: shop}
spec: {mtls: {mode: STRICT}}
`

// proxyWith returns a proxy; metadata are pairs of names and texts.
func proxyWith(t *testing.T, id, agent string, labels map[string]any, metadata ...string) *proxy.Proxy {
	t.Helper()
	fields := map[string]any{"LABELS": labels}
	for i := 0; i < len(metadata); i += 2 {
		fields[metadata[i]] = metadata[i+1]
	}
	m, err := structpb.NewStruct(fields)
	if err != nil {
		t.Fatal(err)
	}
	p, err := proxy.New(&corev3.Node{Id: id, Metadata: m, UserAgentName: agent})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// MTLS-16, MTLS-17: before a port becomes STRICT, the command names the clients without
// certificates that may call it, those whose rule or whose kind of client sends plain text
// all the same, and workloads that would refuse everybody. Clients that cannot reach the
// port, and those with certificates, are not named.
func TestCertsCheck(t *testing.T) {
	agent := []string{"SDS_CLUSTER", proxy.SDSCluster}
	cart := map[string]any{"app": "cart"}
	proxies := []*proxy.Proxy{
		proxyWith(t, "sidecar~10.0.0.1~cart-1.shop~shop.svc.cluster.local", "envoy", cart, agent...),
		proxyWith(t, "sidecar~10.0.0.2~old-1.shop~shop.svc.cluster.local", "envoy", map[string]any{"app": "old"}),
		proxyWith(t, "sidecar~10.0.0.3~web-1.web~web.svc.cluster.local", "envoy", nil, agent...),
		proxyWith(t, "sidecar~10.0.0.4~bare-1.web~web.svc.cluster.local", "envoy", nil),
		proxyWith(t, "sidecar~10.0.0.5~plain-1.legacy~legacy.svc.cluster.local", "envoy", nil, agent...),
		proxyWith(t, "edge-1", "envoy", nil),
		proxyWith(t, "files-1", "envoy", nil, "TLS_SERVER_CERT_CHAIN", "/c", "TLS_SERVER_KEY", "/k"),
		proxyWith(t, "grpc-1", "gRPC Go", nil, "GRPC_CERTIFICATE_PROVIDER", "own"),
		proxyWith(t, "grpc-2", "gRPC Go", nil),
	}
	dir := t.TempDir()
	operatetest.WriteFiles(t, dir, map[string]string{"strict.yaml": strictShop})
	hidden := strings.ReplaceAll(called, "  resolution: STATIC", "  exportTo: [\".\"]\n  resolution: STATIC")
	for name, test := range map[string]struct {
		world string
		query strictQuery
	}{
		"check-file":    {called, strictQuery{file: filepath.Join(dir, "strict.yaml")}},
		"check-labels":  {called, strictQuery{namespace: "shop", selector: map[string]string{"app": "cart"}}},
		"check-now":     {called + "---" + strictShop, strictQuery{}},
		"check-already": {called + "---" + strictShop, strictQuery{namespace: "shop"}},
		"check-hidden":  {hidden, strictQuery{namespace: "shop", selector: map[string]string{"app": "cart"}}},
		"check-none":    {called, strictQuery{}},
	} {
		operatetest.Golden(t, name, func(o *command.Output) {
			objects, err := test.query.objects(nil)
			if err != nil {
				t.Fatal(err)
			}
			now := meshtest.World(t, meshtest.YAML(t, test.world)...)
			next, err := test.query.apply(now, objects)
			if err != nil {
				t.Fatal(err)
			}
			c := strictCheck{Version: ident.Position{Epoch: 1, Seq: 7}, Proxies: len(proxies), Unseen: unseen, hypothetical: len(objects) > 0}
			if err := c.run(now, next, proxies); err != nil {
				t.Fatal(err)
			}
			o.Print(c, func() { c.show(o) })
		})
	}
}

// MTLS-13: without redirection a sidecar listens on the ports of services only: one that
// only a PeerAuthentication names is neither checked nor shown among its ports.
func TestCertsCheckWithoutRedirection(t *testing.T) {
	const named = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: cart, namespace: shop}
spec:
  selector: {matchLabels: {app: cart}}
  portLevelMtls: {8080: {mode: STRICT}, 9000: {mode: STRICT}}
`
	w := meshtest.World(t, meshtest.YAML(t, called+"---"+named)...)
	for mode, want := range map[string][]uint32{"NONE": {8080}, "REDIRECT": {8080, 9000}} {
		p := proxyWith(t, "sidecar~10.0.0.1~cart-1.shop~shop.svc.cluster.local", "envoy", map[string]any{"app": "cart"},
			"SDS_CLUSTER", proxy.SDSCluster, "INTERCEPTION_MODE", mode)
		var c strictCheck
		if err := c.run(w, w, []*proxy.Proxy{p}); err != nil {
			t.Fatal(err)
		}
		var checked, shown []uint32
		for _, port := range c.Ports {
			checked = append(checked, port.Port)
		}
		for _, in := range viewSecurity(index.NewPushContext(w), p).Inbound {
			if in.Mode == "STRICT" {
				shown = append(shown, in.Port)
			}
		}
		slices.Sort(checked)
		if !slices.Equal(checked, want) || !slices.Equal(shown, want) {
			t.Errorf("%s: ports %v are checked and %v shown, want %v", mode, checked, shown, want)
		}
	}
}

// A wrong command line is told from a mesh in which clients lose a port.
func TestCertsCheckArguments(t *testing.T) {
	for want, test := range map[string]struct {
		query strictQuery
		stdin string
	}{
		"give one of them":                   {query: strictQuery{file: "f", namespace: "shop"}},
		"needs --namespace":                  {query: strictQuery{selector: map[string]string{"app": "cart"}}},
		"no such file":                       {query: strictQuery{file: filepath.Join(t.TempDir(), "none")}},
		"it has no PeerAuthentication":       {query: strictQuery{file: "-"}, stdin: called},
		`--file -: line 5: spec.mtls.mode: `: {query: strictQuery{file: "-"}, stdin: strings.Replace(strictShop, "STRICT", "STRIKT", 1)},
	} {
		if _, err := test.query.objects(strings.NewReader(test.stdin)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", test.query, err, want)
		}
	}
}
