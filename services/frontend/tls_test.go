package frontend_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/frontend"
	"meshlog.dev/services/internal/certificates"
	. "meshlog.dev/services/mesh/meshtest"
)

// tlsPorts is a frontend that listens both with and without TLS.
type tlsPorts struct {
	*rig
	mesh         *mesh
	ca, clientCA *certtest.CA
	plain, tls   net.Addr
}

// startTLS starts a frontend that requires client certificates if mutual is set.
func startTLS(t *testing.T, mutual bool, options ...option) *tlsPorts {
	t.Helper()
	p := &tlsPorts{ca: certtest.NewCA("servers"), clientCA: certtest.NewCA("clients")}
	dir := t.TempDir()
	var files certificates.Files
	files.Cert, files.Key = p.ca.Server("first", time.Now().Add(time.Hour)).Write(t, dir, "xds")
	if mutual {
		files.ClientCA = certtest.WriteFile(t, dir, "ca.pem", p.clientCA.PEM())
	}
	certs, err := certificates.Load(files)
	if err != nil {
		t.Fatal(err)
	}
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	plain, secure := listen(), listen()
	p.plain, p.tls = plain.Addr(), secure.Addr()
	m := newMesh(t)
	m.Publish(Put("one", Cluster("one", 1)))
	p.mesh = m
	p.rig = start(t, "f1", m, append(options, func(c *frontend.Config) {
		c.Listeners, c.TLSListeners, c.TLS = []net.Listener{plain}, []net.Listener{secure}, certs.Config()
	})...)
	return p
}

// ask opens a stream and requests clusters. It returns the response or the error.
func ask(t *testing.T, to net.Addr, creds credentials.TransportCredentials, n *corev3.Node) error {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+to.String(), grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return err
	}
	// If the stream has ended, Recv returns the reason.
	if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: n, TypeUrl: ident.CDS.URL()}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	_, err = stream.Recv()
	return err
}

func (p *tlsPorts) client(t *testing.T, pairs ...certtest.Pair) credentials.TransportCredentials {
	conf := &tls.Config{RootCAs: p.ca.Pool(), ServerName: "localhost"}
	for _, pair := range pairs {
		conf.Certificates = append(conf.Certificates, pair.TLS())
	}
	return credentials.NewTLS(conf)
}

func TestTLS(t *testing.T) {
	p := startTLS(t, false)
	n := node("e1", "demo")
	for name, c := range map[string]struct {
		to    net.Addr
		creds credentials.TransportCredentials
		ok    bool
	}{
		"TLS":                 {p.tls, p.client(t), true},
		"plain":               {p.plain, insecure.NewCredentials(), true},
		"plain to TLS":        {p.tls, insecure.NewCredentials(), false},
		"TLS to plain":        {p.plain, p.client(t), false},
		"trusting another CA": {p.tls, credentials.NewTLS(&tls.Config{RootCAs: p.clientCA.Pool(), ServerName: "localhost"}), false},
		"TLS 1.1":             {p.tls, credentials.NewTLS(&tls.Config{RootCAs: p.ca.Pool(), ServerName: "localhost", MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}), false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := ask(t, c.to, c.creds, n); (err == nil) != c.ok {
				t.Errorf("answer: %v, want one: %v", err, c.ok)
			}
		})
	}
}

