package certificates

import (
	"crypto/x509"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Report is what there is to say about the certificates in use.
type Report struct {
	Certificate Certificate   `json:"certificate"`
	ClientCAs   []Certificate `json:"clientCAs,omitempty"` // the first to end first
	Loaded      time.Time     `json:"loaded"`
	// Trouble is what is wrong with the files now, or with the certificate.
	Trouble string `json:"trouble,omitempty"`
}

// Certificate is one, as people know it.
type Certificate struct {
	File      string    `json:"file"`
	Subject   string    `json:"subject,omitempty"`
	Names     []string  `json:"names,omitempty"` // DNS, IP, URI
	Issuer    string    `json:"issuer"`
	Serial    string    `json:"serial"`
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
}

// Report says which certificates are in use.
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

// Metrics are when the certificates end, and whether their files are of use.
// The names begin with prefix.
func (c *Certificates) Metrics(prefix string) []prometheus.Collector {
	expiry := func(which string, end func(*loaded) time.Time) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        prefix + "_certificate_expiry_timestamp_seconds",
			Help:        "When the certificate in use ends, in Unix time; of several CAs the first.",
			ConstLabels: prometheus.Labels{"certificate": which},
		}, func() float64 { return float64(end(c.now.Load()).Unix()) })
	}
	all := []prometheus.Collector{
		expiry("server", func(l *loaded) time.Time { return l.leaf.NotAfter }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: prefix + "_certificate_trouble",
			Help: "1 while the files of the certificate are of no use, or it has ended; the log says why.",
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
