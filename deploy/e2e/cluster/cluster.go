// Package cluster runs a Kubernetes cluster that tests and the demo use: a real
// API server, and pods that are servers in this process. No controller runs, so
// the pods themselves write the objects that a Deployment, a kubelet and the
// controller of EndpointSlices would write for them.
//
// Kubernetes refuses endpoints on loopback, so pods are on rig.OwnAddress. A
// program that starts a Cluster must call rig.Isolate before anything else.
package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/kubetest"
)

// Cluster is a Kubernetes cluster.
type Cluster struct {
	*kubetest.Server
	// Name is the name under which meshlog knows the cluster.
	Name string
	// Kubeconfig is a file with the administrator's access.
	Kubeconfig string

	// address is the address of all pods, as of pods on their node's network.
	address string
	pods    []*Pod
}

// definitions are the definitions of the kinds that the shop uses.
var definitions = []string{
	"gateways.networking.istio.io", "virtualservices.networking.istio.io", "destinationrules.networking.istio.io",
}

// Start starts a cluster that has the kinds of the shop, and keeps its files in
// dir/name. The caller must have called rig.Isolate, and ends the cluster with
// End.
func Start(ctx context.Context, dir, name string) (*Cluster, error) {
	c := &Cluster{Name: name, Kubeconfig: filepath.Join(dir, name, "kubeconfig")}
	var err error
	if c.address, err = rig.OwnAddress(); err != nil {
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

// End kills every process that runs.
func (c *Cluster) End() {
	for _, p := range c.pods {
		p.Stop()
	}
	c.Kill()
}

// ApplyFile applies the objects of a file, as kubectl does.
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
