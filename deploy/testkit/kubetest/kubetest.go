// Package kubetest runs a real Kubernetes API server and its etcd for tests, the
// demo and the benchmarks. Both are the versions that deploy/tools/get pins,
// listen on loopback only, and keep all their files in one directory.
//
// It runs an API server, not a cluster: there is no controller-manager, no
// scheduler and no kubelet. A test writes what those would write, such as
// EndpointSlices and the status of pods and nodes. There are no service
// accounts, the garbage collector does not run, and a deleted namespace stays
// Terminating until its finalizer is removed, which Server.Delete does. Custom
// resource definitions work in full.
//
// Authorization is RBAC. Server.Config returns the administrator's
// configuration; Server.User creates users with fewer rights. Clients are not
// throttled; set QPS on the configuration to change that.
//
// kubetest does not use controller-runtime's envtest. Tried with v0.25.2, the
// release for k8s.io 0.37: it hides the process ID and stops a process only with
// SIGTERM, so a test could neither crash nor pause etcd or the API server; both
// processes survive a test that panics; and its certificates and users exist only
// together with its processes. Its InstallCRDs works alone, but it does not wait
// until objects can be listed, and adds 11 modules and 300 packages.
package kubetest

import (
	"context"
	"errors"
	"net"
	"strconv"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"meshlog.dev/deploy/testkit/certtest"
)

// Server is a running API server and its etcd. Its methods may be called
// concurrently, but not those of API and Etcd.
type Server struct {
	// API and Etcd are the two processes. Each can be stopped, killed, paused and
	// started again, and keeps its port and its data.
	API, Etcd *Process

	etcdURL string
	url     string
	ca      *certtest.CA // signs the certificates of the server and of its users
	admin   *rest.Config

	objects dynamic.Interface
	mapper  *restmapper.DeferredDiscoveryRESTMapper
}

// Start starts a server for a test, with additional flags for kube-apiserver,
// and kills it after the test. If the test fails, Start logs the last output of
// both processes.
func Start(t testing.TB, flags ...string) *Server {
	t.Helper()
	s, err := StartIn(t.Context(), t.TempDir(), flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Kill()
		if t.Failed() {
			for _, p := range []*Process{s.Etcd, s.API} {
				t.Logf("last output of %s:\n%s", p.Name, p.Tail(20))
			}
		}
	})
	return s
}

// StartIn starts a server that keeps its data, certificates and output in dir,
// and waits until it is ready. The caller ends it with Stop or Kill.
func StartIn(ctx context.Context, dir string, flags ...string) (*Server, error) {
	s := &Server{ca: certtest.NewCA("kubetest")}
	if err := s.startEtcd(ctx, dir); err != nil {
		return nil, err
	}
	if err := s.startAPI(ctx, dir, flags); err != nil {
		s.Kill()
		return nil, err
	}
	return s, nil
}

// Config returns a copy of the administrator's configuration.
func (s *Server) Config() *rest.Config { return rest.CopyConfig(s.admin) }

// Restart kills both processes, as a crash of the machine would, and starts them
// again.
func (s *Server) Restart(ctx context.Context) error {
	s.Kill()
	return errors.Join(s.Etcd.Start(ctx), s.API.Start(ctx))
}

// Stop stops the API server and then etcd.
func (s *Server) Stop() error { return errors.Join(s.API.Stop(), s.Etcd.Stop()) }

// Kill kills both processes and waits until they have exited.
func (s *Server) Kill() {
	for _, p := range []*Process{s.API, s.Etcd} {
		if p != nil {
			p.Kill()
		}
	}
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// serverCertificate makes a certificate for a server on loopback.
func (s *Server) serverCertificate() certtest.Pair {
	return s.ca.Server("kube-apiserver", time.Now().Add(24*time.Hour))
}
