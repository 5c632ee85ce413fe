package ca_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"meshlog.dev/services/ca/jointoken"
	"meshlog.dev/services/ca/signer"
	"meshlog.dev/services/mesh/spiffe"
)

var names = []string{"frontend.mesh.example", "frontend"}

func (r *rig) servingToken() string {
	r.t.Helper()
	token, err := jointoken.NewServing(r.t.Context(), r.store, names, time.Now().Add(time.Hour))
	if err != nil {
		r.t.Fatal(err)
	}
	return token
}

// server asks for a certificate with a token, or with the certificate that is shown.
func (r *rig) server(template *x509.CertificateRequest, token string, shown ...tls.Certificate) (tls.Certificate, error) {
	r.t.Helper()
	var headers []string
	if token != "" {
		headers = bearer(token)
	}
	req, key := request(r.t, template)
	chain, err := r.agent(shown...).ask(req, headers...)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf := leafOf(r.t, chain)
	return tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}, nil
}

// expectServing checks that a certificate has these names and nothing else, and is good for
// no client.
func (r *rig) expectServing(c tls.Certificate, what string) {
	r.t.Helper()
	leaf := c.Leaf
	if !slices.Equal(leaf.DNSNames, names) || !signer.IsServing(leaf) || !slices.Equal(leaf.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}) ||
		leaf.Subject.String() != "" || len(leaf.URIs)+len(leaf.IPAddresses)+len(leaf.EmailAddresses) > 0 || leaf.IsCA {
		r.t.Errorf("%s: names %v, URIs %v, subject %q, usages %v", what, leaf.DNSNames, leaf.URIs, leaf.Subject, leaf.ExtKeyUsage)
	}
	if id, err := spiffe.FromCertificate(leaf); err == nil {
		r.t.Errorf("%s: it has the identity %s", what, id)
	}
	roots := x509.NewCertPool()
	roots.AddCert(r.root.cert)
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: names[0]}); err != nil {
		r.t.Errorf("%s: a client does not take it: %v", what, err)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err == nil {
		r.t.Errorf("%s: it is good for clients", what)
	}
	if last := r.last(); last.Identity != (spiffe.ID{}) || !slices.Equal(last.Serving, names) || last.Serial != leaf.SerialNumber.Text(16) {
		r.t.Errorf("%s: the audit has %+v", what, last)
	}
}

// CA-11: with a token that names a server, a frontend gets a certificate for its DNS names,
// and another one with that; neither is an identity.
func TestServing(t *testing.T) {
	r := start(t, nil)
	token := r.servingToken()
	first, err := r.server(&x509.CertificateRequest{}, token)
	if err != nil {
		t.Fatal(err)
	}
	r.expectServing(first, "by a token")
	if by := r.last().Authenticator; by != "join-token" {
		t.Errorf("the audit has the authenticator %s", by)
	}
	second, err := r.server(&x509.CertificateRequest{}, "", first)
	if err != nil {
		t.Fatal(err)
	}
	r.expectServing(second, "by the certificate")
	if last := r.last(); last.Authenticator != "certificate" || last.Facts["serial"] != first.Leaf.SerialNumber.Text(16) {
		t.Errorf("the audit has %+v", last)
	}
	_, err = r.server(&x509.CertificateRequest{}, token)
	r.expectRefused(nil, err, codes.Unauthenticated, "unknown, spent or has ended")
	if text, err := json.Marshal(r.records[0]); err != nil || !strings.Contains(string(text), `"serving":["frontend.mesh.example","frontend"]`) || strings.Contains(string(text), "identity") {
		t.Errorf("a record is %s, %v", text, err)
	}
}

// CA-7, CA-11: what a request asks for makes no server of a workload, no workload of a
// server, and no server of another name.
func TestAttackServingRequests(t *testing.T) {
	r := start(t, nil)
	admin := &url.URL{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/bank/sa/admin"}
	template := &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "ca.mesh.example"}, DNSNames: []string{"ca.mesh.example"}, URIs: []*url.URL{admin}, IPAddresses: []net.IP{{127, 0, 0, 1}},
	}
	server, err := r.server(template, r.servingToken())
	if err != nil {
		t.Fatal(err)
	}
	r.expectServing(server, "by a token")
	if server, err = r.server(template, "", server); err != nil {
		t.Fatal(err)
	}
	r.expectServing(server, "by a certificate")

	workload, err := r.server(template, r.token())
	for _, what := range []string{"by a token", "by a certificate"} {
		if err != nil {
			t.Fatal(err)
		}
		if id, err := spiffe.FromCertificate(workload.Leaf); err != nil || id != cart || len(workload.Leaf.DNSNames)+len(workload.Leaf.IPAddresses) > 0 || signer.IsServing(workload.Leaf) {
			t.Errorf("a workload %s: %s, %v, names %v", what, id, err, workload.Leaf.DNSNames)
		}
		if err := workload.Leaf.VerifyHostname("ca.mesh.example"); err == nil {
			t.Errorf("a workload %s is a server", what)
		}
		workload, err = r.server(template, "", workload)
	}

	// The token decides, whatever certificate is shown beside it.
	if both, err := r.server(template, r.token(), server); err != nil || len(both.Leaf.DNSNames) > 0 {
		t.Errorf("the token of a workload and the certificate of a server: %v, %v", both.Leaf.DNSNames, err)
	}
}

