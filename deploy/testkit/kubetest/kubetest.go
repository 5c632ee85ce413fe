// Package kubetest runs a real Kubernetes API server with the etcd that it
// keeps its objects in, for tests, the demo and the benchmarks. Both are the
// pinned ones of deploy/tools/get, listen on loopback only, and keep all they
// write in one directory.
//
// It is an API server and no cluster: there is no controller-manager, no
// scheduler and no kubelet. So whoever uses it writes what those would write:
// EndpointSlices, the status of pods and nodes. No service account is made or
// asked for, nothing is garbage collected by its owner references, and a
// namespace that is deleted stays as it is, Terminating, until its finalizer is
// taken away, which Server.Delete does. Custom resource definitions work in
// full: the API server serves them itself.
//
// Authorization is RBAC. Server.Config is the administrator's access;
// Server.User makes users with fewer rights. Clients are not throttled: set QPS
// on a copy of the configuration for that.
package kubetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// Server is a running API server and its etcd. Its methods may be called from
// any goroutine; those of API and Etcd from one at a time.
type Server struct {
	// API and Etcd are the two processes, to stop, kill, pause and start again
	// each for itself. They keep their ports and their data.
	API, Etcd *Process

	etcdURL string
	url     string
	ca      *authority
	admin   *rest.Config

	objects dynamic.Interface
	mapper  *restmapper.DeferredDiscoveryRESTMapper
}

// Start starts a server for a test, with flags of kube-apiserver besides its
// own, and ends it after the test. A test that fails logs what both processes
// said last.
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
				t.Logf("%s said last:\n%s", p.name, p.Tail(20))
			}
		}
	})
	return s
}

// StartIn starts a server that keeps its data, certificates and output in dir,
// and waits until it is ready. The caller ends it with Stop or Kill.
func StartIn(ctx context.Context, dir string, flags ...string) (*Server, error) {
	s := &Server{}
	var err error
	if s.ca, err = newAuthority(); err != nil {
		return nil, err
	}
	if err := s.startEtcd(ctx, dir); err != nil {
		return nil, err
	}
	if err := s.startAPI(ctx, dir, flags); err != nil {
		s.Kill()
		return nil, err
	}
	return s, nil
}

// Config is the administrator's access, a copy for the caller.
func (s *Server) Config() *rest.Config { return rest.CopyConfig(s.admin) }

// Restart kills both processes, as a machine that goes down would, and starts
// them anew.
func (s *Server) Restart(ctx context.Context) error {
	s.Kill()
	return errors.Join(s.Etcd.Start(ctx), s.API.Start(ctx))
}

// Stop ends both processes in order.
func (s *Server) Stop() error { return errors.Join(s.API.Stop(), s.Etcd.Stop()) }

// Kill ends both processes at once and waits until they are gone.
func (s *Server) Kill() {
	for _, p := range []*Process{s.API, s.Etcd} {
		if p != nil {
			p.Kill()
		}
	}
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// tool is what deploy/tools/get prints for a name.
func tool(ctx context.Context, name string) (string, error) {
	root, err := root()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(root, "deploy", "tools", "get"), name)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("no %s (%w): run `make tools`", name, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// root is the directory of the workspace: the one with go.work, at or above the
// working directory.
func root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("no go.work at or above the working directory: run this inside the meshlog tree")
		}
		dir = up
	}
}
