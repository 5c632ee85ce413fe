package certificates

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Trouble returns why the last request failed, or nil.
func (k *Keeper) Trouble() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.trouble
}

// Ready returns an error while there is no valid certificate.
func (k *Keeper) Ready() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.now == nil && k.trouble == nil:
		return errors.New("waiting for a certificate from the CA")
	case k.now == nil:
		return fmt.Errorf("no certificate from the CA: %w", k.trouble)
	case time.Now().After(k.now.until):
		return fmt.Errorf("the certificate ended at %s: %w", stamp(k.now.until), k.trouble)
	}
	return nil
}

// Late returns an error when less than a quarter of the certificate's time is left
// (CA-8).
func (k *Keeper) Late() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.now == nil {
		return nil
	}
	ends := k.now.until
	lasts := ends.Sub(k.now.Since)
	if left := time.Until(ends); left < time.Duration(lateShare*float64(lasts)) {
		return fmt.Errorf("the certificate ends at %s and is not renewed: %w", stamp(ends), k.trouble)
	}
	return nil
}

// Report describes the certificate for people.
type Report struct {
	Identity string    `json:"identity,omitempty"`
	Serial   string    `json:"serial,omitempty"`
	Root     string    `json:"root,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	Ends     time.Time `json:"ends,omitzero"`
	Renewal  time.Time `json:"renewal,omitzero"`
	Issued   int       `json:"issued"`
	Trouble  string    `json:"trouble,omitempty"`
}

// Report returns the state.
func (k *Keeper) Report() Report {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := Report{Issued: k.issued, Renewal: k.renewAt}
	if k.now != nil {
		leaf := k.now.Certificate.Leaf
		r.Identity, r.Serial, r.Root = subject(leaf), leaf.SerialNumber.Text(16), k.now.Root.Subject.String()
		r.Since, r.Ends = k.now.Since, k.now.Ends()
	}
	if k.trouble != nil {
		r.Trouble = k.trouble.Error()
	}
	return r
}

var (
	expiry = prometheus.NewDesc("meshlog_agent_certificate_expiry_timestamp_seconds",
		"When the workload's certificate ends, in Unix time; 0 without a certificate. The agent renews it at half of its time.", nil, nil)
	left = prometheus.NewDesc("meshlog_agent_certificate_left_ratio",
		"The share of the certificate's time that is left, from 1 to 0. Below 0.25 the CA has been away, or has refused, for a quarter of that time.", nil, nil)
	issued = prometheus.NewDesc("meshlog_agent_certificates_issued_total", "Certificates that the CA gave the workload.", nil, nil)
	failed = prometheus.NewDesc("meshlog_agent_certificate_failures_total", "Requests to the CA that failed or were refused.", nil, nil)
)

// Describe implements prometheus.Collector.
func (*Keeper) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{expiry, left, issued, failed} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (k *Keeper) Collect(out chan<- prometheus.Metric) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var ends, share float64
	if k.now != nil {
		ends = float64(k.now.Ends().Unix())
		share = max(0, float64(time.Until(k.now.Ends()))/float64(k.now.Ends().Sub(k.now.Since)))
	}
	out <- prometheus.MustNewConstMetric(expiry, prometheus.GaugeValue, ends)
	out <- prometheus.MustNewConstMetric(left, prometheus.GaugeValue, share)
	out <- prometheus.MustNewConstMetric(issued, prometheus.CounterValue, float64(k.issued))
	out <- prometheus.MustNewConstMetric(failed, prometheus.CounterValue, float64(k.failed))
}
