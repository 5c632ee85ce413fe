// Package cluster is a Kubernetes cluster that tests and the demo drive the
// programs with: a real API server, and pods that are servers in this process.
// What a Deployment, a kubelet and the controller of EndpointSlices would write
// of them, pods write themselves: nobody else does.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"meshlog.dev/services/watcher/kube/kubetest"
)

// Cluster is a Kubernetes cluster.
type Cluster struct {
	*kubetest.Server
	// Name is what it is called by.
	Name string
	// Kubeconfig is a file with the administrator's access.
	Kubeconfig string

	// address is the one of this machine that all pods have, as those on the
	// network of their node do.
	address string
	pods    []*Pod
}

// definitions are those of the kinds that the shop has.
var definitions = []string{
	"gateways.networking.istio.io", "virtualservices.networking.istio.io", "destinationrules.networking.istio.io",
}

// Start starts a cluster that has the kinds of the shop, and keeps everything
// in dir/name. The caller ends it with End.
func Start(ctx context.Context, dir, name string) (*Cluster, error) {
	c := &Cluster{Name: name, Kubeconfig: filepath.Join(dir, name, "kubeconfig")}
	var err error
	if c.address, err = address(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(c.Kubeconfig), 0o700); err != nil {
		return nil, err
	}
	if c.Server, err = kubetest.StartIn(ctx, filepath.Dir(c.Kubeconfig)); err != nil {
		return nil, err
	}
	if err := c.prepare(ctx); err != nil {
		c.End()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) prepare(ctx context.Context) error {
	access, err := kubetest.Kubeconfig(c.Config())
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.Kubeconfig, access, 0o600); err != nil {
		return err
	}
	return c.InstallIstioCRDs(ctx, definitions...)
}

// End kills what runs.
func (c *Cluster) End() {
	for _, p := range c.pods {
		p.Stop()
	}
	c.Kill()
}

// address is one of this machine that is not loopback: no endpoint may be there
// (the API server refuses it). What is sent to it stays on this machine.
func address() (string, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String(), nil
		}
	}
	return "", errors.New("this machine has no IPv4 address but loopback, where Kubernetes takes no endpoint: " +
		"give it one (ip addr add 192.0.2.1/32 dev lo)")
}

// ApplyFile writes the objects of a file, as kubectl does.
func (c *Cluster) ApplyFile(ctx context.Context, path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := c.ApplyAs(ctx, "kubectl", string(b)); err != nil {
		return fmt.Errorf("apply %s: %w", path, err)
	}
	return nil
}
