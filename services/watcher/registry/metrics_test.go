package registry_test

import (
	"flag"
	"testing"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/process/processtest"
	"meshlog.dev/services/watcher/registry"
)

var update = flag.Bool("update", false, "rewrite the table of metrics in deploy/observability/README.md")

// TestMetrics compares the table of metrics and the alerts with what watchers of registries export.
func TestMetrics(t *testing.T) {
	processtest.Metrics(t, processtest.MetricsTable{Name: "registry", Package: "watcher/registry", Alerts: "alerts-registries.yaml", Prefix: "meshlog_registry"},
		*update, registry.NewStatus(ident.Shard{Source: "consul", Instance: "dc1"}))
}
