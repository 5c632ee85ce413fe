package ca_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	authv1 "istio.io/api/security/v1alpha1"

	auditv1 "meshlog.dev/proto/meshlog/audit/v1"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/ca/jointoken"
	"meshlog.dev/services/internal/audit"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/busauth"
	"meshlog.dev/services/internal/cakv"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/mesh/spiffe"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/operate/cli"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/operatetest"
	"meshlog.dev/services/roles/builder"
	"meshlog.dev/services/roles/ca"
	"meshlog.dev/services/roles/up"
	"meshlog.dev/store/natsfeed"
)

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// mesh is a bus with the accounts of bus-auth, and what the replicas of the CA share.
type mesh struct {
	*testing.T
	server   *bus.Server
	settings ca.Settings
}

func start(t *testing.T) *mesh {
	t.Helper()
	dir, quiet := t.TempDir(), slog.New(slog.DiscardHandler)
	server, err := bus.StartServer(bus.ServerOptions{
		Dir: filepath.Join(dir, "nats"), Accounts: busauth.Accounts("mesh", bus.Builder(), bus.Frontend(), bus.Operator(), bus.Watcher(ca.Shard)), Log: quiet,
	})
	must(t, err)
	t.Cleanup(func() { must(t, server.Close()) })
	s := ca.DefaultSettings()
	s.Listen, s.KeyFile, s.SealKeyFile = "127.0.0.1:0", filepath.Join(dir, "ca", "ca.key"), filepath.Join(dir, "seal")
	s.JoinTokens, s.CertificateRenewal, s.DNSNames = true, true, []string{"ca.example"}
	must(t, os.WriteFile(s.SealKeyFile, bytes.Repeat([]byte("s"), 32), 0o600), s.Check())
	return &mesh{t, server, s}
}

func (m *mesh) dial(r bus.Role) *bus.Conn {
	m.Helper()
	nc, err := m.connect(r)(m.Context())
	must(m.T, err)
	m.Cleanup(nc.Close)
	return nc
}

func (m *mesh) connect(r bus.Role) func(context.Context) (*bus.Conn, error) {
	return func(context.Context) (*bus.Conn, error) {
		return bus.Connect(bus.ConnectOptions{Server: m.server, Role: r, Name: r.String(), Log: slog.New(slog.DiscardHandler)})
	}
}

// run runs a role until the test or stop ends it.
func (m *mesh) run(run func(context.Context, *process.Process) error) (lines operatetest.Events, stop func()) {
	m.Helper()
	log, lines := operatetest.NewEvents()
	admin, err := process.NewAdmin("127.0.0.1:0")
	must(m.T, err)
	ctx, cancel := context.WithCancel(m.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, &process.Process{Build: "test", Log: log, Admin: admin}) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			m.Errorf("a role ended: %v", err)
		}
	})
	m.Cleanup(stop)
	return lines, stop
}

func (m *mesh) builder() {
	data := m.TempDir()
	m.run(func(ctx context.Context, p *process.Process) error {
		return builder.Run(ctx, builder.Options{
			Domain: "mesh", ID: "builder-1", Data: data, Replicas: 1, Settings: builder.DefaultSettings(), Connect: m.connect(bus.Builder()), Process: p,
		})
	})
}

// replica runs a CA and returns its address.
func (m *mesh) replica(id string) (addr string, stop func()) {
	m.Helper()
	s := m.settings
	lines, stop := m.run(func(ctx context.Context, p *process.Process) error {
		return s.Run(ctx, ca.Options{Domain: "mesh", ID: id, Connect: m.connect(bus.Watcher(ca.Shard)), Process: p})
	})
	return lines.Wait(m.T, "serving certificates", "port"), stop
}

// roots waits until the newest version has the roots of the mesh, and returns them.
func (m *mesh) roots() (*registryv1.TrustBundle, *x509.CertPool) {
	m.Helper()
	nc := m.dial(bus.Operator())
	for {
		must(m.T, m.Context().Err())
		chain, err := natsfeed.Open(m.Context(), nc, natsfeed.Options{Domain: "mesh"})
		if err != nil {
			continue // the builder has not made the streams yet
		}
		head, err := command.FetchHead(m.Context(), chain)
		if err != nil || head.Snapshot == nil {
			continue
		}
		for r := range head.Snapshot.Rows() {
			if !strings.HasPrefix(r.Key, "v/ca/default/TrustBundle/") {
				continue
			}
			v, err := world.UnmarshalValue(r.Value)
			b := new(registryv1.TrustBundle)
			must(m.T, err, proto.Unmarshal(v.Bytes, b))
			pool := x509.NewCertPool()
			for _, c := range b.GetRoots() {
				pool.AppendCertsFromPEM([]byte(c.GetCertificate()))
			}
			return b, pool
		}
	}
}

