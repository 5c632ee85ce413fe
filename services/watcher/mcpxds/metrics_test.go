package mcpxds

import (
	"flag"
	"testing"

	"meshlog.dev/services/internal/process/processtest"
)

var update = flag.Bool("update", false, "rewrite the table of metrics in deploy/observability/README.md")

// TestMetrics compares the table of metrics and the alerts with what the watcher exports.
func TestMetrics(t *testing.T) {
	processtest.Metrics(t, processtest.MetricsTable{Name: "mcpxds", Package: "watcher/mcpxds", Alerts: "alerts-mcpxds.yaml", Prefix: "meshlog_mcpxds"}, *update, NewMetrics("a"))
}
