package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/testport"
)

// issuingCommand compares the ca with a process that only reads certificate requests and
// signs.
const issuingCommand = "issuing"

// maxIssuing is the most processor time of the ca that a certificate may take, as a
// multiple of what reading its request, checking the request's signature and signing take.
//
// Four runs on a busy machine measured 6.70, 6.81, 6.96 and 7.42. A profile of the ca says
// where its processor time goes: 35 % to the TLS handshake (almost half of that to the
// hybrid key exchange, the rest to the signatures of client and server), 15 % to the check
// of the client's certificate, 5 % to reading the request and checking its signature, 15 %
// to signing, 4 % to the audit, and the rest to gRPC, the kernel and memory. Smaller read
// buffers saved nothing that could be measured.
const maxIssuing = 8

// issuingResult holds the rounds of both.
type issuingResult struct{ ours, bare rounds }

func parseIssuing(args []string) (turnsPlan, error) { return parseTurns(issuingCommand, 16, args) }

func runIssuing(ctx context.Context, p turnsPlan) (_ *issuingResult, err error) {
	dir, err := os.MkdirTemp("", "meshlog-issuing-")
	if err != nil {
		return nil, err
	}
	m := &issuer{dir: dir}
	defer func() {
		for _, end := range m.ends {
			end()
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	if err := m.start(ctx); err != nil {
		return nil, err
	}
	bare, err := newBare(m.request)
	if err != nil {
		return nil, err
	}
	r := &issuingResult{}
	for range p.rounds {
		ours, err := stretchOf(ctx, p.stretch, p.clients, func() (time.Duration, error) { return cpuOf(m.ca.PID()) }, m.renew)
		if err != nil {
			return nil, fmt.Errorf("the ca: %w", err)
		}
		floor, err := stretchOf(ctx, p.stretch, p.clients, func() (time.Duration, error) { return ownCPU(), nil }, bare.issue)
		if err != nil {
			return nil, err
		}
		r.ours, r.bare = append(r.ours, ours), append(r.bare, floor)
	}
	return r, nil
}

// issuer is a mesh with a ca, and a workload that has joined.
type issuer struct {
	dir     string
	ca      *rig.Server
	port    int
	request string // for certificates, in PEM
	client  *tls.Config
	calls   atomic.Uint32
	ends    []func()
}

func (m *issuer) start(ctx context.Context) error {
	nats, err := rig.StartNATSFor(ctx, m.dir, "file/default", "ca/default")
	if err != nil {
		return err
	}
	m.ends = append(m.ends, nats.Kill)
	seal := filepath.Join(m.dir, "seal.key")
	if err := os.WriteFile(seal, []byte("0123456789abcdef0123456789abcdef"), 0o600); err != nil {
		return err
	}
	if m.port, err = testport.TCP(); err != nil {
		return err
	}
	run := func(name, role string, flags ...string) (*rig.Server, error) {
		s, err := rig.StartProgram(m.dir, name, name, append(append(flags, "--id", name), nats.Flags(role)...)...)
		if err != nil {
			return nil, err
		}
		m.ends = append(m.ends, s.Kill)
		return s, s.Ready(ctx)
	}
	if _, err := run("builder", "builder", "--data", filepath.Join(m.dir, "builder")); err != nil {
		return err
	}
	m.ca, err = run("ca", "watcher-ca-default", "--listen", address(m.port), "--ca-key-file", filepath.Join(m.dir, "ca.sealed"), "--seal-key-file", seal, "--join-tokens", "--certificate-renewal")
	if err != nil {
		return err
	}
	ask := func(words ...string) (string, error) {
		return rig.Meshlog(ctx, append(append([]string{"ca"}, words...), nats.Flags("operator")...)...)
	}
	root, err := ask("roots")
	if err != nil {
		return err
	}
	token, err := ask("token", "--namespace", "shop", "--account", "web")
	if err != nil {
		return err
	}
	return m.join(ctx, root, strings.TrimSpace(token))
}

// join gets the certificate of the workload.
func (m *issuer) join(ctx context.Context, root, token string) error {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(root)) {
		return errors.New("the ca has no root")
	}
	m.client = &tls.Config{RootCAs: roots, ServerName: "localhost", MinVersion: tls.VersionTLS13}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return err
	}
	m.request = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	chain, err := m.create(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token))
	if err != nil {
		return err
	}
	leaf, _ := pem.Decode([]byte(chain[0]))
	if leaf == nil {
		return errors.New("the ca gave no certificate")
	}
	m.client.Certificates = []tls.Certificate{{Certificate: [][]byte{leaf.Bytes}, PrivateKey: key}}
	return nil
}

