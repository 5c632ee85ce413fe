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

	"meshlog.dev/deploy/testkit/testport"
)

func (s *Server) startAPI(ctx context.Context, dir string, flags []string) error {
	bin, err := tool(ctx, "kube-apiserver")
	if err != nil {
		return err
	}
	files, err := s.writeCertificates(dir)
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
	own := []string{
		bin, "--etcd-servers=" + s.etcdURL,
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port),
		"--tls-cert-file=" + files.cert, "--tls-private-key-file=" + files.key, "--client-ca-file=" + files.ca,
		"--service-account-issuer=" + s.url, "--service-account-key-file=" + files.cert, "--service-account-signing-key-file=" + files.key,
		"--authorization-mode=RBAC", "--allow-privileged=true",
		// Both families; nobody serves these addresses.
		"--service-cluster-ip-range=10.96.0.0/12,fd00:10:96::/112",
		// The address of the API server itself is loopback, which no endpoint may be.
		"--endpoint-reconciler-type=none",
		// Nobody makes the account that pods would have.
		"--disable-admission-plugins=ServiceAccount",
		// Watches are ended when it is asked to end, as clusters do that are
		// upgraded; by itself it would wait for their clients a minute long.
		"--shutdown-watch-termination-grace-period=5s",
		"--profiling=false",
	}
	s.API = &Process{
		name: "kube-apiserver", LogPath: filepath.Join(dir, "kube-apiserver.log"),
		argv: append(own, flags...), ready: s.apiReady,
	}
	return s.API.Start(ctx)
}

// certificates are the files that the API server reads.
type certificates struct{ ca, cert, key string }

func (s *Server) writeCertificates(dir string) (certificates, error) {
	in := func(name string) string { return filepath.Join(dir, name) }
	files := certificates{ca: in("ca.pem"), cert: in("server.pem"), key: in("server-key.pem")}
	server, err := s.ca.server()
	if err != nil {
		return files, err
	}
	for path, pem := range map[string][]byte{files.ca: s.ca.pem, files.cert: server.cert, files.key: server.key} {
		if err := os.WriteFile(path, pem, 0o600); err != nil {
			return files, err
		}
	}
	return files, nil
}

// connect makes the administrator's clients.
func (s *Server) connect() error {
	var err error
	if s.admin, err = s.user("admin", "system:masters"); err != nil {
		return err
	}
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

// firstObjects are what each API server makes some time after it says that it
// is ready; a test that counts objects should not see them come.
var firstObjects = []string{
	"/api/v1/namespaces/kube-system", "/api/v1/namespaces/kube-public", "/api/v1/namespaces/kube-node-lease",
	"/api/v1/namespaces/default", "/api/v1/namespaces/default/services/kubernetes",
}

// apiReady is nil once the API server says so and has made its first objects.
func (s *Server) apiReady(ctx context.Context) error {
	client, err := rest.HTTPClientFor(s.admin)
	if err != nil {
		return err
	}
	for _, path := range append([]string{"/readyz"}, firstObjects...) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", path, resp.Status)
		}
	}
	return nil
}