// CA-11: only a certificate of the form that the CA issues to servers gets another one: it
// has DNS names and no other, and is for servers alone.
func TestAttackServingCertificates(t *testing.T) {
	r := start(t, nil)
	serving := func(change func(*x509.Certificate)) func(*x509.Certificate) {
		return func(c *x509.Certificate) {
			c.DNSNames, c.ExtKeyUsage = slices.Clone(names), []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
			change(c)
		}
	}
	if _, err := r.server(&x509.CertificateRequest{}, "", r.root.client(t, serving(func(*x509.Certificate) {}))); err != nil {
		t.Fatalf("without an attack: %v", err)
	}
	stranger := newRoot(t, time.Now().Add(time.Hour))
	for name, c := range map[string]struct {
		cert tls.Certificate
		code codes.Code
		want string
	}{
		"for clients too": {r.root.client(t, serving(func(c *x509.Certificate) { c.ExtKeyUsage = append(c.ExtKeyUsage, x509.ExtKeyUsageClientAuth) })), codes.PermissionDenied, "has no identity"},
		"any usage":       {r.root.client(t, serving(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} })), codes.PermissionDenied, "has no identity"},
		"a CN":            {r.root.client(t, serving(func(c *x509.Certificate) { c.Subject.CommonName = cart.String() })), codes.Unauthenticated, "not valid under the roots"},
		"an address":      {r.root.client(t, serving(func(c *x509.Certificate) { c.IPAddresses = []net.IP{{127, 0, 0, 1}} })), codes.Unauthenticated, "not valid under the roots"},
		"a URI":           {r.root.client(t, serving(func(*x509.Certificate) {}), cart.String()), codes.Unauthenticated, "not valid under the roots"},
		"a CA":            {r.root.client(t, serving(func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = true, true })), codes.Unauthenticated, "not valid under the roots"},
		"a star":          {r.root.client(t, serving(func(c *x509.Certificate) { c.DNSNames = []string{"*.mesh.example"} })), codes.PermissionDenied, "names that this CA does not issue"},
		"an identity":     {r.root.client(t, serving(func(c *x509.Certificate) { c.DNSNames = []string{cart.String()} })), codes.PermissionDenied, "names that this CA does not issue"},
		"ended":           {r.root.client(t, serving(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })), codes.Unauthenticated, "not valid under the roots"},
		"another root":    {stranger.client(t, serving(func(*x509.Certificate) {})), codes.Unauthenticated, "not valid under the roots"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := r.server(&x509.CertificateRequest{}, "", c.cert)
			r.expectRefused(nil, err, c.code, c.want)
		})
	}
	// A workload whose certificate has DNS names too stays a workload without them.
	c, err := r.server(&x509.CertificateRequest{}, "", r.root.client(t, func(c *x509.Certificate) { c.DNSNames = names }, cart.String()))
	if err != nil || len(c.Leaf.DNSNames) > 0 {
		t.Errorf("a workload with DNS names gets %v, %v", c.Leaf, err)
	}
}

// CA-11: a grant on the bus is for a workload, or for a server with valid names. A caller
// with any other grant, which somebody with an operator's key could write, gets no
// certificate.
func TestAttackServingGrants(t *testing.T) {
	r := start(t, nil)
	for name, c := range map[string]struct {
		grant jointoken.Grant
		want  string
	}{
		"both":       {jointoken.Grant{Namespace: "shop", ServiceAccount: "cart", Serving: names}, "for a workload and for a server"},
		"an account": {jointoken.Grant{ServiceAccount: "cart", Serving: names}, "for a workload and for a server"},
		"a star":     {jointoken.Grant{Serving: []string{"*.mesh.example"}}, "names no server"},
		"a URI":      {jointoken.Grant{Serving: []string{"spiffe://cluster.local/ns/shop/sa/cart"}}, "names no server"},
		"nothing":    {jointoken.Grant{Serving: []string{}}, "name no workload"},
	} {
		t.Run(name, func(t *testing.T) {
			c.grant.Until = time.Now().Add(time.Hour)
			value, err := json.Marshal(c.grant)
			if err != nil {
				t.Fatal(err)
			}
			const token = "meshlog-join-made-by-hand"
			if err := r.store.Create(t.Context(), jointoken.Key(token+name), value, c.grant.Until); err != nil {
				t.Fatal(err)
			}
			_, err = r.server(&x509.CertificateRequest{}, token+name)
			r.expectRefused(nil, err, codes.PermissionDenied, c.want)
		})
	}
}

// CA-11: names are hosts in lower case.
func TestServingNames(t *testing.T) {
	for _, good := range [][]string{{"localhost"}, names, {"a-1.b.example", "10-0-0-1.nip.example"}} {
		if err := jointoken.CheckNames(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	many := strings.Fields("a b c d e f g h i")
	for _, bad := range [][]string{
		nil, {""}, {"."}, {"a."}, {".a"}, {"a..b"}, {"A.example"}, {"*.example"}, {"a_b"}, {"-a"}, {"a-"}, {"127.0.0.1"}, {"::1"}, {"a b"}, {"a\x00"}, {"a,b"},
		{"spiffe://cluster.local/ns/a/sa/b"}, {strings.Repeat("a", 64)}, {strings.Repeat("a.", 127) + "ab"}, {"a", "a"}, many,
	} {
		if jointoken.CheckNames(bad) == nil {
			t.Errorf("%q are taken", bad)
		}
		if _, err := jointoken.NewServing(t.Context(), new(jointoken.Memory), bad, time.Now().Add(time.Hour)); err == nil {
			t.Errorf("a token for %q is made", bad)
		}
	}
}
