package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"

	"meshlog.dev/deploy/e2e/rig"
)

// object is a JSON object.
type object = map[string]any

// All the configuration that Envoy received is valid as a whole, when Envoy
// validates it from the start.
func generatedIsValid(f *fixture) {
	var dump struct{ Configs []object }
	f.must(f.envoy.ConfigDump(f.ctx, &dump))
	routes := map[string]object{}
	var listeners, clusters []object
	for _, config := range dump.Configs {
		for _, r := range list(config["dynamic_route_configs"]) {
			route := inner(r["route_config"])
			routes[route["name"].(string)] = route
		}
		for _, l := range list(config["dynamic_listeners"]) {
			listeners = append(listeners, inner(l["active_state"].(object)["listener"]))
		}
		for _, c := range list(config["dynamic_active_clusters"]) {
			clusters = append(clusters, inner(c["cluster"]))
		}
		for _, c := range list(config["static_clusters"]) {
			clusters = append(clusters, inner(c["cluster"])) // the frontends' cluster
		}
	}
	// The shop's service and its two versions, and the frontends' cluster; more if
	// a removed cluster lingers.
	if len(routes) != 1 || len(listeners) != 1 || len(clusters) < 4 {
		f.Fatalf("Envoy has %d routes, %d listeners, %d clusters", len(routes), len(listeners), len(clusters))
	}
	for _, l := range listeners {
		inlineRoutes(f, l, routes)
	}
	b, err := json.Marshal(object{
		"node":             object{"id": node, "cluster": "demo"},
		"static_resources": object{"listeners": listeners, "clusters": clusters},
		"dynamic_resources": object{"ads_config": object{
			"api_type": "GRPC", "transport_api_version": "V3",
			"grpc_services": []object{{"envoy_grpc": object{"cluster_name": "meshlog"}}},
		}},
	})
	f.must(err)
	path := filepath.Join(f.TempDir(), "generated.json")
	f.must(os.WriteFile(path, b, 0o600))
	f.must(rig.ValidateBootstrap(f.ctx, path, ""))
}

// inlineRoutes puts the routes of a listener in the place of their name.
func inlineRoutes(f *fixture, listener object, routes map[string]object) {
	for _, chain := range list(listener["filter_chains"]) {
		for _, filter := range list(chain["filters"]) {
			manager := filter["typed_config"].(object)
			rds := manager["rds"].(object)
			route, ok := routes[rds["route_config_name"].(string)]
			if !ok {
				f.Fatalf("no routes %q", rds["route_config_name"])
			}
			delete(manager, "rds")
			manager["route_config"] = route
		}
	}
}

// list returns a JSON list of objects; an absent one is empty.
func list(v any) []object {
	items, _ := v.([]any)
	out := make([]object, len(items))
	for i := range items {
		out[i] = items[i].(object)
	}
	return out
}

// inner returns the message inside an Any.
func inner(v any) object {
	m := v.(object)
	delete(m, "@type")
	return m
}