func (m *mesh) token() string {
	m.Helper()
	tokens, err := cakv.New(m.dial(bus.Operator()), "mesh")
	must(m.T, err)
	token, err := jointoken.New(m.Context(), tokens, "shop", "cart", time.Now().Add(10*time.Minute))
	must(m.T, err)
	return token
}

// ask requests a certificate as Istio's agents do, and returns it with its key.
func (m *mesh) ask(addr string, roots *x509.CertPool, token string, shown ...tls.Certificate) (tls.Certificate, error) {
	m.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		RootCAs: roots, ServerName: "ca.example", Certificates: shown,
	})))
	must(m.T, err)
	defer conn.Close()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(m.T, err)
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	must(m.T, err)
	ctx := m.Context()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	resp, err := authv1.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx, &authv1.IstioCertificateRequest{
		Csr: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr})), ValidityDuration: 3600,
	})
	if err != nil {
		return tls.Certificate{}, err
	}
	cert := tls.Certificate{PrivateKey: key}
	for _, c := range resp.GetCertChain() {
		block, _ := pem.Decode([]byte(c))
		cert.Certificate = append(cert.Certificate, block.Bytes)
	}
	cert.Leaf, err = x509.ParseCertificate(cert.Certificate[0])
	return cert, err
}

// CA-2, CA-6, CA-9, CA-11: over a bus with accounts, the CA publishes its root, which
// arrives in a version; a workload that trusts it joins with a token, which one of two
// replicas takes, and renews by its certificate; the audit has each certificate. After a
// restart the root is the same.
func TestAuthority(t *testing.T) {
	m := start(t)
	m.builder()
	one, stopOne := m.replica("ca-1")
	two, _ := m.replica("ca-2")
	bundle, pool := m.roots()
	if len(bundle.GetRoots()) != 1 || bundle.GetRoots()[0].GetState() != registryv1.RootState_ROOT_STATE_ACTIVE || bundle.GetTrustDomain() != "cluster.local" {
		t.Fatalf("the version has the roots %v", bundle)
	}

	var last tls.Certificate
	for range 5 {
		token := m.token()
		var all sync.WaitGroup
		certs, errs := make([]tls.Certificate, 2), make([]error, 2)
		for i, addr := range []string{one, two} {
			all.Go(func() { certs[i], errs[i] = m.ask(addr, pool, token) })
		}
		all.Wait()
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Fatalf("two replicas that get one token at once: %v, %v", errs[0], errs[1])
		}
		late := 0
		if errs[0] == nil {
			late = 1
		}
		if status.Code(errs[late]) != codes.Unauthenticated {
			t.Errorf("the replica that came late: %v", errs[late])
		}
		last = certs[1-late]
	}
	want := spiffe.ID{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "cart"}
	renewed, err := m.ask(two, pool, "", last)
	must(t, err)
	for _, c := range []tls.Certificate{last, renewed} {
		if id, err := spiffe.FromCertificate(c.Leaf); err != nil || id != want {
			t.Errorf("the certificate is for %s, %v", id, err)
		}
		if _, err := c.Leaf.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			t.Errorf("the published roots do not have it: %v", err)
		}
	}
	if _, err := m.ask(one, pool, ""); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a stranger: %v", err)
	}
	if _, err := m.ask(one, x509.NewCertPool(), m.token()); status.Code(err) != codes.Unavailable {
		t.Errorf("a client that does not know the root: %v", err)
	}

	reader, err := audit.NewReader(m.dial(bus.Operator()), "mesh")
	must(t, err)
	entries, _, err := reader.Newest(t.Context(), -1)
	must(t, err)
	issued := map[string]*auditv1.Record{}
	for _, e := range entries {
		must(t, e.Err)
		if e.Writer != "ca/default" {
			t.Errorf("a record of %s", e.Writer)
		}
		if e.Record.GetAction() == auditv1.Action_ACTION_CERTIFICATE_ISSUED {
			issued[e.Record.GetSerial()] = e.Record
		}
	}
	for by, c := range map[string]tls.Certificate{"join-token": last, "certificate": renewed} {
		r := issued[c.Leaf.SerialNumber.Text(16)]
		if r.GetIdentity() != want.String() || r.GetAuthenticator() != by || !r.GetNotAfter().AsTime().Equal(c.Leaf.NotAfter) || len(r.GetDigest()) != 32 {
			t.Errorf("the audit has %v for a certificate by %s", r, by)
		}
	}

	stopOne()
	again, _ := m.replica("ca-1")
	if _, err := m.ask(again, pool, "", renewed); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	if after, _ := m.roots(); !proto.Equal(after, bundle) {
		t.Errorf("after a restart the roots are %v, before %v", after, bundle)
	}
}

