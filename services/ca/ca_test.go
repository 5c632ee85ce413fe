package ca_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"math"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/structpb"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"

	"meshlog.dev/deploy/testkit/kubetest"
	"meshlog.dev/services/ca"
	"meshlog.dev/services/ca/authn"
	"meshlog.dev/services/mesh/spiffe"
)

// kubernetesToken starts an API server, and returns its reviews and the token of a pod
// of account shop/cart.
func kubernetesToken(t *testing.T) (authn.TokenReviews, string) {
	t.Helper()
	s := kubetest.Start(t)
	core, err := coreclient.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	auth, err := authenticationclient.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	_, err = core.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = core.ServiceAccounts("shop").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "cart"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod, err := core.Pods("shop").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "cart-1"},
		Spec:       corev1.PodSpec{ServiceAccountName: "cart", Containers: []corev1.Container{{Name: "c", Image: "c"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	token, err := core.ServiceAccounts("shop").CreateToken(t.Context(), "cart", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: []string{"istio-ca"}, BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return auth.TokenReviews(), token.Status.Token
}

// T-6, CA-2, CA-5, CA-7: the calls of Istio's agent, with the token of a pod and then with the
// certificate that it got.
func TestIstioAgent(t *testing.T) {
	reviews, token := kubernetesToken(t)
	r := start(t, func(c *ca.Config) {
		c.Authenticators = append(c.Authenticators, authn.NewKubernetes(domain, reviews, nil))
	})
	own, err := url.Parse(cart.String())
	if err != nil {
		t.Fatal(err)
	}
	// Istio's agent asks for its own identity, and gets it from its token. Its key is RSA,
	// unless ECC_SIGNATURE_ALGORITHM says otherwise.
	req, key := request(t, &x509.CertificateRequest{Subject: pkix.Name{Organization: []string{""}}, URIs: []*url.URL{own}})
	req.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{"CertSigner": structpb.NewStringValue("")}}
	headers := append(bearer(token), "ClusterID", "Kubernetes")
	// An agent without a certificate answers the server's question with an empty one.
	chain, err := r.agent(tls.Certificate{}).ask(req, headers...)
	if err != nil {
		t.Fatal(err)
	}
	leaf := leafOf(t, chain)
	if id, err := spiffe.FromCertificate(leaf); err != nil || id != cart || len(chain) != 2 || !leafOf(t, chain[1:]).Equal(r.root.cert) {
		t.Fatalf("%v, %v, %d certificates", id, err, len(chain))
	}
	if left := time.Until(leaf.NotAfter); left > 24*time.Hour || left < 23*time.Hour {
		t.Errorf("it is valid for %s", left)
	}
	public := sha256.Sum256(leaf.RawSubjectPublicKeyInfo)
	got := r.last()
	if got.Code != codes.OK || got.Identity != cart || got.Authenticator != "kubernetes" || got.Facts["pod"] != "cart-1" || got.KeyHash != hex.EncodeToString(public[:]) ||
		got.Serial != leaf.SerialNumber.Text(16) || !got.Ends.Equal(leaf.NotAfter) {
		t.Errorf("the audit has %+v", got)
	}

	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{Organization: []string{""}}, URIs: []*url.URL{own}}, rsaKey)
	if err != nil {
		t.Fatal(err)
	}
	req.Csr = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	withRSA, err := r.agent(tls.Certificate{}).ask(req, headers...)
	if err != nil || !rsaKey.PublicKey.Equal(leafOf(t, withRSA).PublicKey) {
		t.Errorf("with an RSA key: %v", err)
	}

	renewed, err := r.agent(tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}).ask(newRequest(t))
	if err != nil {
		t.Fatal(err)
	}
	if id, err := spiffe.FromCertificate(leafOf(t, renewed)); err != nil || id != cart {
		t.Errorf("renewed for %v, %v", id, err)
	}
	if got := r.last(); got.Authenticator != "certificate" || got.Facts["serial"] != leaf.SerialNumber.Text(16) {
		t.Errorf("the audit has %+v", got)
	}
	if n := r.value("citadel_server_success_cert_issuance_count"); n != 3 || r.value("citadel_server_csr_count") != 3 || r.value("meshlog_ca_issue_seconds") != 3 {
		t.Errorf("%v certificates are counted", n)
	}
	if strings.Contains(r.log.String(), token) {
		t.Errorf("the token is in the log: %s", r.log)
	}
}

