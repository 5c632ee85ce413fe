package securemesh_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/services/agent/certificates"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/internal/seal"
	"meshlog.dev/services/operate/operatetest"
	"meshlog.dev/services/roles/agent"
	"meshlog.dev/services/roles/frontend"
	"meshlog.dev/services/roles/up"
)

// server is a frontend of its own, whose certificate the CA of the mesh issues.
type server struct {
	*mesh
	settings frontend.Settings
	data     string
	lines    operatetest.Events
	stop     func()
	addr     string
}

// server prepares a frontend with a join token for the name localhost.
func (m *mesh) server() *server {
	m.Helper()
	s := frontend.DefaultSettings()
	s.Listen, s.TLSListen, s.MeshClients = "", at("127.0.0.1", port(m)), true
	s.SealKeyFile = certtest.WriteFile(m, m.dir, "seal", bytes.Repeat([]byte("s"), 32))
	must(m.T, os.Chmod(s.SealKeyFile, 0o600))
	s.Serving = frontend.Serving{
		CA: m.ca, ServerName: "localhost", Roots: m.roots, TTL: time.Minute,
		JoinTokenFile: certtest.WriteFile(m, m.dir, "frontend.token", []byte(m.meshlog("ca", "token", "--serving", "localhost"))),
	}
	must(m.T, s.Check(), s.Verify())
	return &server{mesh: m, settings: s, data: filepath.Join(m.dir, "frontend"), addr: s.TLSListen}
}

// run starts the frontend.
func (s *server) run() {
	s.Helper()
	s.lines, s.stop = s.mesh.run(func(ctx context.Context, p *process.Process) error {
		settings := s.settings
		if err := settings.Certify(ctx, p, s.data); err != nil {
			return err
		}
		ports, err := settings.Open()
		if err != nil {
			return err
		}
		defer ports.Close()
		return frontend.Run(ctx, frontend.Options{
			Domain: process.DefaultDomain, ID: "frontend-2", Data: s.data, Ports: ports, Limits: settings.Limits, Process: p,
			Connect: func(context.Context) (*bus.Conn, error) {
				return bus.Connect(bus.ConnectOptions{URL: filepath.Join(s.mesh.data, bus.FileName), Role: bus.Frontend(), Name: "frontend-2", Log: slog.New(slog.DiscardHandler)})
			},
		})
	})
}

// certificate returns the certificate that new clients get, if the roots of the mesh have it.
func (s *server) certificate() (*x509.Certificate, error) {
	pool := x509.NewCertPool()
	root, err := os.ReadFile(s.roots)
	if err != nil || !pool.AppendCertsFromPEM(root) {
		return nil, errors.Join(errors.New("no roots"), err)
	}
	conn, err := tls.Dial("tcp", s.addr, &tls.Config{RootCAs: pool, ServerName: "localhost", NextProtos: []string{"h2"}})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0], nil
}

// CA-11: in `meshlog up --ca --xds-names` the CA issues the certificate of the xDS port. An
// agent and its Envoy trust it by the roots of the mesh. When a new root signs, new
// connections get another certificate, and the Envoy is connected.
func TestServingInUp(t *testing.T) {
	t.Parallel()
	m := start(t, "", func(_ *mesh, s *up.Settings) {
		s.Frontend.TLS.Cert, s.Frontend.TLS.Key = "", ""
		s.Frontend.Serving.Names = []string{"localhost"}
	})
	w := m.workload("shop", "127.0.0.1", m.xds, func(s *agent.Settings) { s.XDSCA = "" })
	m.until("the Envoy to be ready", 30*time.Second, w.ready)
	f := &server{mesh: m, addr: m.xds}
	first, err := f.certificate()
	must(t, err)
	if len(first.DNSNames) != 1 || first.DNSNames[0] != "localhost" || len(first.URIs) > 0 {
		t.Errorf("the certificate has the names %v, %v", first.DNSNames, first.URIs)
	}
	m.meshlog("ca", "rotate")
	m.until("a certificate under the new root", time.Minute, func() error {
		roots, err := m.try("ca", "roots")
		if err != nil {
			return err
		}
		m.roots = certtest.WriteFile(t, m.dir, "roots.pem", []byte(roots))
		next, err := f.certificate()
		if err == nil && bytes.Equal(next.AuthorityKeyId, first.AuthorityKeyId) {
			err = errors.New("it is under the first root")
		}
		return err
	})
	m.until("the Envoy to be connected", time.Minute, func() error { return hasStat(w.settings.EnvoyAdmin, "control_plane.connected_state: 1") })
}

