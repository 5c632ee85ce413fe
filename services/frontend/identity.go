package frontend

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"

	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/spiffe"
)

// identity is what a client's certificate proves. The zero identity: the client
// has shown none.
type identity struct {
	// name is the certificate's first URI, or its subject if it has none.
	name string
	// workload is set if the URI is the identity of a workload (CA-1).
	workload proxy.Identity
	// serial, begins and ends are those of the certificate.
	serial       string
	begins, ends time.Time
}

// identityOf reads the client's certificate. A SPIFFE identity beside other URIs
// is an error: each reader could take another one for the identity. So is one that
// begins as an identity of Istio and is none (CA-1): it must not be restricted less
// than one that is.
func identityOf(info credentials.AuthInfo) (identity, error) {
	tlsInfo, ok := info.(credentials.TLSInfo)
	if !ok || len(tlsInfo.State.PeerCertificates) == 0 {
		return identity{}, nil
	}
	leaf := tlsInfo.State.PeerCertificates[0]
	id := identity{name: leaf.Subject.String(), serial: leaf.SerialNumber.Text(16), begins: leaf.NotBefore, ends: leaf.NotAfter}
	if len(leaf.URIs) == 0 {
		return id, nil
	}
	id.name = leaf.URIs[0].String()
	for _, u := range leaf.URIs {
		if u.Scheme != "spiffe" {
			continue
		}
		if len(leaf.URIs) > 1 {
			return identity{}, fmt.Errorf("the client's certificate has the identity %s and other URIs: issue one with that URI alone", u)
		}
		switch w, err := spiffe.FromCertificate(leaf); {
		case err == nil:
			id.workload = proxy.Identity(w)
		case strings.HasPrefix(u.Path, "/ns/"):
			return identity{}, fmt.Errorf("the client's certificate has the URI %s, which is no identity: %w", u, err)
		}
	}
	return id, nil
}

// check compares what a client says about itself with its identity, and records
// the identity in p. An identity that names no namespace restricts nothing.
func (id identity) check(p *proxy.Proxy) error {
	w := id.workload
	if w == (proxy.Identity{}) {
		return nil
	}
	if p.Namespace != w.Namespace {
		return fmt.Errorf("the node is in namespace %s, the client's certificate is for %s (%s): correct metadata NAMESPACE or the id in the node, or the certificate", p.Namespace, w.Namespace, id.name)
	}
	if sa := p.Text("SERVICE_ACCOUNT"); sa != "" && sa != w.ServiceAccount {
		return fmt.Errorf("the node has service account %s, the client's certificate is for %s (%s): correct metadata SERVICE_ACCOUNT in the node, or the certificate", sa, w.ServiceAccount, id.name)
	}
	p.Identity = w
	return nil
}
