package admission

import (
	"crypto/tls"
	"flag"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/services/internal/certificates"
	"meshlog.dev/services/internal/process/processtest"
)

var update = flag.Bool("update", false, "rewrite the table of metrics in deploy/observability/README.md")

// TestMetrics compares the table of metrics with what the webhook exports.
func TestMetrics(t *testing.T) {
	pair := certtest.NewCA("ca").Server("admission", time.Now().Add(time.Hour)).TLS()
	certs, err := certificates.Load(certificates.Files{Issued: func() *tls.Certificate { return &pair }})
	if err != nil {
		t.Fatal(err)
	}
	processtest.Metrics(t, processtest.MetricsTable{Name: "admission", Package: "admission", Alerts: "alerts-kubernetes.yaml", Prefix: "meshlog_admission"}, *update,
		append(NewMetrics().Collectors(), certs.Metrics("meshlog_admission")...)...)
}
