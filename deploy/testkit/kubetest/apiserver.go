package kubetest

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
)

func (s *Server) startAPI(ctx context.Context, dir string, flags []string) error {
	bin, err := program.Tool(ctx, "kube-apiserver")
	if err != nil {
		return err
	}
	port, err := testport.TCP()
	if err != nil {
		return err
	}
	s.url = "https://" + loopback(port)
	if err := s.connect(); err != nil {
		return err
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	ca, cert, key := in("ca.pem"), in("server.pem"), in("server-key.pem")
	server := s.serverCertificate()
	for path, pem := range map[string][]byte{ca: s.ca.PEM(), cert: server.Cert, key: server.Key} {
		if err := os.WriteFile(path, pem, 0o600); err != nil {
			return err
		}
	}
	own := []string{
		bin, "--etcd-servers=" + s.etcdURL,
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port),
		"--tls-cert-file=" + cert, "--tls-private-key-file=" + key, "--client-ca-file=" + ca,
		"--service-account-issuer=" + s.url, "--service-account-key-file=" + cert, "--service-account-signing-key-file=" + key,
		"--authorization-mode=RBAC", "--allow-privileged=true",
		// Addresses of both families. No proxy implements them.
		"--service-cluster-ip-range=10.96.0.0/12,fd00:10:96::/112",
		// The API server listens on loopback, which is not a valid endpoint address.
		"--endpoint-reconciler-type=none",
		// The plugin rejects pods until a controller has created their account.
		"--disable-admission-plugins=ServiceAccount",
		// On SIGTERM the API server ends its watches, as an upgrade does. By default
		// it would wait a minute for the clients.
		"--shutdown-watch-termination-grace-period=5s",
		"--profiling=false",
	}
	s.API = &Process{Name: "kube-apiserver", Dir: dir, Argv: append(own, flags...), Ready: s.apiReady}
	return s.API.Start(ctx)
}

// connect creates the administrator's clients.
func (s *Server) connect() error {
	s.admin = s.user("admin", "system:masters")
	var err error
	if s.objects, err = dynamic.NewForConfig(s.admin); err != nil {
		return err
	}
	kinds, err := discovery.NewDiscoveryClientForConfig(s.admin)
	if err != nil {
		return err
	}
	s.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(kinds))
	return nil
}

// apiReady returns nil when the API server is ready and has created its first
// objects. It creates them some time after it reports ready; they would disturb
// a test that counts objects.
func (s *Server) apiReady(ctx context.Context) error {
	client, err := rest.HTTPClientFor(s.admin)
	if err != nil {
		return err
	}
	for _, path := range []string{
		"/readyz", "/api/v1/namespaces/kube-system", "/api/v1/namespaces/kube-public", "/api/v1/namespaces/kube-node-lease",
		"/api/v1/namespaces/default", "/api/v1/namespaces/default/services/kubernetes",
	} {
		if err := getOK(ctx, client, s.url+path); err != nil {
			return err
		}
	}
	return nil
}

// getOK returns nil when a GET request is answered with 200.
func getOK(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", req.URL.Path, resp.Status)
	}
	return nil
}
