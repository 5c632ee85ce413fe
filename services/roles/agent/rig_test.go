package agent_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/testport"
	"meshlog.dev/services/ca"
	"meshlog.dev/services/ca/authn"
	"meshlog.dev/services/ca/jointoken"
	"meshlog.dev/services/ca/signer"
	"meshlog.dev/services/internal/certificates"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/mesh/spiffe"
	"meshlog.dev/services/operate/operatetest"
	"meshlog.dev/services/roles/agent"
	"meshlog.dev/services/suite/envoytest"
)

const domain = "cluster.local"

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func port(t testing.TB) int {
	t.Helper()
	p, err := testport.TCP()
	must(t, err)
	return p
}

func loopback(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

func anyOf(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	must(t, err)
	return a
}

// mesh is a CA and a frontend that serves one listener.
type mesh struct {
	*testing.T

	dir     string
	rootPEM []byte
	tokens  *jointoken.Memory
	servers *certtest.CA
	caAddr  string
	caDown  atomic.Bool
	issued  atomic.Int64
	xdsAddr string
	port    int // of Envoy's listener
	pool    *x509.CertPool

	mu   sync.Mutex
	acks map[string]bool // ids of nodes that have ACKed ROOTCA
	ids  map[string]bool // identities of clients
}

func newMesh(t *testing.T) *mesh {
	m := &mesh{
		T: t, dir: t.TempDir(), tokens: new(jointoken.Memory), servers: certtest.NewCA("servers"), port: port(t),
		pool: x509.NewCertPool(), acks: map[string]bool{}, ids: map[string]bool{},
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "mesh"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	root, err := x509.ParseCertificate(der)
	must(t, err)
	m.rootPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	m.pool.AddCert(root)
	m.startCA(key, root)
	m.startFrontend()
	return m
}

func (m *mesh) startCA(key *ecdsa.PrivateKey, root *x509.Certificate) {
	authority, err := signer.New(key, []*x509.Certificate{root}, []*x509.Certificate{root}, time.Now())
	must(m, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(m, err)
	m.caAddr = l.Addr().String()
	cert, keyFile := m.servers.Server("ca", time.Now().Add(time.Hour)).Write(m, m.dir, "ca")
	certs, err := certificates.Load(certificates.Files{Cert: cert, Key: keyFile})
	must(m, err)
	current := func() *signer.Authority { return authority }
	s, err := ca.New(ca.Config{
		Listeners: []net.Listener{l}, TLS: certs.Config(), TrustDomain: domain, Authority: current, Metrics: ca.NewMetrics(),
		Authenticators: authn.Set{authn.NewJoin(domain, m.tokens), authn.NewCertificate(domain, current)},
		Logger:         slog.New(slog.DiscardHandler),
		Audit: func(_ context.Context, r ca.Record) error {
			if m.caDown.Load() {
				return fmt.Errorf("away")
			}
			if r.Serial != "" {
				m.issued.Add(1)
			}
			return nil
		},
	})
	must(m, err)
	m.background(s.Run)
}

// background runs a function until the test ends.
func (m *mesh) background(run func(context.Context) error) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	m.Cleanup(func() {
		stop()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			m.Log(err)
		}
	})
}

func (m *mesh) startFrontend() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(m, err)
	m.xdsAddr = l.Addr().String()
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{m.servers.Server("xds", time.Now().Add(time.Hour)).TLS()}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: m.pool,
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"},
	})))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, &frontend{mesh: m})
	go func() { _ = g.Serve(l) }()
	m.Cleanup(g.Stop)
}

// frontend serves incremental ADS.
type frontend struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	mesh *mesh
}

const (
	ldsType = "type.googleapis.com/envoy.config.listener.v3.Listener"
	sdsType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
)

func (f *frontend) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	node := ""
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		if r.GetNode() != nil {
			node = r.GetNode().GetId()
		}
		if r.GetErrorDetail() != nil {
			f.mesh.Errorf("%s refuses: %v", node, r.GetErrorDetail())
		}
		if r.GetResponseNonce() != "" {
			f.mesh.mu.Lock()
			f.mesh.acks[node] = f.mesh.acks[node] || r.GetTypeUrl() == sdsType
			f.mesh.mu.Unlock()
			continue
		}
		resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: r.GetTypeUrl(), Nonce: "1"}
		switch r.GetTypeUrl() {
		case ldsType:
			resp.Resources = []*discoveryv3.Resource{{Name: "l", Version: "1", Resource: anyOf(f.mesh, f.mesh.listener())}}
		case sdsType:
			resp.Resources = []*discoveryv3.Resource{{Name: "ROOTCA", Version: "1", Resource: anyOf(f.mesh, &tlsv3.Secret{
				Name: "ROOTCA", Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
					TrustedCa: &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: f.mesh.rootPEM}},
				}},
			})}}
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