// CA-8: how long a certificate is valid that a client asks for.
func TestValidity(t *testing.T) {
	r := start(t, nil)
	for seconds, want := range map[int64]time.Duration{0: 24 * time.Hour, -1: 24 * time.Hour, 3600: time.Hour, 7 * 86400: 7 * 24 * time.Hour} {
		req := newRequest(t)
		req.ValidityDuration = seconds
		chain, err := r.agent().ask(req, bearer(r.token())...)
		if err != nil {
			t.Fatal(err)
		}
		if left := time.Until(leafOf(t, chain).NotAfter); left > want || left < want-time.Minute {
			t.Errorf("%d s: valid for %s, want %s", seconds, left, want)
		}
	}
	for _, seconds := range []int64{1, 7*86400 + 1, math.MaxInt64} {
		req := newRequest(t)
		req.ValidityDuration = seconds
		chain, err := r.agent().ask(req, bearer(r.token())...)
		r.expectRefused(chain, err, codes.InvalidArgument, "the least is 1m0s, and the most 168h0m0s")
	}
}

// CA-8: a CA that is about to end issues nothing, and costs no join token (CA-6).
func TestEndedAuthority(t *testing.T) {
	r := start(t, nil)
	good := r.root
	r.root = newRoot(t, time.Now().Add(30*time.Second))
	r.listen(nil)
	token := r.token()
	chain, err := r.agent().ask(newRequest(t), bearer(token)...)
	r.expectRefused(chain, err, codes.Unavailable, "the certificate of the CA has ended")
	r.root = good
	r.listen(nil)
	if _, err := r.agent().ask(newRequest(t), bearer(token)...); err != nil {
		t.Errorf("the token was spent: %v", err)
	}
}

// CA-9: a certificate that is not recorded is not handed out.
func TestAuditFails(t *testing.T) {
	r := start(t, nil)
	r.audit = errors.New("bus away")
	chain, err := r.agent().ask(newRequest(t), bearer(r.token())...)
	if chain != nil || err == nil || !strings.Contains(err.Error(), "cannot be recorded now") || strings.Contains(err.Error(), "bus away") {
		t.Errorf("%d certificates, %v", len(chain), err)
	}
	if n := r.value("meshlog_ca_audit_failures_total"); n != 2 { // the certificate, and its refusal
		t.Errorf("%v failures are counted", n)
	}
}

// CA-9: what the audit has of requests, as JSON.
func TestRecordJSON(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for want, record := range map[string]ca.Record{
		`{"time":"2026-01-02T03:04:05Z","address":"10.0.0.1:5","code":"OK","identity":"spiffe://cluster.local/ns/shop/sa/cart","authenticator":"join-token","facts":{"a":"b"},"keySHA256":"00","serial":"1f","ends":"2026-01-02T03:04:05Z"}`: {
			Time: at, Address: "10.0.0.1:5", Identity: cart, Authenticator: "join-token", Facts: map[string]string{"a": "b"}, KeyHash: "00", Serial: "1f", Ends: at,
		},
		`{"time":"2026-01-02T03:04:05Z","address":"10.0.0.1:5","code":"Unauthenticated","reason":"no"}`: {Time: at, Address: "10.0.0.1:5", Code: codes.Unauthenticated, Reason: "no"},
	} {
		if got, err := json.Marshal(record); err != nil || string(got) != want {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
}

// A panic ends only its request.
func TestPanic(t *testing.T) {
	r := start(t, func(c *ca.Config) { c.Authenticators = append(authn.Set{broken{}}, c.Authenticators...) })
	if _, err := r.agent().ask(newRequest(t), bearer("panic")...); err == nil || !strings.Contains(err.Error(), "internal error") {
		t.Errorf("the error is %v", err)
	}
	if _, err := r.agent().ask(newRequest(t), bearer(r.token())...); err != nil {
		t.Error(err)
	}
	if n := r.value("meshlog_ca_panics_total"); n != 1 {
		t.Errorf("%v panics are counted", n)
	}
}

type broken struct{}

func (broken) Name() string { return "broken" }

func (broken) Takes(c authn.Credentials) bool { return c.Token == "panic" }

func (broken) Authenticate(context.Context, authn.Credentials) (*authn.Proof, error) { panic("broken") }

// A CA that could issue nothing, or to anyone, does not start.
func TestConfig(t *testing.T) {
	for want, change := range map[string]func(*ca.Config){
		"no port":              func(c *ca.Config) { c.Listeners = nil },
		"tokens are never":     func(c *ca.Config) { c.TLS = nil },
		"no authority":         func(c *ca.Config) { c.Authority = nil },
		"no authenticator":     func(c *ca.Config) { c.Authenticators = nil },
		"not a trust domain":   func(c *ca.Config) { c.TrustDomain = "Cluster.Local" },
		"ca: there is no log":  func(c *ca.Config) { c.Logger = nil },
		"\"\" is not a trust ": func(c *ca.Config) { c.TrustDomain = "" },
	} {
		var cfg ca.Config
		start(t, func(c *ca.Config) { cfg = *c })
		change(&cfg)
		if _, err := ca.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}
