package kubernetes

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"meshlog.dev/deploy/e2e/cluster"
	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/program"
)

// The addresses of the mesh of TestCanaryKeys, which has a network of its own.
const (
	canaryXDS   = "127.0.0.1:15012"
	canaryCA    = "127.0.0.1:15013"
	canaryEdge  = "127.0.0.1:8443"
	canaryAdmin = "127.0.0.1:15004" // of the router's Envoy
	canaryID    = "router~127.0.0.4~edge-1.edge~edge.svc.cluster.local"
)

// canaryGateway has a server with a Secret of the cluster and one with a Secret in files.
const canaryGateway = `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: edge}
spec:
  selector: {app: edge}
  servers:
  - {port: {number: 8443, name: https-cluster, protocol: HTTPS}, bind: 127.0.0.1, hosts: [of-cluster.test], tls: {mode: SIMPLE, credentialName: of-cluster}}
  - {port: {number: 8443, name: https-file, protocol: HTTPS}, bind: 127.0.0.1, hosts: [of-file.test], tls: {mode: SIMPLE, credentialName: of-file}}
`

// canaries is a mesh of separate processes, whose bus and traces are recorded, and the
// secrets that it must not show.
type canaries struct {
	*testing.T
	ctx      context.Context
	dir      string // of all processes
	outside  string // of what users and the cluster give to them
	nats     *rig.NATS
	bus      *rig.Recorder
	traces   *rig.Traces
	servers  []*rig.Server
	edgeCA   *certtest.CA
	versions map[string]int      // of the certificates, by Secret
	secrets  map[string][][]byte // the forms of each
}

// KEY-1: a router has the keys of a Secret of a cluster and of one in files, and its own key
// under a plugged CA, for a join token. Both Secrets are replaced while it runs. None of
// these keys, nor the token, nor a key by which others are sealed, is in a file of a process
// (NATS' and logs among them), in what went over the bus, in a trace, in a metric, in a debug
// page, in Envoy's dump of its configuration, or in an archive of the mesh; in none of them
// in PEM, in DER or in base64.
func TestCanaryKeys(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := &canaries{
		T: t, ctx: ctx, dir: t.TempDir(), outside: t.TempDir(), edgeCA: certtest.NewCA("edge"),
		versions: map[string]int{}, secrets: map[string][][]byte{},
	}
	east, err := cluster.Start(ctx, c.outside, "east")
	must(t, err)
	t.Cleanup(east.End)
	must(t, east.ApplyAs(ctx, "kubectl", "apiVersion: v1\nkind: Namespace\nmetadata: {name: edge}\n"))
	must(t, os.MkdirAll(filepath.Join(c.outside, "certificates"), 0o700))
	c.start(east)
	for range 2 {
		c.ofCluster(east)
		c.ofFile()
		for name := range c.versions {
			c.serves(name)
		}
	}
	c.known("the key of the router", c.read("certificate/tls.key"))

	archive := filepath.Join(c.dir, "mesh.archive")
	_, err = rig.Meshlog(ctx, append([]string{"export", archive}, c.nats.Flags("operator")...)...)
	must(t, err)
	if kept := c.unpacked(archive); !bytes.Contains(kept, []byte("SecretReference")) {
		t.Error("the archive has no reference to a key, so a search of it proves nothing")
	}
	c.searchPages()
	for _, s := range c.servers {
		must(t, s.Stop())
	}
	c.searchTraffic()
	c.searchFiles()
}

