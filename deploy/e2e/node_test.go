package e2e

import (
	"fmt"
	"os"
	"path/filepath"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
)

// forShop is a listener for the proxies of one namespace, as Istio names their nodes.
// It answers requests without a backend.
const forShop = `
apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: greeter, namespace: shop}
spec:
  nodes: {metadata: {NAMESPACE: shop}}
  resource:
    "@type": type.googleapis.com/envoy.config.listener.v3.Listener
    name: greeter
    address: {socket_address: {address: 127.0.0.1, port_value: %d}}
    filter_chains:
      - filters:
          - name: envoy.filters.network.http_connection_manager
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
              stat_prefix: greeter
              route_config:
                virtual_hosts:
                  - name: greeter
                    domains: ["*"]
                    routes: [{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: greeter}}}]
              http_filters:
                - name: envoy.filters.http.router
                  typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
`

// A proxy whose node id has Istio's form connects with the bootstrap for that,
// and gets the listener of its namespace. The plain proxy does not get it.
func istioNode(f *fixture) {
	port, err := testport.TCP()
	f.must(err)
	f.save("greeter.yaml", fmt.Sprintf(forShop, port))
	root, err := program.Root()
	f.must(err)
	overlay, err := os.ReadFile(filepath.Join(root, "deploy", "envoy", "istio-node.yaml"))
	f.must(err)
	e, err := f.mesh.Join(f.ctx, rig.EnvoyConfig{Node: "istio", Overlay: string(overlay)}, port)
	f.must(err)
	f.Cleanup(e.Kill)
	if t := rig.Send(f.ctx, fmt.Sprintf("http://127.0.0.1:%d/", port), 10); t.Backends["greeter"] != 10 {
		f.Errorf("10 requests to the proxy with Istio's node id: %+v", t)
	}
	var dump struct{ Configs []object }
	f.must(f.envoy.ConfigDump(f.ctx, &dump))
	for _, config := range dump.Configs {
		for _, l := range list(config["dynamic_listeners"]) {
			if l["name"] == "greeter" {
				f.Errorf("%s got a listener of another namespace", node)
			}
		}
	}
	f.nothingRejected()
}
