package securemesh_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/services/roles/up"
	"meshlog.dev/services/suite/envoytest"
)

// brokenFiles are servers of a router whose certificates are files on its machine: one is
// good, one has garbage, and one is missing. Another one has a Secret.
const brokenFiles = `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: web}
spec:
  selector: {app: edge}
  servers:
  - {port: {number: %[1]d, name: https-good, protocol: HTTPS}, hosts: [good.example], tls: {mode: SIMPLE, serverCertificate: %[2]s/good.pem, privateKey: %[2]s/key.pem}}
  - {port: {number: %[1]d, name: https-bad, protocol: HTTPS}, hosts: [bad.example], tls: {mode: SIMPLE, serverCertificate: %[2]s/bad.pem, privateKey: %[2]s/key.pem}}
  - {port: {number: %[1]d, name: https-none, protocol: HTTPS}, hosts: [none.example], tls: {mode: SIMPLE, serverCertificate: %[2]s/none.pem, privateKey: %[2]s/key.pem}}
  - {port: {number: %[1]d, name: https-key, protocol: HTTPS}, hosts: [key.example], tls: {mode: SIMPLE, credentialName: shop}}
`

// SDS-14, SDS-11, SDS-4: an Envoy without a certificate of its own is told the files that
// its Gateway names. The commands name the files that it cannot load, and the Secret that it
// may not have, and say what to do: also after it has come back, when it takes what it has
// rejected without a look at the files. When the files are repaired, nothing of that is left.
func TestBrokenFiles(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"GRPC", "DELTA_GRPC"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			plain, https, files := port(t), port(t), t.TempDir()
			good := certtest.NewCA("shop CA").Server("good.example", time.Now().Add(24*time.Hour))
			certtest.WriteFile(t, files, "good.pem", good.Cert)
			certtest.WriteFile(t, files, "key.pem", good.Key)
			certtest.WriteFile(t, files, "bad.pem", []byte("garbage"))
			m := start(t, fmt.Sprintf(brokenFiles, https, files), func(_ *mesh, s *up.Settings) { s.Frontend.Listen = at("127.0.0.1", plain) })
			way := newRelay(t, at("127.0.0.1", plain))
			m.edge(protocol, way.l.Addr().(*net.TCPAddr).Port)

			m.works(https, "good")
			bad, none := "file-cert:"+files+"/bad.pem~"+files+"/key.pem", "file-cert:"+files+"/none.pem~"+files+"/key.pem"
			broken := []string{
				`SDS held back until it changes: ` + bad + ", " + none, `SDS: correct the files on the machine of the proxy`,
				`SDS not sent, because the connection shows no certificate.*deploy/envoy/tls\.yaml.*: kubernetes://shop`, `1 with rejected resources`,
			}
			m.showsSecrets("broken", broken...)
			m.breaks(https, "bad", "none", "key")
			if said, err := m.try("status"); err == nil || !strings.Contains(said, "1 proxy rejects resources: "+edgeID+" (SDS "+none) &&
				!strings.Contains(said, "1 proxy rejects resources: "+edgeID+" (SDS "+bad) ||
				!strings.Contains(said, "1 proxy does not get a secret that it asks for: "+edgeID+" (kubernetes://shop)") {
				t.Errorf("`meshlog status`: %v\n%s", err, said)
			}
			way.cut()
			m.until("a new stream", time.Minute, func() error {
				if said, _ := m.try("proxy-status", edgeID); !strings.Contains(said, "connected just now") && !regexp.MustCompile(`connected [0-4]s ago`).MatchString(said) {
					return fmt.Errorf("%s", said)
				}
				return nil
			})
			m.showsSecrets("broken, on a new stream", broken...)

			for _, name := range []string{"bad.pem", "none.pem"} { // not moved there, so Envoy does not notice
				must(t, os.WriteFile(filepath.Join(files, name), good.Cert, 0o600))
			}
			m.works(https, "bad", "none")
			m.showsSecrets("repaired", `LACKS 1`, `0 in sync, 1 without secrets`)
			if said := m.meshlog("proxy-status"); strings.Contains(said, "held back") || strings.Contains(said, "rejected") {
				t.Errorf("the files are good, and `meshlog proxy-status` says\n%s", said)
			}
		})
	}
}

const edgeID = "router~127.0.0.4~edge-1.web~web.svc.cluster.local"

// edge runs an Envoy that brokenFiles selects, without a certificate.
func (m *mesh) edge(protocol string, xds int) {
	m.Helper()
	bootstrap := strings.NewReplacer("DELTA_GRPC", protocol, "NAMESPACE: web", "NAMESPACE: web, LABELS: {app: edge}").Replace(fmt.Sprintf(bare, edgeID, xds))
	path := certtest.WriteFile(m, m.dir, "edge.yaml", []byte(bootstrap))
	p, err := program.Start("envoy-edge", m.dir, []string{envoytest.Envoy(m), "-c", path, "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "error"})
	must(m.T, err)
	m.Cleanup(p.Kill)
}

// showsSecrets waits until `meshlog proxy-status` says all of this.
func (m *mesh) showsSecrets(what string, parts ...string) {
	m.Helper()
	m.until(what, time.Minute, func() error {
		said, _ := m.try("proxy-status")
		for _, p := range parts {
			if !regexp.MustCompile(p).MatchString(said) {
				return fmt.Errorf("no %q in\n%s", p, said)
			}
		}
		return nil
	})
}

// works waits until these hosts have a certificate.
func (m *mesh) works(port int, hosts ...string) {
	m.Helper()
	for _, h := range hosts {
		m.until(h, time.Minute, func() error { return handshake(port, h) })
	}
}

func (m *mesh) breaks(port int, hosts ...string) {
	m.Helper()
	for _, h := range hosts {
		if handshake(port, h) == nil {
			m.Errorf("%s.example has a certificate", h)
		}
	}
}

func handshake(port int, host string) error {
	c, err := tls.Dial("tcp", at("127.0.0.1", port), &tls.Config{ServerName: host + ".example", InsecureSkipVerify: true}) //nolint:gosec // any certificate will do
	if err != nil {
		return err
	}
	return c.Close()
}