// start starts the processes. The token of the router is the only one that is made.
func (c *canaries) start(east *cluster.Cluster) {
	c.Helper()
	var err error
	c.nats, err = rig.StartNATSFor(c.ctx, c.dir, "file/default", "ca/default", "kubernetes/east")
	must(c.T, err)
	c.Cleanup(func() { c.nats.Kill() })
	c.bus, err = rig.Record(net.JoinHostPort("127.0.0.1", fmt.Sprint(c.nats.Port)))
	must(c.T, err)
	c.Cleanup(c.bus.Stop)
	c.nats.Port = c.bus.Port
	c.traces, err = rig.StartTraces()
	must(c.T, err)
	c.Cleanup(c.traces.Stop)
	c.Setenv("MESHLOG_TRACE_ENDPOINT", c.traces.URL())

	// The users' keys are beside the server's files, in a directory that is not searched.
	users, err := filepath.Glob(filepath.Join(c.nats.Auth, "*.[nx]k"))
	must(c.T, err)
	for _, path := range users {
		b, err := os.ReadFile(path)
		must(c.T, err)
		c.secrets[filepath.Base(path)] = forms(bytes.TrimSpace(b))
		certtest.WriteFile(c.T, c.outside, filepath.Base(path), b)
	}
	config, err := rig.NewConfigDir(c.outside)
	must(c.T, err)
	_, err = config.Save("edge.yaml", canaryGateway)
	must(c.T, err)
	seal, hmac := c.random("seal.key"), c.random("hmac.key")
	c.plug()
	frontends, err := rig.NewCA(c.outside, "frontends")
	must(c.T, err)
	serves, err := frontends.Sign("xds", "")
	must(c.T, err)
	exchange := func(role string) []string {
		return []string{"--secret-key-file", hmac, "--key-exchange", filepath.Join(c.nats.Auth, role+".xk")}
	}
	bus := func(role string, flags ...string) []string { return append(flags, c.nats.Flags(role)...) }
	c.begin("builder", "builder", bus("builder", "--data", filepath.Join(c.dir, "builder"))...)
	c.begin("watcher", "watcher-file", bus("watcher-file-default", append(exchange("watcher-file-default"), "--config", config.Path, "--certificates", filepath.Join(c.outside, "certificates"))...)...)
	c.begin("east", "watcher-kube", bus("watcher-kubernetes-east", append(exchange("watcher-kubernetes-east"), "--cluster", "east", "--kubeconfig", east.Kubeconfig)...)...)
	c.begin("ca", "ca", bus("watcher-ca-default", "--listen", canaryCA, "--dns-names", "localhost", "--signer", "plugged", "--ca-dir", filepath.Join(c.outside, "ca"),
		"--insecure-ca-key-file", "--roots-file", filepath.Join(c.dir, "roots.state"), "--seal-key-file", seal, "--join-tokens", "--certificate-renewal")...)
	c.begin("frontend", "frontend", bus("frontend", append(exchange("frontend"), "--data", filepath.Join(c.dir, "frontend"), "--seal-key-file", seal,
		"--listen", "", "--tls-listen", canaryXDS, "--tls-cert", serves.Cert, "--tls-key", serves.Key, "--tls-mesh-clients")...)...)
	c.join()
}

// begin starts a program and waits until it is ready.
func (c *canaries) begin(name, of string, flags ...string) {
	c.Helper()
	s, err := rig.StartProgram(c.dir, of, name, append(flags, "--id", name)...)
	must(c.T, err)
	c.servers = append(c.servers, s)
	c.Cleanup(func() {
		if c.Failed() {
			c.Logf("Last output of %s:\n%s", name, s.Tail(15))
		}
		s.Kill()
	})
	must(c.T, s.Ready(c.ctx))
}

// join starts the router with its agent.
func (c *canaries) join() {
	c.Helper()
	as := c.nats.Flags("operator")
	roots, err := rig.Meshlog(c.ctx, append([]string{"ca", "roots"}, as...)...)
	must(c.T, err)
	token, err := rig.Meshlog(c.ctx, append([]string{"ca", "token", "--namespace", "edge", "--account", "edge"}, as...)...)
	must(c.T, err)
	c.secrets["the join token"] = forms([]byte(strings.TrimSpace(token)))
	envoy, err := program.Tool(c.ctx, "envoy")
	must(c.T, err)
	s, err := rig.StartProgram(c.dir, "agent", "edge",
		"--type", "router", "--name", "edge-1", "--namespace", "edge", "--service-account", "edge", "--ip", "127.0.0.4", "--labels", "app=edge",
		"--xds", canaryXDS, "--xds-server-name", "localhost", "--xds-ca", filepath.Join(c.outside, "ca.pem"),
		"--ca", canaryCA, "--ca-server-name", "localhost", "--ca-roots", certtest.WriteFile(c.T, c.outside, "root.pem", []byte(roots)),
		"--join-token-file", certtest.WriteFile(c.T, c.outside, "edge.token", []byte(token)), "--certificates-out", filepath.Join(c.outside, "certificate"),
		"--dir", filepath.Join(c.dir, "edge"), "--envoy", envoy, "--envoy-admin", canaryAdmin, "--ready-listen", "127.0.0.1:15024", "--concurrency", "1", "--termination-drain", "0s",
	)
	must(c.T, err)
	c.servers = append(c.servers, s)
	c.Cleanup(func() {
		if c.Failed() {
			c.Logf("Last output of the agent:\n%s", s.Tail(15))
		}
		s.Kill()
	})
}

