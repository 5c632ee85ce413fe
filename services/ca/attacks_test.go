package ca_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	authv1 "istio.io/api/security/v1alpha1"

	"meshlog.dev/services/ca"
	"meshlog.dev/services/ca/authn"
	"meshlog.dev/services/mesh/spiffe"
)

// CA-7, S27: a certificate request with another identity in its names, or that asks for
// a CA, gets a certificate for the caller and nothing else.
func TestAttackCertificateRequestNames(t *testing.T) {
	r := start(t, nil)
	admin, err := url.Parse("spiffe://cluster.local/ns/bank/sa/admin")
	if err != nil {
		t.Fatal(err)
	}
	ca, err := asn1.Marshal(struct{ IsCA bool }{true})
	if err != nil {
		t.Fatal(err)
	}
	for name, template := range map[string]*x509.CertificateRequest{
		"extra SAN": {URIs: []*url.URL{admin}, DNSNames: []string{"admin.bank.svc", admin.String()}},
		"CN":        {Subject: pkix.Name{CommonName: admin.String()}},
		"CA bit":    {ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: ca}}},
	} {
		req, _ := request(t, template)
		chain, err := r.agent().ask(req, bearer(r.token())...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		leaf := leafOf(t, chain)
		if id, err := spiffe.FromCertificate(leaf); err != nil || id != cart || len(leaf.DNSNames) > 0 || leaf.Subject.String() != "" || leaf.IsCA {
			t.Errorf("%s: identity %v, %v, names %v, subject %q, CA %v", name, id, err, leaf.DNSNames, leaf.Subject, leaf.IsCA)
		}
	}
}

// CA-7: requests that are forged, weak or huge are refused, and cost no join token.
func TestAttackCertificateRequests(t *testing.T) {
	r := start(t, nil)
	token := r.token()
	good := newRequest(t)
	block, _ := pem.Decode([]byte(good.GetCsr()))
	forged := slices.Clone(block.Bytes)
	forged[len(forged)-1] ^= 1
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	weakDER, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, weak)
	if err != nil {
		t.Fatal(err)
	}
	large, _ := request(t, &x509.CertificateRequest{DNSNames: slices.Repeat([]string{"shop.example"}, 2000)})
	encode := func(der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	}
	for want, csr := range map[string]string{
		"is not signed with the key in it":     encode(forged),
		"RSA with 1024 bits: use 2048 to 8192": encode(weakDER),
		"at most 16384 are allowed":            large.GetCsr(),
		"is not a PEM block":                   "",
	} {
		chain, err := r.agent().ask(&authv1.IstioCertificateRequest{Csr: csr}, bearer(token)...)
		r.expectRefused(chain, err, codes.InvalidArgument, want)
		if last := r.last(); last.Identity != cart {
			t.Errorf("the audit has %+v", last)
		}
	}
	if _, err := r.agent().ask(&authv1.IstioCertificateRequest{Csr: strings.Repeat("x", 1<<20)}, bearer(token)...); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a request of 1 MiB: %v", err)
	}
	if _, err := r.agent().ask(good, bearer(token)...); err != nil {
		t.Errorf("the token was spent: %v", err)
	}
	if n := r.value("citadel_server_csr_parsing_err_count"); n != 4 {
		t.Errorf("%v invalid requests are counted", n)
	}
}

// CA-6: a join token that was used, by anyone, is worth nothing.
func TestAttackTokenReplayed(t *testing.T) {
	r := start(t, nil)
	token := r.token()
	if _, err := r.agent().ask(newRequest(t), bearer(token)...); err != nil {
		t.Fatal(err)
	}
	chain, err := r.agent().ask(newRequest(t), bearer(token)...)
	r.expectRefused(chain, err, codes.Unauthenticated, "the join token is unknown, spent or has ended")
	if strings.Contains(r.log.String(), token) {
		t.Errorf("the token is in the log: %s", r.log)
	}
}

// CA-6: of two replicas that get a join token at once, one issues.
func TestAttackJoinTokenAtTwoReplicasAtOnce(t *testing.T) {
	r := start(t, nil)
	replicas := []*agent{r.agent()}
	r.listen(nil)
	replicas = append(replicas, r.agent())
	for range 20 {
		token, issued := r.token(), make([]error, len(replicas))
		begin := make(chan struct{})
		var all sync.WaitGroup
		for i, a := range replicas {
			req := newRequest(t)
			all.Go(func() { <-begin; _, issued[i] = a.ask(req, bearer(token)...) })
		}
		close(begin)
		all.Wait()
		if (issued[0] == nil) == (issued[1] == nil) {
			t.Fatalf("both replicas, or none, issued for one token: %v", issued)
		}
	}
}

