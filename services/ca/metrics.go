package ca

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"meshlog.dev/services/ca/signer"
)

// Metrics of a CA. If istiod has the same metric, its name is used, so that istiod's
// dashboards show it. No label names a workload.
type Metrics struct {
	all       []prometheus.Collector
	authority atomic.Pointer[func() *signer.Authority]

	requests, issued         prometheus.Counter
	unauthenticated, invalid prometheus.Counter
	unsigned                 *prometheus.CounterVec
	refused                  *prometheus.CounterVec
	connectionsRefused       prometheus.Counter
	handshakes               prometheus.Counter
	audit, panics            prometheus.Counter
	seconds                  prometheus.Histogram
}

// NewMetrics returns metrics that are not registered.
func NewMetrics() *Metrics {
	m := &Metrics{}
	m.requests = m.counter("citadel_server_csr_count", "Certificate requests received.")
	m.issued = m.counter("citadel_server_success_cert_issuance_count", "Certificates issued.")
	m.unauthenticated = m.counter("citadel_server_authentication_failure_count", "Requests whose caller was not authenticated or has no identity; the CA's log says why.")
	m.invalid = m.counter("citadel_server_csr_parsing_err_count", "Certificate requests that are invalid: cannot be read, a wrong signature, a weak key.")
	m.unsigned = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "citadel_server_csr_sign_err_count", Help: "Requests that were not signed, by error: TTL_ERROR (more than 7 days were asked for), CA_NOT_READY (the certificate of the CA has ended: replace it), CERT_GEN_ERROR (the key failed; see the CA's log).",
	}, []string{"error"})
	for _, e := range []string{errorTTL, errorNotReady, errorSign} {
		m.unsigned.WithLabelValues(e)
	}
	m.refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "meshlog_ca_refused_total", Help: "Requests refused, by gRPC code. Unauthenticated, PermissionDenied, InvalidArgument: the CA's log names the clients. ResourceExhausted: one address or all ask too often. Unavailable: an API server, an issuer, the audit or the CA's own certificate; see the log.",
	}, []string{"code"})
	for _, c := range []codes.Code{codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument, codes.ResourceExhausted, codes.Unavailable, codes.Internal} {
		m.refused.WithLabelValues(c.String())
	}
	m.connectionsRefused = m.counter("meshlog_ca_connections_refused_total", "Connections closed because their address has too many, or opens them too often.")
	m.handshakes = m.counter("meshlog_ca_tls_handshake_failures_total", "Connections whose TLS handshake failed; the CA's log says why. If many: agents do not trust the CA's certificate, or speak without TLS.")
	m.audit = m.counter("meshlog_ca_audit_failures_total", "Records that the audit did not take. Clients do not get their certificates meanwhile; check the bus.")
	m.panics = m.counter("meshlog_ca_panics_total", "Requests ended by an internal error. Please report each, with the stack from the CA's log.")
	m.seconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "meshlog_ca_issue_seconds", Help: "Seconds to issue a certificate, from the request on. If long: the API server or issuer that authenticates, the audit, or too little CPU.", Buckets: prometheus.ExponentialBuckets(.0005, 2, 15),
	})
	m.all = append(m.all, m.unsigned, m.refused, m.seconds,
		m.expiry("citadel_server_root_cert_expiry_timestamp", "When the first of the trusted roots ends, in Unix time. Replace it 90 days before.", func(a *signer.Authority) time.Time {
			var first time.Time
			for _, r := range a.Roots() {
				if first.IsZero() || r.NotAfter.Before(first) {
					first = r.NotAfter
				}
			}
			return first
		}),
		m.expiry("citadel_server_cert_chain_expiry_timestamp", "When the first certificate between the CA and its root ends, in Unix time. No certificate is valid longer.", (*signer.Authority).Ends))
	return m
}

// Collectors returns the metrics, to be registered.
func (m *Metrics) Collectors() []prometheus.Collector { return m.all }

func (m *Metrics) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	m.all = append(m.all, c)
	return c
}

func (m *Metrics) expiry(name, help string, of func(*signer.Authority) time.Time) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
		authority := m.authority.Load()
		if authority == nil {
			return math.NaN()
		}
		return float64(of((*authority)()).Unix())
	})
}