// plug makes the CA that is plugged in.
func (c *canaries) plug() {
	c.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(c.T, err)
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "plugged"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, root, root, key.Public(), key)
	must(c.T, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(c.T, err)
	dir := filepath.Join(c.outside, "ca")
	must(c.T, os.MkdirAll(dir, 0o700))
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	certtest.WriteFile(c.T, dir, "ca-cert.pem", cert)
	certtest.WriteFile(c.T, dir, "root-cert.pem", cert)
	certtest.WriteFile(c.T, dir, "ca-key.pem", text)
	c.known("the key of the CA", text)
}

// random makes a file with a key that is no PEM.
func (c *canaries) random(name string) string {
	b := make([]byte, 32)
	_, err := rand.Read(b)
	must(c.T, err)
	c.secrets[name] = forms(b)
	return certtest.WriteFile(c.T, c.outside, name, b)
}

// next makes the next certificate of a Secret, whose name says which it is.
func (c *canaries) next(secret string) certtest.Pair {
	c.versions[secret]++
	pair := c.edgeCA.Server(c.name(secret), time.Now().Add(time.Hour))
	c.known("the key of "+c.name(secret), pair.Key)
	return pair
}

func (c *canaries) name(secret string) string {
	return fmt.Sprintf("%s %d", secret, c.versions[secret])
}

func (c *canaries) ofCluster(east *cluster.Cluster) {
	c.Helper()
	pair := c.next("of-cluster")
	must(c.T, east.ApplyAs(c.ctx, "kubectl", fmt.Sprintf(`apiVersion: v1
kind: Secret
metadata: {name: of-cluster, namespace: edge}
type: kubernetes.io/tls
data: {tls.crt: %s, tls.key: %s}
`, base64.StdEncoding.EncodeToString(pair.Cert), base64.StdEncoding.EncodeToString(pair.Key))))
}

func (c *canaries) ofFile() {
	c.Helper()
	pair := c.next("of-file")
	dir := filepath.Join(c.outside, "certificates", "edge", "of-file")
	must(c.T, os.MkdirAll(dir, 0o700))
	certtest.WriteFile(c.T, dir, "tls.key", pair.Key)
	certtest.WriteFile(c.T, dir, "tls.crt", pair.Cert)
}

// serves waits until new connections get the newest certificate of a Secret.
func (c *canaries) serves(secret string) {
	c.Helper()
	must(c.T, program.Until(c.ctx, "the router to have "+c.name(secret), func(ctx context.Context) error {
		d := &tls.Dialer{Config: &tls.Config{ServerName: secret + ".test", InsecureSkipVerify: true}} //nolint:gosec // the name says which certificate it is
		conn, err := d.DialContext(ctx, "tcp", canaryEdge)
		if err != nil {
			return err
		}
		defer conn.Close()
		if got := conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Subject.CommonName; got != c.name(secret) {
			return fmt.Errorf("it has %s", got)
		}
		return nil
	}))
}

func (c *canaries) read(name string) []byte {
	c.Helper()
	b, err := os.ReadFile(filepath.Join(c.outside, name))
	must(c.T, err)
	return b
}

// known adds the forms of a private key in PEM: its number is in any DER, a line of the PEM
// also in base64 of the DER, and the last is of base64 of the PEM, as in a Secret.
func (c *canaries) known(what string, text []byte) {
	c.Helper()
	block, _ := pem.Decode(text)
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	must(c.T, err)
	number, err := key.(*ecdsa.PrivateKey).Bytes()
	must(c.T, err)
	again := base64.StdEncoding.EncodeToString(text)
	c.secrets[what] = [][]byte{number, []byte(strings.Split(string(text), "\n")[2]), []byte(again[len(again)/2 : len(again)/2+60])}
}