// CA-1, CA-5, S27: certificates that prove no identity of this mesh renew nothing.
func TestAttackCertificates(t *testing.T) {
	r := start(t, nil)
	id := cart.String()
	stranger := newRoot(t, time.Now().Add(time.Hour))
	for name, c := range map[string]struct {
		cert tls.Certificate
		code codes.Code
		want string
	}{
		"other trust domain":   {r.root.client(t, nil, "spiffe://other.example/ns/shop/sa/cart"), codes.PermissionDenied, "trust domain other.example"},
		"two URIs":             {r.root.client(t, nil, id, "spiffe://cluster.local/ns/bank/sa/admin"), codes.PermissionDenied, "has no identity"},
		"DNS = id":             {r.root.client(t, func(c *x509.Certificate) { c.DNSNames = []string{id} }), codes.PermissionDenied, "has no identity"},
		"CN = id":              {r.root.client(t, func(c *x509.Certificate) { c.Subject.CommonName = id }), codes.PermissionDenied, "has no identity"},
		"ended":                {r.root.client(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }, id), codes.Unauthenticated, "is not valid under the roots"},
		"CA bit":               {r.root.client(t, func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = true, true }, id), codes.PermissionDenied, "has no identity"},
		"of another CA":        {stranger.client(t, nil, id), codes.Unauthenticated, "is not valid under the roots"},
		"a server's only":      {r.root.client(t, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }, id), codes.Unauthenticated, "is not valid under the roots"},
		"with another segment": {r.root.client(t, nil, "spiffe://cluster.local/ns/evil/sa/x/ns/shop/sa/cart"), codes.PermissionDenied, "has no identity"},
	} {
		t.Run(name, func(t *testing.T) {
			r.t = t
			chain, err := r.agent(c.cert).ask(newRequest(t))
			r.expectRefused(chain, err, c.code, c.want)
		})
	}
	r.t = t
	if n := r.value("citadel_server_authentication_failure_count"); n != 9 {
		t.Errorf("%v failures are counted", n)
	}
	// A certificate below one that the CA issued: a leaf is no CA.
	key := newKey(t)
	parent := &root{r.root.sign(t, &x509.Certificate{NotAfter: time.Now().Add(time.Hour), URIs: []*url.URL{{Scheme: "spiffe", Host: domain, Path: "/ns/shop/sa/cart"}}}, key), key}
	below := parent.client(t, nil, "spiffe://cluster.local/ns/bank/sa/admin")
	below.Certificate = append(below.Certificate, parent.cert.Raw)
	chain, err := r.agent(below).ask(newRequest(t))
	r.expectRefused(chain, err, codes.Unauthenticated, "is not valid under the roots")
}

// CA-5: a certificate renews its own identity; a token beside it decides alone.
func TestAttackTokenAndCertificate(t *testing.T) {
	r := start(t, nil)
	good := r.root.client(t, nil, "spiffe://cluster.local/ns/bank/sa/admin")
	for _, token := range []string{"meshlog-join-x", "a.b.c", "x"} {
		chain, err := r.agent(good).ask(newRequest(t), bearer(token)...)
		r.expectRefused(chain, err, codes.Unauthenticated, "token")
	}
	chain, err := r.agent(good).ask(newRequest(t), bearer(r.token())...)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := spiffe.FromCertificate(leafOf(t, chain)); err != nil || id != cart {
		t.Errorf("issued for %v, %v; want the token's identity", id, err)
	}
}

// CA-2: a request for the identity of another workload is refused.
func TestAttackImpersonation(t *testing.T) {
	r := start(t, nil)
	for _, value := range []*structpb.Value{structpb.NewStringValue("spiffe://cluster.local/ns/bank/sa/admin"), structpb.NewStringValue(""), structpb.NewNullValue()} {
		req, token := newRequest(t), r.token()
		req.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{"ImpersonatedIdentity": value}}
		chain, err := r.agent().ask(req, bearer(token)...)
		r.expectRefused(chain, err, codes.Unauthenticated, "issues no certificates for others")
		// Other metadata has no effect.
		req.Metadata.Fields = map[string]*structpb.Value{"CertSigner": structpb.NewStringValue("x"), "ClusterID": structpb.NewStringValue("y")}
		if _, err := r.agent().ask(req, bearer(token)...); err != nil {
			t.Error(err)
		}
	}
}