func sdsReference(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
		ResourceApiVersion: corev3.ApiVersion_V3, InitialFetchTimeout: durationpb.New(5 * time.Second),
		ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
			ApiType: corev3.ApiConfigSource_GRPC, TransportApiVersion: corev3.ApiVersion_V3,
			GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: "sds-grpc"}}}},
		}},
	}}
}

// listener answers 200 over mutual TLS.
func (m *mesh) listener() *listenerv3.Listener {
	l := envoytest.Listener(m, "l", uint32(m.port), &hcmv3.HttpConnectionManager{
		StatPrefix: "in",
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{Name: "r", VirtualHosts: []*routev3.VirtualHost{{
			Name: "v", Domains: []string{"*"}, Routes: []*routev3.Route{{
				Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
				Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 200}},
			}},
		}}}},
		HttpFilters: []*hcmv3.HttpFilter{{Name: "envoy.filters.http.router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: anyOf(m, &routerv3.Router{})}}},
	})
	l.FilterChains[0].TransportSocket = &corev3.TransportSocket{
		Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: anyOf(m, &tlsv3.DownstreamTlsContext{
			RequireClientCertificate: wrapperspb.Bool(true),
			CommonTlsContext: &tlsv3.CommonTlsContext{
				TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{sdsReference("default")},
				ValidationContextType:          &tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig{ValidationContextSdsSecretConfig: sdsReference("ROOTCA")},
			},
		})},
	}
	return l
}

// token makes a join token for the workload, in a file.
func (m *mesh) token() string {
	m.Helper()
	token, err := jointoken.New(m.Context(), m.tokens, "shop", "cart", time.Now().Add(time.Hour))
	must(m, err)
	return certtest.WriteFile(m, m.dir, "token", []byte(token+"\n"))
}

// settings returns those of an agent.
func (m *mesh) settings() *agent.Settings {
	m.Helper()
	dir, err := os.MkdirTemp("", "agent") // a socket's name is short
	must(m, err)
	m.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := agent.DefaultSettings()
	s.Environment, s.IPs = []string{"POD_NAME=cart-1", "POD_NAMESPACE=shop"}, []string{"127.0.0.1"}
	s.Envoy, s.Dir, s.EnvoyAdmin, s.Concurrency = envoytest.Envoy(m), dir, loopback(port(m)), 1
	s.XDS, s.XDSServerName = []string{m.xdsAddr}, "localhost"
	s.XDSCA = certtest.WriteFile(m, m.dir, "servers.pem", m.servers.PEM())
	s.CA, s.CAServerName, s.CARoots, s.JoinTokenFile = m.caAddr, "localhost", s.XDSCA, m.token()
	s.Ready, s.TTL, s.Drain = loopback(port(m)), time.Minute, 2*time.Second
	s.EnvoyArgs = []string{"--log-level", "warning"}
	return s
}

// running is a running agent.
type running struct {
	*mesh
	settings *agent.Settings
	lines    operatetest.Events
	stop     func()
	ended    chan error
}

// agent runs an agent.
func (m *mesh) agent(s *agent.Settings) *running {
	m.Helper()
	must(m, s.Check())
	log, lines := operatetest.NewEvents()
	admin, err := process.NewAdmin("127.0.0.1:0")
	must(m, err)
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{m, s, lines, nil, make(chan error, 1)}
	go func() { r.ended <- s.Run(ctx, &process.Process{Build: "test", Log: log, Admin: admin}, io.Discard) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-r.ended; err != nil {
			m.Errorf("the agent ended: %v", err)
		}
	})
	m.Cleanup(r.stop)
	return r
}

// until waits for a condition.
func (m *mesh) until(what string, is func() error) {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), 60*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := is()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			m.Fatalf("%s: %v", what, err)
		}
	}
}

// ready asks for the readiness.
func (r *running) ready() error {
	resp, err := http.Get("http://" + r.settings.Ready + "/healthz/ready")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != 200 {
		return fmt.Errorf("%s: %s", resp.Status, b)
	}
	return nil
}

// client returns an HTTP client with a certificate of the mesh; seen gets the serial of
// Envoy's certificate for each handshake.
func (m *mesh) client(cert tls.Certificate, keepAlive bool, seen func(*x509.Certificate)) *http.Client {
	conf := &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert},
		InsecureSkipVerify: true, // VerifyConnection does it: the certificate has an identity, and no name
		VerifyConnection: func(s tls.ConnectionState) error {
			leaf := s.PeerCertificates[0]
			if _, err := leaf.Verify(x509.VerifyOptions{Roots: m.pool}); err != nil {
				return err
			}
			if id, err := spiffe.FromCertificate(leaf); err != nil || id.ServiceAccount != "cart" {
				return fmt.Errorf("identity %v, %w", id, err)
			}
			if seen != nil {
				seen(leaf)
			}
			return nil
		},
	}
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: conf, DisableKeepAlives: !keepAlive}}
}

// peer returns the certificate in a directory of --certificates-out.
func peer(t testing.TB, dir string) tls.Certificate {
	t.Helper()
	c, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	must(t, err)
	return c
}
