// Package caclient asks the mesh's CA for certificates, over Istio's protocol.
package caclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	authv1 "istio.io/api/security/v1alpha1"

	"meshlog.dev/services/agent/certificates"
)

// timeout limits one request.
const timeout = 20 * time.Second

// Client is a certificates.Issuer.
type Client struct {
	// Address is HOST:PORT of the CA. ServerName is the name in its certificate; empty: the
	// host.
	Address, ServerName string
	// Roots returns the CAs of the CA's own certificate. It is called for each connection.
	Roots func() (*x509.CertPool, error)
	// ClusterID is the name of the Kubernetes cluster whose token is sent; empty: none.
	ClusterID string
}

// Issue implements certificates.Issuer. Each request has a connection of its own: the
// certificate of a connection is that of its handshake.
func (c *Client) Issue(ctx context.Context, r certificates.Request) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	roots, err := c.Roots()
	if err != nil {
		return nil, err
	}
	name := c.ServerName
	if name == "" {
		if name, _, err = net.SplitHostPort(c.Address); err != nil {
			return nil, err
		}
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: name}
	if r.Certificate != nil {
		conf.Certificates = []tls.Certificate{*r.Certificate}
	}
	conn, err := grpc.NewClient("dns:///"+c.Address, grpc.WithTransportCredentials(credentials.NewTLS(conf)))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if r.Token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+r.Token)
	}
	if c.ClusterID != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "clusterid", c.ClusterID)
	}
	resp, err := authv1.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx, &authv1.IstioCertificateRequest{
		Csr: r.CSR, ValidityDuration: int64(r.TTL / time.Second),
	})
	if err != nil {
		return nil, fmt.Errorf("the CA at %s: %s: %w", c.Address, status.Code(err), errors.New(status.Convert(err).Message()))
	}
	return resp.GetCertChain(), nil
}
