// Package signer issues the certificates of workloads: it holds the certificate and
// the key of a certificate authority, reads requests, and signs.
package signer

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"slices"
	"time"

	"meshlog.dev/services/mesh/spiffe"
)

// Times of certificates (CA-7, CA-8).
const (
	DefaultTTL = 24 * time.Hour
	MaxTTL     = 7 * 24 * time.Hour
	// backdate is how long before it is issued a certificate is valid: clocks differ.
	backdate = 2 * time.Minute
	// shortest is how long a certificate must be valid. An issuer that ends sooner
	// issues none: proxies would ask again at once.
	shortest = time.Minute
)

// ErrEnded says that the issuer's certificate, or one above it, ends or has ended.
var ErrEnded = errors.New("the certificate of the CA has ended or is about to")

// Authority is a certificate authority. It is immutable.
type Authority struct {
	key   crypto.Signer
	own   *x509.Certificate
	roots []*x509.Certificate
	root  *x509.Certificate // the one of roots that the path ends in
	path  []string          // the own certificate and those up to its root, as PEM
	ends  time.Time         // the first end of a certificate of the path

	pool          *x509.CertPool // of roots
	intermediates *x509.CertPool
}

// New returns the authority of a key, which may be outside of this process, as in a
// KMS or in PKCS#11 (CA-4). The certificate of the key is chain[0]; the others of
// chain lead to one of roots, and may include it. Roots are what relying parties of
// this authority trust.
func New(key crypto.Signer, chain, roots []*x509.Certificate, now time.Time) (*Authority, error) {
	if len(chain) == 0 || len(roots) == 0 {
		return nil, errors.New("a CA needs its certificate and at least one root")
	}
	own := chain[0]
	if !own.IsCA || own.KeyUsage&x509.KeyUsageCertSign == 0 {
		return nil, fmt.Errorf("the certificate %q cannot sign others: it needs the CA bit and the key usage certSign", own.Subject)
	}
	if public, ok := own.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !public.Equal(key.Public()) {
		return nil, fmt.Errorf("the key is not that of the certificate %q", own.Subject)
	}
	a := &Authority{key: key, own: own, roots: roots, pool: x509.NewCertPool(), intermediates: x509.NewCertPool()}
	for _, r := range roots {
		if !r.IsCA {
			return nil, fmt.Errorf("the root %q has no CA bit", r.Subject)
		}
		a.pool.AddCert(r)
	}
	for _, c := range chain {
		a.intermediates.AddCert(c)
	}
	verified, err := own.Verify(x509.VerifyOptions{
		Roots: a.pool, Intermediates: a.intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	var invalid x509.CertificateInvalidError
	if errors.As(err, &invalid) && invalid.Reason == x509.Expired {
		c := invalid.Cert // the library's error has the current time, and would be new each time
		return nil, fmt.Errorf("the certificate %q is valid from %s to %s only: replace it", c.Subject, c.NotBefore.UTC().Format(time.RFC3339), c.NotAfter.UTC().Format(time.RFC3339))
	}
	if err != nil {
		return nil, fmt.Errorf("the certificate %q is not one of the given roots: %w", own.Subject, err)
	}
	path := slices.MinFunc(verified, func(a, b []*x509.Certificate) int { return len(a) - len(b) })
	a.ends = path[0].NotAfter
	for _, c := range path {
		if c.NotAfter.Before(a.ends) {
			a.ends = c.NotAfter
		}
		a.path = append(a.path, Encode(c))
	}
	a.root = path[len(path)-1]
	return a, nil
}

// Certificate returns the authority's own certificate.
func (a *Authority) Certificate() *x509.Certificate { return a.own }

// Roots returns the roots that relying parties trust.
func (a *Authority) Roots() []*x509.Certificate { return slices.Clone(a.roots) }

// Root returns the root under which the authority signs: one of Roots.
func (a *Authority) Root() *x509.Certificate { return a.root }

// Ends returns when the first certificate between the authority and its root ends.
func (a *Authority) Ends() time.Time { return a.ends }

// Check returns why no certificate of that length can be issued at a time: ErrEnded if
// the authority cannot issue any more.
func (a *Authority) Check(ttl time.Duration, now time.Time) error {
	if ttl < shortest || ttl > MaxTTL {
		return fmt.Errorf("a certificate for %s is not issued: the least is %s, and the most %s", ttl, shortest, MaxTTL)
	}
	if now.Add(shortest).After(a.ends) {
		return fmt.Errorf("%w, at %s: replace it", ErrEnded, a.ends.UTC().Format(time.RFC3339))
	}
	return nil
}

// Verify returns why a client's certificate is none under the authority's roots, or
// nil. The further certificates are those that the client sent with it.
func (a *Authority) Verify(leaf *x509.Certificate, further []*x509.Certificate, now time.Time) error {
	return a.verify(leaf, further, x509.ExtKeyUsageClientAuth, now)
}

// VerifyServing is Verify for the certificate of a server.
func (a *Authority) VerifyServing(leaf *x509.Certificate, further []*x509.Certificate, now time.Time) error {
	return a.verify(leaf, further, x509.ExtKeyUsageServerAuth, now)
}

func (a *Authority) verify(leaf *x509.Certificate, further []*x509.Certificate, usage x509.ExtKeyUsage, now time.Time) error {
	between := a.intermediates.Clone()
	for _, c := range further {
		between.AddCert(c)
	}
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: a.pool, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage},
	})
	return err
}

