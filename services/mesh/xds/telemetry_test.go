package xds_test

import (
	"slices"
	"strings"
	"testing"

	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
)

// TL-1: a Telemetry changes the listeners of the proxies that it selects, and nothing else of
// any proxy.
func TestPushesOfTelemetry(t *testing.T) {
	mesh := strings.Replace(peered, "%s", "PERMISSIVE", 1)
	before := meshtest.PushContext(t, meshtest.YAML(t, mesh)...)
	for name, test := range map[string]struct {
		namespace, spec string
		want            []string // proxies
	}{
		"workload":                           {"shop", "selector: {matchLabels: {app: cart}}", []string{"cart"}},
		"namespace":                          {"shop", "", []string{"cart", "web"}},
		"mesh":                               {"istio-system", "", []string{"cart", "elsewhere", "web"}},
		"labels in the root namespace":       {"istio-system", "selector: {matchLabels: {app: cart}}", nil},
		"a Gateway, which no workload is of": {"shop", "targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: g}]", nil},
	} {
		t.Run(name, func(t *testing.T) {
			object := "apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: t, namespace: " + test.namespace + "}\n" +
				"spec:\n  accessLogging: [{providers: [{name: envoy}]}]\n"
			if test.spec != "" {
				object += "  " + test.spec + "\n"
			}
			after := meshtest.PushContext(t, meshtest.YAML(t, mesh+"---\n"+object)...)
			var got []string
			for name, p := range map[string]*proxy.Proxy{
				"cart":      {Type: proxy.Sidecar, Namespace: "shop", Labels: map[string]string{"app": "cart"}},
				"web":       {Type: proxy.Sidecar, Namespace: "shop", Labels: map[string]string{"app": "web"}},
				"elsewhere": {Type: proxy.Sidecar, Namespace: "attic", Labels: map[string]string{"app": "cart"}},
				"gRPC":      {GRPC: true, Namespace: "shop", Labels: map[string]string{"app": "cart"}},
			} {
				all := differences(before, after, p)
				if len(all) > 0 {
					got = append(got, name)
				}
				for _, changed := range all {
					if !strings.HasPrefix(changed, "LDS ") {
						t.Errorf("%s gets %s", name, changed)
					}
				}
			}
			if slices.Sort(got); !slices.Equal(got, test.want) {
				t.Errorf("the listeners of %v change, want those of %v", got, test.want)
			}
		})
	}
}