// CA-11: a frontend gets the certificate of its port from the CA of the mesh, with a join
// token that an operator made for its name: an agent and its Envoy trust it by the roots of
// the mesh. It is renewed without a restart, while the Envoy stays connected, and is there
// after a restart without a token. Its key is on no disk in clear, and it is no client's.
func TestServing(t *testing.T) {
	m := start(t, "", nil)
	f := m.server()
	f.run()
	f.lines.Wait(t, "serving", "version")
	w := m.workload("shop", "127.0.0.1", f.addr, func(s *agent.Settings) { s.XDSCA = "" })
	m.until("the Envoy to be ready", 30*time.Second, w.ready)

	first, err := f.certificate()
	must(t, err)
	if len(first.DNSNames) != 1 || first.DNSNames[0] != "localhost" || len(first.URIs) > 0 || first.NotAfter.After(time.Now().Add(time.Minute)) {
		t.Errorf("the certificate has the names %v, %v, and ends at %s", first.DNSNames, first.URIs, first.NotAfter)
	}
	var second *x509.Certificate
	m.until("a renewed certificate in use", 50*time.Second, func() error {
		if second, err = f.certificate(); err == nil && second.SerialNumber.Cmp(first.SerialNumber) == 0 {
			err = errors.New("it is the first one")
		}
		return err
	})
	t.Logf("renewed after %s of a minute", time.Until(first.NotAfter.Add(-time.Minute)).Abs().Round(time.Second))
	for _, stat := range []string{"control_plane.connected_state: 1", "cluster.meshlog.upstream_cx_total: 1"} {
		if err := hasStat(w.settings.EnvoyAdmin, stat); err != nil {
			t.Error(err)
		}
	}

	f.notAClient()
	must(t, os.Remove(f.settings.Serving.JoinTokenFile))
	f.stop()
	f.noKeyInClear()
	f.run()
	f.lines.Wait(t, "serving", "version")
	if third, err := f.certificate(); err != nil || third.NotBefore.Before(second.NotBefore) {
		t.Errorf("after a restart: %v, %v", third, err)
	}
}

// saved returns the certificate and key that the frontend keeps.
func (s *server) saved() *certificates.Identity {
	s.Helper()
	key, err := seal.ReadKey(s.settings.SealKeyFile)
	must(s.T, err)
	id, err := certificates.SealedFile{Path: filepath.Join(s.data, "serving.sealed"), Key: key}.Load(time.Now())
	must(s.T, err)
	if id == nil {
		s.Fatal("no certificate is saved")
	}
	return id
}

// notAClient checks that the certificate of the frontend, with its key, opens no stream to
// the other frontend, which takes certificates of the mesh.
func (s *server) notAClient() {
	s.Helper()
	pool := x509.NewCertPool()
	b, err := os.ReadFile(s.servers)
	must(s.T, err)
	pool.AppendCertsFromPEM(b)
	conf := &tls.Config{RootCAs: pool, ServerName: "localhost", NextProtos: []string{"h2"}, Certificates: []tls.Certificate{s.saved().Certificate}}
	conn, err := tls.Dial("tcp", s.xds, conf)
	if err == nil {
		defer conn.Close()
		_, err = conn.Read(make([]byte, 1)) // in TLS 1.3 the server refuses after the client is done
	}
	if want := "remote error: tls: "; err == nil || !bytes.Contains([]byte(err.Error()), []byte(want)) {
		s.Errorf("the certificate of a server as a client's: %v, want %q", err, want)
	}
}

// noKeyInClear searches what the frontend has on disk.
func (s *server) noKeyInClear() {
	s.Helper()
	number, err := s.saved().Certificate.PrivateKey.(*ecdsa.PrivateKey).Bytes()
	must(s.T, err)
	searched := 0
	must(s.T, filepath.WalkDir(s.data, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		searched++
		for _, part := range [][]byte{number, []byte("PRIVATE KEY"), []byte(base64.StdEncoding.EncodeToString(number)[:40])} {
			if bytes.Contains(b, part) {
				s.Errorf("%s has the key", path)
			}
		}
		return err
	}))
	if searched < 2 {
		s.Errorf("%d files were searched", searched)
	}
}

// hasStat returns nil if an Envoy has a counter or gauge with this value.
func hasStat(admin, want string) error {
	b, err := body("http://" + admin + "/stats")
	if err == nil && !bytes.Contains(b, []byte(want+"\n")) {
		err = fmt.Errorf("the Envoy does not have %s", want)
	}
	return err
}

func body(url string) ([]byte, error) {
	resp, err := http.Get(url) //nolint:gosec // the admin port of an Envoy of this test
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}
