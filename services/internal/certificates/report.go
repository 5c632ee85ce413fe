package certificates

import (
	"crypto/x509"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Report describes the certificates in use.
type Report struct {
	Certificate Certificate   `json:"certificate"`
	ClientCAs   []Certificate `json:"clientCAs,omitempty"` // the first to expire first
	Loaded      time.Time     `json:"loaded"`
	// Trouble is the error of Certificates.Trouble.
	Trouble string `json:"trouble,omitempty"`
}

// Certificate describes a certificate.
type Certificate struct {
	File      string    `json:"file"`
	Subject   string    `json:"subject,omitempty"`
	Names     []string  `json:"names,omitempty"` // DNS, IP, URI
	Issuer    string    `json:"issuer"`
	Serial    string    `json:"serial"`
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
}

// Report describes the certificates in use.
func (c *Certificates) Report() Report {
	l := c.now.Load()
	r := Report{Certificate: certificate(c.files.Cert, l.leaf), Loaded: l.since}
	for _, ca := range l.cas {
		r.ClientCAs = append(r.ClientCAs, certificate(c.files.ClientCA, ca))
	}
	if err := c.Trouble(); err != nil {
		r.Trouble = err.Error()
	}
	return r
}

func certificate(file string, c *x509.Certificate) Certificate {
	d := Certificate{
		File: file, Subject: c.Subject.String(), Names: c.DNSNames, Issuer: c.Issuer.String(), Serial: serial(c),
		NotBefore: c.NotBefore, NotAfter: c.NotAfter,
	}
	for _, ip := range c.IPAddresses {
		d.Names = append(d.Names, ip.String())
	}
	for _, u := range c.URIs {
		d.Names = append(d.Names, u.String())
	}
	return d
}

func serial(c *x509.Certificate) string { return c.SerialNumber.Text(16) }

// Metrics returns collectors for the expiry of the certificates and for Trouble.
// Their names begin with prefix.
func (c *Certificates) Metrics(prefix string) []prometheus.Collector {
	expiry := func(which string, end func(*loaded) time.Time) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        prefix + "_certificate_expiry_timestamp_seconds",
			Help:        "Expiry of the certificate in use, in Unix time; of several CAs, the earliest.",
			ConstLabels: prometheus.Labels{"certificate": which},
		}, func() float64 { return float64(end(c.now.Load()).Unix()) })
	}
	all := []prometheus.Collector{
		expiry("server", func(l *loaded) time.Time { return l.leaf.NotAfter }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: prefix + "_certificate_trouble",
			Help: "1 while the certificate files cannot be used or the certificate has expired; the log says why.",
		}, func() float64 {
			if c.Trouble() != nil {
				return 1
			}
			return 0
		}),
	}
	if c.files.ClientCA != "" {
		all = append(all, expiry("client-ca", func(l *loaded) time.Time { return l.cas[0].NotAfter }))
	}
	return all
}