// renew asks for a certificate as the workload, as an agent does.
func (m *issuer) renew(ctx context.Context) error {
	_, err := m.create(ctx)
	return err
}

// addresses are those that clients have in turns: the ca takes 50 requests a second of
// each.
const addresses = 200

// create asks for a certificate, on a connection of its own as agents do.
func (m *issuer) create(ctx context.Context) ([]string, error) {
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 1, 0, byte(1+m.calls.Add(1)%addresses))}}
	conn, err := grpc.NewClient("passthrough:///"+address(m.port), grpc.WithTransportCredentials(credentials.NewTLS(m.client)), grpc.WithNoProxy(),
		grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) { return from.DialContext(ctx, "tcp", to) }))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var answer certificates
	err = conn.Invoke(ctx, "/istio.v1.auth.IstioCertificateService/CreateCertificate", csr(m.request), &answer, grpc.ForceCodec(istioCodec{}))
	if err == nil && len(answer) < 2 {
		err = fmt.Errorf("the ca gave a chain of %d", len(answer))
	}
	return answer, err
}

// csr is an IstioCertificateRequest, and certificates are the chain of an
// IstioCertificateResponse.
type (
	csr          string
	certificates []string
)

// istioCodec encodes the two messages.
type istioCodec struct{}

func (istioCodec) Name() string { return "proto" }

func (istioCodec) Marshal(v any) ([]byte, error) {
	return protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), string(v.(csr))), nil
}

func (istioCodec) Unmarshal(b []byte, v any) error {
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		size := protowire.ConsumeFieldValue(field, kind, b[n:])
		if size < 0 {
			return protowire.ParseError(size)
		}
		if text, _ := protowire.ConsumeBytes(b[n:]); field == 1 && kind == protowire.BytesType {
			all := v.(*certificates)
			*all = append(*all, string(text))
		}
		b = b[n+size:]
	}
	return nil
}

// bare reads requests and signs, and does nothing else.
type bare struct {
	request string
	root    *x509.Certificate
	key     *ecdsa.PrivateKey
}

func newBare(request string) (*bare, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	root, err := x509.ParseCertificate(der)
	return &bare{request, root, key}, err
}

// issue signs a certificate with the content of one of the ca.
func (b *bare) issue(context.Context) error {
	block, _ := pem.Decode([]byte(b.request))
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return err
	}
	if err := r.CheckSignature(); err != nil {
		return err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128))
	if err != nil {
		return err
	}
	now := time.Now()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, NotBefore: now.Add(-2 * time.Minute), NotAfter: now.Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
		URIs: []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/shop/sa/web"}},
	}, b.root, r.PublicKey, b.key)
	if err != nil {
		return err
	}
	if len(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})) == 0 {
		return errors.New("no certificate")
	}
	return nil
}

func printIssuing(w io.Writer, p turnsPlan, r *issuingResult) {
	fmt.Fprintf(w, "\nIssuing: renewals, each on a new connection with mutual TLS and recorded in the audit; medians of %d stretches of %s each, in turns\n\n", p.rounds, p.stretch)
	const line = "  %-52s %14s %14s %8s %9s  %s\n"
	fmt.Fprintf(w, line, "", "ca", "bare", "ratio", "at most", "")
	ratio := quotient(r.ours.cpu(), r.bare.cpu())
	fmt.Fprintf(w, line, "processor time of a certificate", ms(r.ours.cpu()), ms(r.bare.cpu()), times(ratio), times(maxIssuing), verdict(ratio <= maxIssuing))
	fmt.Fprintf(w, line, "certificates a second, all on the same machine", fmt.Sprintf("%.0f", r.ours.perSecond()), fmt.Sprintf("%.0f", r.bare.perSecond()),
		times(r.ours.perSecond()/r.bare.perSecond()), "", "")
}