// CA-9: without a record in the audit no certificate is handed out, and the token is spent.
func TestNoCertificateWithoutRecord(t *testing.T) {
	m := start(t)
	must(t, cakv.EnsureStream(t.Context(), m.dial(bus.Builder()), 1)) // and no stream for the audit
	addr, _ := m.replica("ca-1")
	token, pool := m.token(), m.ownRoot(addr)
	_, err := m.ask(addr, pool, token)
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "cannot be recorded now") {
		t.Errorf("without the audit: %v", err)
	}
	must(t, audit.EnsureStream(t.Context(), m.dial(bus.Builder()), audit.StreamOptions{}))
	if _, err := m.ask(addr, pool, token); status.Code(err) != codes.Unauthenticated {
		t.Errorf("the token again: %v", err)
	}
	if _, err := m.ask(addr, pool, m.token()); err != nil {
		t.Errorf("with the audit: %v", err)
	}
}

// ownRoot returns the root that the CA itself shows: the last of its chain.
func (m *mesh) ownRoot(addr string) *x509.CertPool {
	m.Helper()
	conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	must(m.T, err)
	defer conn.Close()
	chain := conn.ConnectionState().PeerCertificates
	pool := x509.NewCertPool()
	pool.AddCert(chain[len(chain)-1])
	return pool
}