// Issued is a certificate that was signed.
type Issued struct {
	Leaf *x509.Certificate
	// Chain is what a client gets, each certificate as PEM: the leaf, those between it
	// and the root, and last the root of this authority. Clients learn of further
	// roots elsewhere: an element with several certificates is one that ztunnel cannot
	// read, and Istio's agents take the last element alone for the root.
	Chain []string
}

// Issue signs a certificate for an identity and the key of a request (CA-7). Nothing
// else of the request is in it. The certificate ends after ttl, and earlier if the
// authority does (CA-8).
func (a *Authority) Issue(r *Request, id spiffe.ID, ttl time.Duration, now time.Time) (*Issued, error) {
	if err := a.Check(ttl, now); err != nil {
		return nil, err
	}
	uri, err := url.Parse(id.String())
	if err != nil {
		return nil, err
	}
	leaf, err := a.sign(&x509.Certificate{
		URIs:        []*url.URL{uri},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, r.public, ttl, now)
	if err != nil {
		return nil, err
	}
	// What was signed is what was meant, whatever the libraries made of it.
	if got, err := spiffe.FromCertificate(leaf); err != nil {
		return nil, fmt.Errorf("the signed certificate has no identity: %w", err)
	} else if got != id {
		return nil, fmt.Errorf("the signed certificate is for %s instead of %s", got, id)
	}
	return &Issued{leaf, append([]string{Encode(leaf)}, a.path...)}, nil
}

// IssueServing signs a certificate for a server with these DNS names (CA-11). It has no
// identity and is good for no client, so it opens nothing that the names do not.
func (a *Authority) IssueServing(key crypto.PublicKey, names []string, ttl time.Duration, now time.Time) (*Issued, error) {
	if err := a.Check(ttl, now); err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, errors.New("a server's certificate needs a DNS name")
	}
	leaf, err := a.sign(&x509.Certificate{DNSNames: names, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, key, ttl, now)
	if err != nil {
		return nil, err
	}
	if !IsServing(leaf) || !slices.Equal(leaf.DNSNames, names) { // what was signed is what was meant
		return nil, fmt.Errorf("the signed certificate is not one of a server %q", names)
	}
	return &Issued{leaf, append([]string{Encode(leaf)}, a.path...)}, nil
}

// IsServing reports whether a certificate has the form of those that IssueServing signs:
// DNS names and no other name, good for servers and nothing else.
func IsServing(c *x509.Certificate) bool {
	return !c.IsCA && c.KeyUsage == x509.KeyUsageDigitalSignature &&
		slices.Equal(c.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}) && len(c.UnknownExtKeyUsage) == 0 &&
		len(c.DNSNames) > 0 && len(c.URIs)+len(c.IPAddresses)+len(c.EmailAddresses) == 0 && len(c.Subject.Names) == 0
}

// sign completes a leaf and signs it. It ends after ttl, and earlier if the authority
// does (CA-8).
func (a *Authority) sign(template *x509.Certificate, key crypto.PublicKey, ttl time.Duration, now time.Time) (*x509.Certificate, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template.SerialNumber, template.NotBefore, template.NotAfter = serial, now.Add(-backdate), now.Add(ttl)
	if template.NotAfter.After(a.ends) {
		template.NotAfter = a.ends
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature // the SPIFFE validator wants it (S33)
	template.BasicConstraintsValid = true
	der, err := x509.CreateCertificate(rand.Reader, template, a.own, key, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	return x509.ParseCertificate(der)
}

// newSerial returns 128 random bits (CA-7).
func newSerial() (*big.Int, error) {
	b := make([]byte, 16)
	for {
		if _, err := rand.Read(b); err != nil {
			return nil, err
		}
		if n := new(big.Int).SetBytes(b); n.Sign() > 0 {
			return n, nil
		}
	}
}

// Encode returns a certificate as PEM.
func Encode(c *x509.Certificate) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: c.Raw}))
}

// Types of PEM blocks.
const (
	certificateBlock = "CERTIFICATE"
	requestBlock     = "CERTIFICATE REQUEST"
	keyBlock         = "PRIVATE KEY"
)

// ParseCertificates returns the certificates of PEM data, which may have other blocks
// and text between them.
func ParseCertificates(data []byte) (all []*x509.Certificate, err error) {
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if block.Type != certificateBlock {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, errors.New("holds no PEM certificate")
	}
	return all, nil
}

// parseKey returns the key of PEM data, in one of the forms that openssl and Istio
// write. Errors never repeat what is in it.
func parseKey(data []byte) (crypto.Signer, error) {
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return nil, errors.New("holds no private key in PEM")
		}
		var key any
		var err error
		switch block.Type {
		case keyBlock:
			key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		case "EC PRIVATE KEY":
			key, err = x509.ParseECPrivateKey(block.Bytes)
		case "RSA PRIVATE KEY":
			key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		default:
			continue
		}
		signer, ok := key.(crypto.Signer)
		if err != nil || !ok {
			return nil, fmt.Errorf("its block %s is not a private key that can sign; write it as PKCS#8, unencrypted", block.Type)
		}
		return signer, nil
	}
}