// forms returns a text as it is, and in base64.
func forms(text []byte) [][]byte {
	return [][]byte{text, []byte(base64.StdEncoding.EncodeToString(text))}
}

// hasNone demands that a text has none of the secrets.
func (c *canaries) hasNone(where string, b []byte) {
	c.Helper()
	for what, all := range c.secrets {
		for i, form := range all {
			if bytes.Contains(b, form) {
				c.Errorf("%s has %s (form %d)", where, what, i)
			}
		}
	}
}

func (c *canaries) unpacked(path string) []byte {
	c.Helper()
	b, err := os.ReadFile(path)
	must(c.T, err)
	all, err := rig.Unpacked(b)
	must(c.T, err)
	return all
}

// searchPages searches what processes and Envoy say about themselves.
func (c *canaries) searchPages() {
	c.Helper()
	for _, s := range c.servers {
		metrics, err := s.Metrics(c.ctx)
		must(c.T, err)
		c.hasNone("metrics of "+s.Name, fmt.Append(nil, metrics))
	}
	for i, pages := range map[int][]string{
		0: {"builder", "fold", "streams"}, 3: {"ca"}, 5: {"agent"},
		4: {"frontend", "keys", "certificates", "syncz", "config_dump?proxyID=" + canaryID, "configz", "snapshot"},
	} {
		for _, page := range pages {
			b, err := c.servers[i].Page(c.ctx, page)
			must(c.T, err)
			c.hasNone(c.servers[i].Name+" /debug/"+page, b)
		}
	}
	resp, err := http.Get("http://" + canaryAdmin + "/config_dump?include_eds")
	must(c.T, err)
	defer resp.Body.Close()
	dump, err := io.ReadAll(resp.Body)
	must(c.T, err)
	if !bytes.Contains(dump, []byte("kubernetes://of-cluster")) {
		c.Error("Envoy's configuration has no key of the cluster, so a search of it proves nothing")
	}
	c.hasNone("Envoy's configuration", dump)
}

// searchTraffic searches the bus and the traces.
func (c *canaries) searchTraffic() {
	c.Helper()
	recorded := c.bus.Recorded()
	for _, subject := range []string{"meshlog.key.mesh.file.default", "meshlog.key.mesh.kubernetes.east"} {
		if !bytes.Contains(recorded, []byte(subject)) {
			c.Errorf("nothing was recorded of %s, so a search proves nothing", subject)
		}
	}
	all, err := rig.Unpacked(recorded)
	must(c.T, err)
	c.hasNone("the bus", all)
	spans, err := c.traces.Spans()
	must(c.T, err)
	if len(spans) == 0 {
		c.Error("no process sent a trace, so a search proves nothing")
	}
	c.hasNone("a trace", fmt.Append(nil, spans))
	c.Logf("%d secrets, %d KB of the bus, %d spans", len(c.secrets), len(recorded)>>10, len(spans))
}

// searchFiles searches all files, and proves by the files of the users that a search finds
// each of the secrets.
func (c *canaries) searchFiles() {
	c.Helper()
	var given bytes.Buffer
	c.walk(c.outside, func(_ string, b []byte) { given.Write(b) })
	for what, all := range c.secrets {
		found := false
		for _, form := range all {
			found = found || bytes.Contains(given.Bytes(), form)
		}
		if !found && !strings.HasSuffix(what, " 1") { // the first key of a Secret was replaced
			c.Errorf("%s is not found where it is", what)
		}
	}
	n := 0
	c.walk(c.dir, func(path string, b []byte) {
		n++
		all, err := rig.Unpacked(b)
		must(c.T, err)
		c.hasNone(path, all)
	})
	if n < 15 {
		c.Errorf("%d files were searched", n)
	}
	c.Logf("%d files", n)
}

// walk reads all files of a directory but the keys of the bus's users.
func (c *canaries) walk(dir string, read func(path string, b []byte)) {
	c.Helper()
	must(c.T, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // a process has removed it meanwhile
		case err != nil:
			return err
		case path == c.nats.Auth:
			return fs.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		read(path, b)
		return err
	}))
}