// CA-3, CA-10: a plugged CA with two roots publishes both; the one that signs is active.
func TestPluggedRoots(t *testing.T) {
	m := start(t)
	m.builder()
	own, next := newRoot(t, "own"), newRoot(t, "next")
	dir := t.TempDir()
	key, err := x509.MarshalPKCS8PrivateKey(own.key)
	must(t, err)
	for name, content := range map[string][]byte{
		"ca-key.pem":    pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		"ca-cert.pem":   own.pem(),
		"root-cert.pem": append(next.pem(), own.pem()...),
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	s := &m.settings
	s.Signer, s.Dir, s.KeyFile, s.SealKeyFile, s.InsecureKeyFile, s.TrustDomain = "plugged", dir, "", "", true, "example.org"
	must(t, s.Check(), s.Verify())
	addr, _ := m.replica("ca-1")
	bundle, pool := m.roots()
	got := map[string]string{}
	for _, r := range bundle.GetRoots() {
		block, _ := pem.Decode([]byte(r.GetCertificate()))
		c, err := x509.ParseCertificate(block.Bytes)
		must(t, err)
		got[c.Subject.CommonName] = r.GetState().String()
	}
	if fmt.Sprint(got) != "map[next:ROOT_STATE_ANNOUNCED own:ROOT_STATE_ACTIVE]" || bundle.GetTrustDomain() != "example.org" {
		t.Errorf("the version has the roots %v of %s", got, bundle.GetTrustDomain())
	}
	c, err := m.ask(addr, pool, m.token())
	must(t, err)
	if id, err := spiffe.FromCertificate(c.Leaf); err != nil || id.TrustDomain != "example.org" || c.Leaf.Issuer.CommonName != "own" {
		t.Errorf("the certificate is for %s by %s, %v", id, c.Leaf.Issuer, err)
	}
}

// CA-3, CA-9: with --signer none the process has no port and no key: it publishes the roots
// in a file, and a root that is added there. It has nothing to rotate.
func TestRootsFromElsewhere(t *testing.T) {
	m := start(t)
	m.builder()
	one, two := newRoot(t, "one"), newRoot(t, "two")
	s := ca.DefaultSettings()
	s.Signer, s.TrustBundle, s.TrustDomain = "none", filepath.Join(t.TempDir(), "bundle.pem"), "example.org"
	must(t, os.WriteFile(s.TrustBundle, one.pem(), 0o600), s.Check())
	lines, _ := m.run(func(ctx context.Context, p *process.Process) error {
		return s.Run(ctx, ca.Options{Domain: "mesh", ID: "roots-1", Connect: m.connect(bus.Watcher(ca.Shard)), Process: p})
	})
	lines.Wait(t, "publishing the roots of an authority elsewhere", "roots")
	if bundle, _ := m.roots(); len(bundle.GetRoots()) != 1 || bundle.GetRoots()[0].GetState() != registryv1.RootState_ROOT_STATE_ACTIVE || bundle.GetTrustDomain() != "example.org" {
		t.Errorf("the version has the roots %v", bundle)
	}
	must(t, os.WriteFile(s.TrustBundle, append(one.pem(), two.pem()...), 0o600))
	for bundle := new(registryv1.TrustBundle); len(bundle.GetRoots()) != 2; bundle, _ = m.roots() {
		must(t, t.Context().Err())
	}
	fleet := bus.NewFleet(m.dial(bus.Operator()), "mesh", slog.New(slog.DiscardHandler))
	for _, do := range []reportv1.AuthorityAction{reportv1.AuthorityAction_AUTHORITY_ACTION_STATUS, reportv1.AuthorityAction_AUTHORITY_ACTION_ROTATE, reportv1.AuthorityAction_AUTHORITY_ACTION_FORCE} {
		replies, err := fleet.Authority(t.Context(), do)
		must(t, err)
		if len(replies) != 1 || replies[0].GetSigner() != "none" || len(replies[0].GetRoots()) != 2 || replies[0].GetRoots()[0].GetState() != "active" {
			t.Errorf("%s: %v", do, replies)
		} else if refused := replies[0].GetRefused(); (refused == "") != (do == reportv1.AuthorityAction_AUTHORITY_ACTION_STATUS) || refused != "" && !strings.Contains(refused, "runs elsewhere") {
			t.Errorf("%s: refused: %q", do, refused)
		}
	}
}

// CA-3, CA-6: `meshlog up --ca` has the authority inside, and `meshlog ca token` makes its
// join tokens; no version is served before it has the roots.
func TestUp(t *testing.T) {
	m := &mesh{T: t}
	s, dir := up.DefaultSettings(), t.TempDir()
	s.Config, s.Data, s.Frontend.Listen, s.CA = t.TempDir(), filepath.Join(dir, "data"), "127.0.0.1:0", true
	s.Authority.Listen, s.Authority.DNSNames = "127.0.0.1:0", []string{"ca.example"}
	if err := s.Check(); err == nil || !strings.Contains(err.Error(), "--insecure-ca-key-file") {
		t.Errorf("a key in clear: %v", err)
	}
	s.Frontend.SealKeyFile = filepath.Join(dir, "seal")
	must(t, os.WriteFile(s.Frontend.SealKeyFile, bytes.Repeat([]byte("s"), 32), 0o600), s.Check())
	serve := func() (addr string, lines operatetest.Events, stop func()) {
		lines, stop = m.run(func(ctx context.Context, p *process.Process) error { return up.Run(ctx, p, s) })
		return lines.Wait(t, "serving certificates", "port"), lines, stop
	}
	addr, lines, stop := serve()
	lines.Wait(t, "serving", "version")
	meshlog := func(args ...string) string {
		t.Helper()
		var out bytes.Buffer
		cmd := cli.New()
		cmd.SetOut(&out)
		cmd.SetArgs(append(args, "--data", s.Data))
		must(t, cmd.ExecuteContext(t.Context()))
		return out.String()
	}
	pool := m.ownRoot(addr)
	c, err := m.ask(addr, pool, strings.TrimSpace(meshlog("ca", "token", "--namespace", "shop", "--account", "cart", "--ttl", "1m")))
	must(t, err)
	if id, err := spiffe.FromCertificate(c.Leaf); err != nil || id.String() != "spiffe://cluster.local/ns/shop/sa/cart" {
		t.Errorf("the certificate is for %s, %v", id, err)
	}
	if said := meshlog("audit"); !strings.Contains(said, c.Leaf.SerialNumber.Text(16)) && !strings.Contains(said, "spiffe://cluster.local/ns/shop/sa/cart") {
		t.Errorf("the audit is %s", said)
	}
	for !strings.Contains(meshlog("log", "--kind", "TrustBundle"), "TrustBundle cluster.local (ca/default)") {
		must(t, t.Context().Err())
	}
	stop()
	addr, _, _ = serve()
	if _, err := m.ask(addr, pool, "", c); err != nil {
		t.Errorf("after a restart: %v", err)
	}
}
