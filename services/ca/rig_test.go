package ca_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	authv1 "istio.io/api/security/v1alpha1"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/services/ca"
	"meshlog.dev/services/ca/authn"
	"meshlog.dev/services/ca/jointoken"
	"meshlog.dev/services/ca/signer"
	"meshlog.dev/services/internal/certificates"
	"meshlog.dev/services/mesh/spiffe"
)

const domain = "cluster.local"

var cart = spiffe.ID{TrustDomain: domain, Namespace: "shop", ServiceAccount: "cart"}

// root is a root whose key the test has.
type root struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newRoot(t testing.TB, ends time.Time) *root {
	t.Helper()
	r := &root{key: newKey(t)}
	r.cert = r.sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "root"}, NotAfter: ends, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, r.key)
	return r
}

// sign signs a certificate; the root's own if there is none yet.
func (r *root) sign(t testing.TB, template *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	template.SerialNumber, template.NotBefore = big.NewInt(time.Now().UnixNano()), time.Now().Add(-48*time.Hour)
	parent := r.cert
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), r.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// client returns the certificate of a workload; change may spoil it.
func (r *root) client(t testing.TB, change func(*x509.Certificate), uris ...string) tls.Certificate {
	t.Helper()
	template := &x509.Certificate{NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, s := range uris {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		template.URIs = append(template.URIs, u)
	}
	if change != nil {
		change(template)
	}
	key := newKey(t)
	return tls.Certificate{Certificate: [][]byte{r.sign(t, template, key).Raw}, PrivateKey: key}
}

func (r *root) authority(t testing.TB) *signer.Authority {
	t.Helper()
	a, err := signer.New(r.key, []*x509.Certificate{r.cert}, []*x509.Certificate{r.cert}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// lockedBuffer is a log that a test reads while the server writes.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// rig is a CA that listens on loopback, with join tokens and certificates.
type rig struct {
	t         testing.TB
	root      *root
	store     *jointoken.Memory
	serverCA  *certtest.CA
	addr      string
	log       *lockedBuffer
	collector *prometheus.Registry

	mu      sync.Mutex
	records []ca.Record
	audit   error // what the audit answers
}

func start(t testing.TB, change func(*ca.Config)) *rig {
	t.Helper()
	r := &rig{
		t: t, root: newRoot(t, time.Now().Add(1000*time.Hour)), store: new(jointoken.Memory), serverCA: certtest.NewCA("servers"),
		log: new(lockedBuffer), collector: prometheus.NewRegistry(),
	}
	r.listen(change)
	return r
}

// listen starts a replica of the CA. The rig then talks to that one.
func (r *rig) listen(change func(*ca.Config)) {
	r.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	r.addr = l.Addr().String()
	cert, key := r.serverCA.Server("ca", time.Now().Add(time.Hour)).Write(r.t, r.t.TempDir(), "ca")
	certs, err := certificates.Load(certificates.Files{Cert: cert, Key: key})
	if err != nil {
		r.t.Fatal(err)
	}
	authority := r.root.authority(r.t)
	current := func() *signer.Authority { return authority }
	cfg := ca.Config{
		Listeners: []net.Listener{l}, TrustDomain: domain, Authority: current,
		TLS:            certs.Config(),
		Authenticators: authn.Set{authn.NewJoin(domain, r.store), authn.NewCertificate(domain, current)},
		Metrics:        ca.NewMetrics(),
		Logger:         slog.New(slog.NewTextHandler(r.log, nil)),
		Audit: func(_ context.Context, record ca.Record) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.records = append(r.records, record)
			return r.audit
		},
	}
	if change != nil {
		change(&cfg)
	}
	r.collector = prometheus.NewRegistry()
	r.collector.MustRegister(cfg.Metrics.Collectors()...)
	s, err := ca.New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	r.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			r.t.Error(err)
		}
	})
}

// agent is a client as Istio's agent is one: it may have a certificate, and sends its
// token with each request.
func (r *rig) agent(certs ...tls.Certificate) *agent {
	r.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+r.addr, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		RootCAs: r.serverCA.Pool(), ServerName: "localhost", Certificates: certs,
	})))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	return &agent{r.t, authv1.NewIstioCertificateServiceClient(conn)}
}

type agent struct {
	t      testing.TB
	client authv1.IstioCertificateServiceClient
}

// ask requests a certificate; headers are names and values.
func (a *agent) ask(req *authv1.IstioCertificateRequest, headers ...string) ([]string, error) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), 30*time.Second)
	defer cancel()
	resp, err := a.client.CreateCertificate(metadata.AppendToOutgoingContext(ctx, headers...), req)
	return resp.GetCertChain(), err
}

func bearer(token string) []string {
	return []string{"authorization", "Bearer " + token, "clusterid", "Kubernetes"}
}

func (r *rig) token() string {
	r.t.Helper()
	token, err := jointoken.New(r.t.Context(), r.store, "shop", "cart", time.Now().Add(time.Hour))
	if err != nil {
		r.t.Fatal(err)
	}
	return token
}

// request returns the request of an agent, and its key.
func request(t testing.TB, template *x509.CertificateRequest) (*authv1.IstioCertificateRequest, *ecdsa.PrivateKey) {
	t.Helper()
	key := newKey(t)
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return &authv1.IstioCertificateRequest{
		Csr: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})), ValidityDuration: 86400,
	}, key
}

func newRequest(t testing.TB) *authv1.IstioCertificateRequest {
	t.Helper()
	req, _ := request(t, &x509.CertificateRequest{})
	return req
}

// leafOf parses the first certificate of a chain.
func leafOf(t testing.TB, chain []string) *x509.Certificate {
	t.Helper()
	if len(chain) == 0 {
		t.Fatal("the chain is empty")
	}
	block, rest := pem.Decode([]byte(chain[0]))
	if block == nil || len(rest) > 0 {
		t.Fatalf("%q is not one certificate", chain[0])
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func (r *rig) last() ca.Record {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.records) == 0 {
		r.t.Fatal("nothing was recorded")
	}
	return r.records[len(r.records)-1]
}

// expectRefused checks that a request got a code and a reason, and that the audit has
// it.
func (r *rig) expectRefused(chain []string, err error, code codes.Code, want string) {
	r.t.Helper()
	if chain != nil || status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), want) {
		r.t.Errorf("%d certificates, %v; want %s and %q", len(chain), err, code, want)
		return
	}
	if last := r.last(); last.Code != code || !strings.Contains(last.Reason, want) || last.Serial != "" {
		r.t.Errorf("the audit has %+v, want %s and %q", last, code, want)
	}
}

// value returns the sum of a metric.
func (r *rig) value(name string) (sum float64) {
	r.t.Helper()
	families, err := r.collector.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}