func TestMutualTLS(t *testing.T) {
	p := startTLS(t, true)
	istio := func(ns, sa string) *corev3.Node {
		n := node("sidecar~10.0.0.1~app."+ns+"~"+ns+".svc.cluster.local", "demo")
		if sa != "" {
			n.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{"SERVICE_ACCOUNT": structpb.NewStringValue(sa)}}
		}
		return n
	}
	const shop = "spiffe://cluster.local/ns/shop/sa/cart"
	for name, c := range map[string]struct {
		pairs []certtest.Pair
		node  *corev3.Node
		code  codes.Code
		want  string
	}{
		"no certificate":         {nil, node("e1", "demo"), codes.Unavailable, ""},
		"from another CA":        {[]certtest.Pair{p.ca.Client("e1")}, node("e1", "demo"), codes.Unavailable, ""},
		"no identity in it":      {[]certtest.Pair{p.clientCA.Client("e1")}, node("e1", "demo"), codes.OK, ""},
		"another form":           {[]certtest.Pair{p.clientCA.Client("e1", "spiffe://example.org/edge")}, node("e1", "demo"), codes.OK, ""},
		"its namespace":          {[]certtest.Pair{p.clientCA.Client("e1", shop)}, istio("shop", ""), codes.OK, ""},
		"its account":            {[]certtest.Pair{p.clientCA.Client("e1", shop)}, istio("shop", "cart"), codes.OK, ""},
		"another namespace":      {[]certtest.Pair{p.clientCA.Client("e1", shop)}, istio("bank", ""), codes.PermissionDenied, "the node is in namespace bank, the client's certificate is for shop (" + shop + ")"},
		"another account":        {[]certtest.Pair{p.clientCA.Client("e1", shop)}, istio("shop", "admin"), codes.PermissionDenied, "the node has service account admin"},
		"a plain node":           {[]certtest.Pair{p.clientCA.Client("e1", shop)}, node("e1", "demo"), codes.PermissionDenied, "the node is in namespace default"},
		"an account in capitals": {[]certtest.Pair{p.clientCA.Client("e1", "spiffe://cluster.local/ns/shop/sa/Cart")}, istio("shop", ""), codes.PermissionDenied, "which is no identity"}, // CA-1
		"a segment too many":     {[]certtest.Pair{p.clientCA.Client("e1", shop+"/x")}, istio("shop", ""), codes.PermissionDenied, "which is no identity"},                                // CA-1
		"two identities, twice":  {[]certtest.Pair{p.clientCA.Client("e1", shop, "spiffe://cluster.local/ns/bank/sa/cart")}, istio("bank", ""), codes.PermissionDenied, "and other URIs"},
	} {
		t.Run(name, func(t *testing.T) {
			err := ask(t, p.tls, p.client(t, c.pairs...), c.node)
			if status.Code(err) != c.code || !strings.Contains(status.Convert(err).Message(), c.want) {
				t.Errorf("answer: %v, want %v %q", err, c.code, c.want)
			}
		})
	}
	// The port without TLS asks for no certificate.
	if err := ask(t, p.plain, insecure.NewCredentials(), istio("bank", "")); err != nil {
		t.Error(err)
	}
}

// When a certificate is replaced, open streams continue, and the next connection
// gets the new certificate.
func TestCertificateIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, dir := certtest.NewCA("servers"), t.TempDir()
		cert, key := ca.Server("first", time.Now().Add(time.Hour)).Write(t, dir, "xds")
		certs, err := certificates.Load(certificates.Files{Cert: cert, Key: key})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- certs.Run(ctx, slog.New(slog.DiscardHandler)) }()
		defer func() {
			stop()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}()
		m := newMesh(t)
		m.Publish(Put("one", Cluster("one", 1)))
		secure := newPipes()
		f := start(t, "f1", m, func(c *frontend.Config) {
			c.TLSListeners, c.TLS = []net.Listener{secure}, certs.Config()
		})
		defer f.end()
		join := func(id, served string) (e *envoy, leave func()) {
			conf := &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost", VerifyConnection: func(s tls.ConnectionState) error {
				if got := s.PeerCertificates[0].Subject.CommonName; got != served {
					t.Errorf("%s is shown the certificate %q, want %q", id, got, served)
				}
				return nil
			}}
			conn, err := grpc.NewClient("passthrough:///pipe", grpc.WithTransportCredentials(credentials.NewTLS(conf)),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return secure.dial(ctx, nil) }))
			if err != nil {
				t.Fatal(err)
			}
			return connect(t, conn, node(id, "demo")), func() { conn.Close() }
		}
		before, leave := join("before", "first")
		defer leave()
		before.ask(ident.CDS)
		before.ack(before.expect(ident.CDS, "one"))

		ca.Server("second", time.Now().Add(time.Hour)).Write(t, dir, "xds")
		<-time.After(time.Minute)

		after, leave := join("after", "second")
		defer leave()
		after.ask(ident.CDS)
		after.ack(after.expect(ident.CDS, "one"))
		m.Publish(Put("two", Cluster("two", 1)))
		before.expect(ident.CDS, "one", "two")
		after.expect(ident.CDS, "one", "two")
	})
}

