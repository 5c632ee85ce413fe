package manifests

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/deploy/e2e/cluster"
	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/mcptest"
	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
)

// TestMesh runs the deployment with a certificate authority, the watcher of token issuers,
// that of a source of MCP-over-xDS, the port for MCP-over-xDS, the process that writes Events,
// and the console. An agent with the
// token of a pod gets the certificate of its account, with the
// rights that the manifests give the ca: the API server reviews the token, and the
// builder knows the pod. With it, it joins a frontend that lets nobody else in.
func TestMesh(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	render := kustomize(t)
	secrets := filepath.Join(t.TempDir(), "secrets")
	busAuth(ctx, t, secrets, "mcpxds/*")
	c, err := cluster.Start(ctx, t.TempDir(), "default")
	must(t, err)
	t.Cleanup(c.End)
	text := render(own(t, []string{"."}, []string{"components/xds-tls", "components/ca", "components/jwks", "components/events", "components/console", "components/watcher-xds", "components/mcp"}))
	must(t, c.Apply(ctx, text))
	must(t, c.Apply(ctx, podOfShop))

	k := newKubelet(ctx, t)
	k.know(parse(t, text))
	k.know(parse(t, render(secrets)))
	root, key := newAuthority(t)
	xdsCA := certtest.NewCA("xds")
	xds := xdsCA.Server("frontend", time.Now().Add(time.Hour))
	k.know(parse(t, secret("cacerts", map[string][]byte{"ca-cert.pem": root, "ca-key.pem": key, "cert-chain.pem": root, "root-cert.pem": root})))
	k.know(parse(t, secret("frontend-tls", map[string][]byte{"tls.crt": xds.Cert, "tls.key": xds.Key})))
	k.know(parse(t, fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: public-cas, namespace: meshlog}, data: {ca.pem: %q}}", xdsCA.PEM())))
	k.knowSource(t, secrets)
	const token = "the token of the console"
	k.know(parse(t, secret("console", map[string][]byte{"token": []byte(token)})))
	for _, name := range []string{"watcher-kube", "ca", "kube-events"} {
		k.accounts[name] = serviceAccount(ctx, t, c, name)
	}
	all := workloads(t, parse(t, text))
	for _, name := range []string{"nats", "builder", "watcher-kube", "ca", "watcher-jwks", "watcher-xds", "kube-events", "console", "frontend"} {
		k.start(all[name])
	}
	for _, w := range all {
		k.ready(w)
	}

	k.shows(t, k.port("console-0", "15016"), token)
	k.refusesSink(t, k.port("frontend-0", "15013"), xdsCA)
	dir := t.TempDir()
	podToken := requestToken(ctx, t, c, "demo", "cart", map[string]any{
		"audiences": []any{"istio-ca"}, "boundObjectRef": map[string]any{"kind": "Pod", "apiVersion": "v1", "name": "cart-0"},
	})
	for file, content := range map[string][]byte{"token": []byte(podToken), "roots.pem": root, "xds.pem": xdsCA.PEM()} {
		must(t, os.WriteFile(filepath.Join(dir, file), content, 0o600))
	}
	agent := k.agent(dir, k.port("frontend-0", "15012"), k.port("ca-0", "15012"))
	must(t, agent.UntilAlive(ctx, "the certificate of the pod", func(context.Context) error {
		return identified(filepath.Join(dir, "certificates", "tls.crt"), "spiffe://cluster.local/ns/demo/sa/cart")
	}))
	must(t, agent.UntilAlive(ctx, "the frontend to take the agent", func(context.Context) error {
		log, err := os.ReadFile(agent.LogPath)
		if err == nil && !strings.Contains(string(log), "applied the roots of the mesh") {
			err = errors.New("it has told no roots")
		}
		return err
	}))
	k.permitted()
}

