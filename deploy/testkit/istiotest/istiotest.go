// Package istiotest runs a real istiod for tests, as a process on loopback. It is the
// version that deploy/tools/get pins, and keeps all its files in one directory.
//
// It configures Envoys that are not Istio's own: the exchange of metadata, the filter for
// ALPN, providers of telemetry and automatic mutual TLS are off, because a stock Envoy has
// neither their filters nor an agent that gives it certificates.
package istiotest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
)

// mesh is the MeshConfig of a stock Envoy's control plane.
const mesh = `enableAutoMtls: false
defaultProviders: {}
extensionProviders: []
`

// Options change the istiod.
type Options struct {
	// Kubeconfig is the file with access to a Kubernetes API server that has Istio's
	// definitions. Without Kubernetes an istiod is never ready.
	Kubeconfig string
	// MeshConfig is further YAML of the MeshConfig, such as configSources.
	MeshConfig string
}

// Server is an istiod. It can be stopped, killed, paused and started again, and keeps its
// ports.
type Server struct {
	*program.Server
	// XDS is the port of its plaintext xDS.
	XDS int
}

// Start runs an istiod until the test ends.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	s, err := StartIn(t.Context(), t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Kill()
		if t.Failed() {
			t.Logf("last output of %s:\n%s", s.Name, s.Tail(40))
		}
	})
	return s
}

// StartIn runs an istiod that keeps its files in dir, and waits until it is ready. The
// caller ends it with Stop or Kill.
func StartIn(ctx context.Context, dir string, o Options) (*Server, error) {
	s, err := prepare(ctx, dir, o)
	if err != nil {
		return nil, err
	}
	return s, s.Start(ctx)
}

func prepare(ctx context.Context, dir string, o Options) (*Server, error) {
	bin, err := program.Tool(ctx, "istiod")
	if err != nil {
		return nil, err
	}
	var xds, api, monitoring, inspection, webhooks int
	for _, port := range []*int{&xds, &api, &monitoring, &inspection, &webhooks} {
		if *port, err = testport.TCP(); err != nil {
			return nil, err
		}
	}
	file := filepath.Join(dir, "mesh.yaml")
	if err := os.WriteFile(file, []byte(mesh+o.MeshConfig), 0o600); err != nil {
		return nil, err
	}
	s := &Server{XDS: xds}
	s.Server = &program.Server{
		Name: "istiod", Dir: dir,
		Argv: []string{
			bin, "discovery", "--kubeconfig", o.Kubeconfig, "--meshConfig", file,
			"--grpcAddr", loopback(xds), "--httpAddr", loopback(api), "--monitoringAddr", loopback(monitoring),
			"--httpsAddr", loopback(webhooks), "--secureGRPCAddr", "", "--ctrlz_port", strconv.Itoa(inspection),
		},
		Env: []string{
			"POD_NAME=istiod", "POD_NAMESPACE=istio-system", "ENABLE_CA_SERVER=false",
			"INJECTION_WEBHOOK_CONFIG_NAME=", "VALIDATION_WEBHOOK_CONFIG_NAME=", "PILOT_ENABLE_GATEWAY_API=false",
			"PILOT_ENABLE_METADATA_EXCHANGE=false", "PILOT_ENABLE_ALPN_FILTER=false",
		},
		Ready: func(ctx context.Context) error { return ready(ctx, "http://"+loopback(api)+"/ready") },
	}
	return s, nil
}

// ready returns nil when istiod has read all its sources.
func ready(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return nil
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