// CA-5: headers that are no token, or two.
func TestAttackHeaders(t *testing.T) {
	r := start(t, nil)
	token := r.token()
	for name, headers := range map[string][]string{
		"two tokens":     {"authorization", "Bearer " + token, "authorization", "Bearer " + token},
		"another scheme": {"authorization", "Basic " + token},
		"no token":       {"authorization", "Bearer "},
		"no scheme":      {"authorization", token},
	} {
		t.Run(name, func(t *testing.T) {
			r.t = t
			chain, err := r.agent().ask(newRequest(t), headers...)
			r.expectRefused(chain, err, codes.Unauthenticated, "send one header authorization: Bearer TOKEN")
		})
	}
	r.t = t
	chain, err := r.agent().ask(newRequest(t))
	r.expectRefused(chain, err, codes.Unauthenticated, "neither a token nor a certificate")
	chain, err = r.agent().ask(newRequest(t), bearer(strings.Repeat("x", authn.MaxToken+1))...)
	r.expectRefused(chain, err, codes.Unauthenticated, "at most 16384 are allowed")
	if _, err := r.agent().ask(newRequest(t), bearer(strings.Repeat("x", 1<<20))...); err == nil {
		t.Error("a token of 1 MiB was taken")
	}
}

// CA-2: nothing is answered without TLS, nor with an old version of it.
func TestAttackPlaintext(t *testing.T) {
	r := start(t, nil)
	conn, err := grpc.NewClient("passthrough:///"+r.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	plain := &agent{t, authv1.NewIstioCertificateServiceClient(conn)}
	if _, err := plain.ask(newRequest(t), bearer(r.token())...); status.Code(err) != codes.Unavailable {
		t.Errorf("without TLS: %v", err)
	}
	old, err := tls.Dial("tcp", r.addr, &tls.Config{RootCAs: r.serverCA.Pool(), ServerName: "localhost", MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11, NextProtos: []string{"h2"}})
	if err == nil {
		old.Close()
		t.Error("TLS 1.1 was accepted")
	}
	// A client may learn of it before it is counted.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for r.value("meshlog_ca_tls_handshake_failures_total") < 2 || !strings.Contains(r.log.String(), "a TLS handshake failed") {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("failed handshakes are not counted and logged; log: %s", r.log)
		}
	}
}

// CA-14: no TLS session is resumed, so each connection shows its certificate.
func TestAttackResumption(t *testing.T) {
	r := start(t, nil)
	conf := &tls.Config{
		RootCAs: r.serverCA.Pool(), ServerName: "localhost", NextProtos: []string{"h2"}, ClientSessionCache: tls.NewLRUClientSessionCache(4),
		Certificates: []tls.Certificate{r.root.client(t, nil, cart.String())},
	}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		conf.MaxVersion = version
		for range 2 {
			c, err := tls.Dial("tcp", r.addr, conf)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Read(make([]byte, 1)); err != nil { // tickets come before the server's settings
				t.Fatal(err)
			}
			if c.ConnectionState().DidResume {
				t.Errorf("TLS %x was resumed", version)
			}
			c.Close()
		}
	}
}

// Limits: an address that asks too often, or opens too many connections, is refused,
// and is not audited.
func TestAttackFlood(t *testing.T) {
	r := start(t, func(c *ca.Config) { c.Limits = ca.Limits{PerSecond: 1, Connections: 3} })
	a := r.agent()
	const requests = 20
	refused := 0
	for range requests {
		_, err := a.ask(newRequest(t), bearer("x")...)
		if status.Code(err) == codes.ResourceExhausted {
			refused++
		}
	}
	if refused < requests/4 || r.value("meshlog_ca_refused_total") != requests {
		t.Errorf("%d of %d requests were refused for their number, want those after the burst of 5", refused, requests)
	}
	r.mu.Lock()
	recorded := len(r.records)
	r.mu.Unlock()
	if recorded != requests-refused {
		t.Errorf("%d records for %d requests within the limits", recorded, requests-refused)
	}
	// Connections count before their handshake.
	quiet := start(t, func(c *ca.Config) { c.Limits = ca.Limits{Connections: 3} })
	var open []net.Conn
	for range 3 {
		c, err := net.Dial("tcp", quiet.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		open = append(open, c)
	}
	fourth, err := net.Dial("tcp", quiet.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer fourth.Close()
	if err := fourth.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := fourth.Read(make([]byte, 1)); err == nil {
		t.Error("the fourth connection was accepted")
	} else if timeout, ok := err.(net.Error); ok && timeout.Timeout() { //nolint:errorlint // of the test's own read
		t.Error("the fourth connection stays open")
	}
	if n := quiet.value("meshlog_ca_connections_refused_total"); n != 1 {
		t.Errorf("%v refused connections are counted", n)
	}
	_ = open[0].Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for { // a place is free once the server has seen the close
		if _, err := quiet.agent().ask(newRequest(t), bearer(quiet.token())...); err == nil {
			return
		} else if ctx.Err() != nil {
			t.Fatalf("no place became free: %v", err)
		}
	}
}
