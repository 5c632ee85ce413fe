package ca

import (
	"flag"
	"testing"

	"meshlog.dev/services/ca"
	"meshlog.dev/services/internal/process/processtest"
)

// TestMetrics compares the table of metrics and the alerts with what the CA exports.
func TestMetrics(t *testing.T) {
	all := append(ca.NewMetrics().Collectors(), (&serving{}).metric(), (&roots{}).metric())
	update := flag.Lookup("update").Value.String() == "true" // operatetest defines it, for the tests of the same binary
	processtest.Metrics(t, processtest.MetricsTable{Name: "ca", Package: "roles/ca", Alerts: "alerts-ca.yaml", Prefix: "citadel|meshlog_ca"}, update, all...)
}