// CA-10, CA-14: with MeshClients the port takes certificates under every root that the
// served version has, announced ones too, and under no other; not those on its lists. It
// follows the version, and resumes no session. A connection ends with its certificate.
func TestMeshClients(t *testing.T) {
	older, newer, stranger := certtest.NewCA("older"), certtest.NewCA("newer"), certtest.NewCA("stranger")
	p := startTLS(t, true, func(c *frontend.Config) { c.MeshClients = true })
	const shop = "spiffe://cluster.local/ns/shop/sa/cart"
	n := node("sidecar~10.0.0.1~app.shop~shop.svc.cluster.local", "demo")
	can := func(what string, want bool, pairs ...certtest.Pair) {
		t.Helper()
		if err := ask(t, p.tls, p.client(t, pairs...), n); (err == nil) != want {
			t.Errorf("%s: %v, want an answer: %v", what, err, want)
		}
	}
	publish := func(crl []byte, roots ...*certtest.CA) {
		t.Helper()
		b := &registryv1.TrustBundle{TrustDomain: "cluster.local", Crl: string(crl)}
		for i, r := range roots {
			b.Roots = append(b.Roots, &registryv1.Root{Certificate: string(r.PEM()), State: registryv1.RootState(i + 1)})
		}
		v := p.mesh.Publish(Object("TrustBundle", "", "cluster.local", b))
		p.serves(v)
	}
	client := func(ca *certtest.CA) certtest.Pair { return ca.Client("cart", shop) }
	can("before there are roots", false, client(older))
	can("a client CA of the files", true, client(p.clientCA))
	publish(nil, older)
	can("the root", true, client(older))
	can("without a certificate", false)
	can("a root of tomorrow", false, client(newer))
	publish(nil, older, newer)
	can("an announced root", true, client(newer))
	can("the root before", true, client(older))
	can("a stranger", false, client(stranger))
	stolen := client(newer)
	publish(newer.RevocationList(time.Now().Add(time.Hour), stolen), newer)
	can("a removed root", false, client(older))
	can("a revoked certificate", false, stolen)
	can("one that is not revoked", true, client(newer))
	publish(newer.RevocationList(time.Now().Add(-time.Hour)), newer)
	can("a list that has ended", false, client(newer))
	publish(nil, newer)

	ends := time.Now().Add(2 * time.Second)
	conf := &tls.Config{RootCAs: p.ca.Pool(), ServerName: "localhost", NextProtos: []string{"h2"}, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
	conf.Certificates = []tls.Certificate{newer.ClientUntil("cart", ends, shop).TLS()}
	for range 2 {
		conn, err := tls.Dial("tcp", p.tls.String(), conf)
		if err != nil {
			t.Fatal(err)
		}
		if conn.ConnectionState().DidResume {
			t.Error("the session was resumed")
		}
		if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, io.EOF) { // until the frontend ends it
			t.Log(err)
		}
		if after := time.Since(ends.Truncate(time.Second)); after < 0 || after > 7*time.Second { // a silent one would end after 10 s
			t.Errorf("the connection ended %s after its certificate", after)
		}
		ends = time.Now().Add(2 * time.Second)
		conf.Certificates = []tls.Certificate{newer.ClientUntil("cart", ends, shop).TLS()}
	}
}

// CA-8: reports have the time of a client's certificate and when its connection began, and
// metrics count the certificates that should have been renewed before, and their first end.
func TestCertificatesOfClients(t *testing.T) {
	p := startTLS(t, true)
	const shop = "spiffe://cluster.local/ns/shop/sa/cart"
	now := time.Now()
	lasting := func(before, after time.Duration) certtest.Pair {
		return p.clientCA.ForgedPeer("cart", func(c *x509.Certificate) { c.NotBefore, c.NotAfter = now.Add(-before), now.Add(after) }, shop)
	}
	streams := func(creds credentials.TransportCredentials, to net.Addr, id string) {
		t.Helper()
		conn, err := grpc.NewClient("passthrough:///"+to.String(), grpc.WithTransportCredentials(creds))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n := node("sidecar~10.0.0.1~"+id+".shop~shop.svc.cluster.local", "demo")
		if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: n, TypeUrl: ident.CDS.URL()}); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	streams(insecure.NewCredentials(), p.plain, "plain")
	for id, pair := range map[string]certtest.Pair{
		"new": lasting(time.Hour, 3*time.Hour), "due": lasting(7*time.Hour, 3*time.Hour), "late": lasting(6*time.Hour, time.Hour),
	} {
		streams(p.client(t, pair), p.tls, id)
	}
	want := map[string]float64{"none": 1, "new": 1, "due": 1, "old": 0, "overdue": 1}
	for state, n := range want {
		if got := p.counted("meshlog_frontend_client_certificates", state); got != n {
			t.Errorf("%v certificates are %s, want %v", got, state, n)
		}
	}
	ends := now.Add(time.Hour).Unix()
	if got := p.counted("meshlog_frontend_client_certificate_expiry_timestamp_seconds"); got != float64(ends) {
		t.Errorf("the first certificate ends at %v, want %v", got, ends)
	}
	for _, r := range p.server.Report().GetProxies() {
		begins, shown := r.GetCertificateBegins().AsTime(), r.GetCertificateShown().AsTime()
		switch {
		case strings.Contains(r.GetId(), "plain"):
			if r.GetCertificateBegins() != nil || r.GetCertificateShown() != nil {
				t.Errorf("without a certificate: %v", r)
			}
		case strings.Contains(r.GetId(), "late"):
			if begins.Unix() != now.Add(-6*time.Hour).Unix() || r.GetCertificateEnds().AsTime().Unix() != ends || shown.Before(now) || shown.After(time.Now()) {
				t.Errorf("the certificate begins at %s and is shown at %s: %v", begins, shown, r)
			}
		}
	}
}
