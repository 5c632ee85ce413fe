package inspect

import (
	"crypto/x509"
	"encoding/pem"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/services/mesh/xds/secret"
)

// secretRows says what a Secret holds: a certificate and its names, or the CAs that it
// trusts, of each trust domain if there are several, and when the first of them ends.
func secretRows(m proto.Message) [][]any {
	s, ok := m.(*tlsv3.Secret)
	if !ok {
		return nil
	}
	if c := s.GetTlsCertificate(); c != nil {
		if file := c.GetCertificateChain().GetFilename(); file != "" {
			return [][]any{{"certificate", "file " + file, ""}}
		}
		chain := certificates(c.GetCertificateChain().GetInlineBytes(), c.GetCertificateChain().GetInlineString())
		if len(chain) == 0 {
			return nil
		}
		return [][]any{{"certificate", strings.Join(namesOf(chain[0]), ", "), earliest(chain)}}
	}
	ca := s.GetValidationContext().GetTrustedCa()
	if file := ca.GetFilename(); file != "" {
		return [][]any{{"CAs", "file " + file, ""}}
	}
	rows := rowsOfCAs("CA", ca)
	for _, d := range secret.BundlesOf(s) {
		rows = append(rows, rowsOfCAs("CA of "+d.GetName(), d.GetTrustBundle())...)
	}
	return rows
}

func rowsOfCAs(what string, ca *corev3.DataSource) (rows [][]any) {
	for _, c := range certificates(ca.GetInlineBytes(), ca.GetInlineString()) {
		rows = append(rows, []any{what, c.Subject.String(), earliest([]*x509.Certificate{c})})
	}
	return rows
}

// namesOf returns the names that a certificate is for.
func namesOf(c *x509.Certificate) []string {
	names := c.DNSNames
	for _, u := range c.URIs {
		names = append(names, u.String())
	}
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	if len(names) == 0 {
		names = []string{c.Subject.String()}
	}
	return names
}

func earliest(all []*x509.Certificate) string {
	ends := all[0].NotAfter
	for _, c := range all[1:] {
		if c.NotAfter.Before(ends) {
			ends = c.NotAfter
		}
	}
	return ends.UTC().Format(time.DateTime)
}

// certificates reads those in PEM that can be read.
func certificates(b []byte, text string) (all []*x509.Certificate) {
	rest := append([]byte(text), b...)
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return all
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			all = append(all, c)
		}
	}
}
