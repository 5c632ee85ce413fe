package mcpxds

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Mode says how a connection is protected; the names are those of Istio's
// ClientTLSSettings.
type Mode string

// The modes.
const (
	Disable Mode = "DISABLE" // plain TCP
	Simple  Mode = "SIMPLE"  // the source shows a certificate
	Mutual  Mode = "MUTUAL"  // the watcher shows one, too
)

// TLS names the files that protect a connection. They are read for each run, so that
// renewed files count without a restart.
type TLS struct {
	Mode Mode // empty: Disable
	// CA is a PEM file with the CAs of the source's certificate; empty: those of the
	// system.
	CA string
	// Certificate and Key are PEM files of the watcher's own, for Mutual.
	Certificate, Key string
	// ServerName is the name in the source's certificate; empty: the host of its address.
	ServerName string
}

// Verify returns an error if a file cannot be used.
func (t TLS) Verify() error {
	_, err := t.credentials("")
	return err
}

// credentials reads the files.
func (t TLS) credentials(address string) (credentials.TransportCredentials, error) {
	if t.Mode == Disable || t.Mode == "" {
		return insecure.NewCredentials(), nil
	}
	host, _, _ := net.SplitHostPort(address)
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if t.ServerName != "" {
		c.ServerName = t.ServerName
	}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("the CAs of the source: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("the CAs of the source: %s has no certificate in PEM", t.CA)
		}
	}
	if t.Mode == Mutual {
		if t.Certificate == "" || t.Key == "" {
			return nil, errors.New("the watcher's certificate: MUTUAL needs a certificate and its key")
		}
		pair, err := tls.LoadX509KeyPair(t.Certificate, t.Key)
		if err != nil {
			return nil, fmt.Errorf("the watcher's certificate: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(c), nil
}
