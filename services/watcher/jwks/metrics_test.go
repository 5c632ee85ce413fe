package jwks

import (
	"flag"
	"testing"

	"meshlog.dev/services/internal/process/processtest"
)

var update = flag.Bool("update", false, "rewrite the table of metrics in deploy/observability/README.md")

// TestMetrics compares the table of metrics and the alerts with what the watcher exports.
func TestMetrics(t *testing.T) {
	processtest.Metrics(t, processtest.MetricsTable{Name: "jwks", Package: "watcher/jwks", Alerts: "alerts-jwks.yaml", Prefix: "meshlog_jwks"}, *update, NewMetrics())
}