// knowSource makes what watcher-xds needs, as the README says: the key of its user of the
// bus, and its settings. The source is a scripted one.
func (k *kubelet) knowSource(t *testing.T, secrets string) {
	t.Helper()
	files := map[string][]byte{}
	for file, name := range map[string]string{"bus.nk": "watcher-mcpxds.nk", "ca.pem": "ca.pem"} {
		content, err := os.ReadFile(filepath.Join(secrets, name))
		must(t, err)
		files[file] = content
	}
	k.know(parse(t, secret("watcher-xds-bus", files)))
	k.know(parse(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: watcher-xds, namespace: meshlog}, data: {settings.yaml: "mcp-source: xds://istiod.istio-system:15010"}}`))
	_, port, err := net.SplitHostPort(mcptest.Start(t, mcptest.Options{}).Address())
	must(t, err)
	k.services["istiod.istio-system"] = "istiod"
	k.ports["istiod:15010"], err = strconv.Atoi(port)
	must(t, err)
}

// refusesSink demands that a port serves MCP-over-xDS, over TLS: it refuses a client that the
// MeshPolicy does not name, and says what to do.
func (k *kubelet) refusesSink(t *testing.T, port int, ca *certtest.CA) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.PEM())
	conn, err := grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", port), grpc.WithTransportCredentials(credentials.NewClientTLSFromCert(roots, "localhost")))
	must(t, err)
	defer conn.Close()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(k.ctx)
	must(t, err)
	node, err := structpb.NewStruct(map[string]any{"GENERATOR": "api", "NAMESPACE": "istio-system"})
	must(t, err)
	must(t, stream.Send(&discoveryv3.DiscoveryRequest{
		Node: &corev3.Node{Id: "sidecar~10.0.0.1~istiod.istio-system~istio-system.svc.cluster.local", Metadata: node}, TypeUrl: "networking.istio.io/v1/ServiceEntry",
	}))
	if _, err := stream.Recv(); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "mcp.sinks") {
		t.Errorf("a client of MCP-over-xDS: %v", err)
	}
}

// podOfShop is a pod, as its kubelet reports it.
const podOfShop = `
apiVersion: v1
kind: Namespace
metadata: {name: demo, labels: {pod-security.kubernetes.io/enforce: privileged}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: cart, namespace: demo}
---
apiVersion: v1
kind: Pod
metadata: {name: cart-0, namespace: demo, labels: {app: cart}}
spec:
  nodeName: node-1
  serviceAccountName: cart
  automountServiceAccountToken: false
  containers: [{name: app, image: cart}]
status:
  phase: Running
  podIP: 10.1.0.1
  podIPs: [{ip: 10.1.0.1}]
  conditions: [{type: Ready, status: "True"}]
`

// agent starts an agent with the files in dir.
func (k *kubelet) agent(dir string, frontend, ca int) *program.Process {
	k.Helper()
	bin, err := rig.Bin("meshlog")
	must(k.T, err)
	envoy, err := program.Tool(k.ctx, "envoy")
	must(k.T, err)
	local := func() string {
		port, err := testport.TCP()
		must(k.T, err)
		return fmt.Sprintf("127.0.0.1:%d", port)
	}
	in := func(file string) string { return filepath.Join(dir, file) }
	p, err := program.Start("agent", dir, []string{
		bin, "agent", "--type", "router", "--namespace", "demo", "--service-account", "cart", "--name", "cart-0", "--ip", "10.1.0.1",
		"--xds", fmt.Sprintf("127.0.0.1:%d", frontend), "--xds-server-name", "localhost", "--xds-ca", in("xds.pem"),
		"--ca", fmt.Sprintf("127.0.0.1:%d", ca), "--ca-server-name", "localhost", "--ca-roots", in("roots.pem"), "--token-file", in("token"),
		"--dir", in("run"), "--certificates-out", in("certificates"), "--envoy", envoy, "--concurrency", "1", "--termination-drain", "0s",
		"--envoy-admin", local(), "--ready-listen", local(), "--admin", "127.0.0.1:0",
	})
	must(k.T, err)
	k.run["agent"] = &running{Process: p}
	return p
}

// identified returns nil if a file has a certificate for an identity.
func identified(file, id string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return errors.New("it is no PEM")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err == nil && (len(cert.URIs) != 1 || cert.URIs[0].String() != id) {
		err = fmt.Errorf("it is for %v, not for %s", cert.URIs, id)
	}
	return err
}

// newAuthority returns the certificate and the key of a root, as PEM.
func newAuthority(t *testing.T) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "mesh"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(k)
	must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
}

// secret returns a Secret of the namespace meshlog, as YAML.
func secret(name string, data map[string][]byte) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: meshlog}\ndata:\n", name)
	for file, content := range data {
		fmt.Fprintf(&b, "  %s: %s\n", file, base64.StdEncoding.EncodeToString(content))
	}
	return b.String()
}
