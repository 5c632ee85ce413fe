package cluster

import (
	"context"
	"fmt"

	"meshlog.dev/deploy/e2e/rig"
)

// Pod is a server in this process that appears in a cluster as a pod and as the
// only endpoint of an EndpointSlice. Pods share an address and differ in their
// port, and a slice has one port for all of its endpoints.
type Pod struct {
	*rig.Backend
	Namespace, Service, Version, Name string

	cluster *Cluster
}

// endpoint is the state of a pod in its slice.
type endpoint struct{ ready, serving, terminating bool }

// Run starts a pod of a version of a Service, which must exist, and writes that
// the pod is ready. Its answers name the version: shop-v1.
func (c *Cluster) Run(ctx context.Context, namespace, service, version string) (*Pod, error) {
	p, err := c.Begin(ctx, namespace, service, version)
	if err != nil {
		return nil, err
	}
	return p, p.Ready(ctx, true)
}

// Begin is Run of a pod that is not ready yet.
func (c *Cluster) Begin(ctx context.Context, namespace, service, version string) (*Pod, error) {
	b, err := rig.StartBackendAt(c.address, service+"-"+version)
	if err != nil {
		return nil, err
	}
	p := &Pod{
		Backend: b, Namespace: namespace, Service: service, Version: version,
		Name: fmt.Sprintf("%s-%s-%d", service, version, b.Port), cluster: c,
	}
	c.pods = append(c.pods, p)
	return p, p.Ready(ctx, false)
}

// Cluster returns the name of the pod's cluster.
func (p *Pod) Cluster() string { return p.cluster.Name }

// Ready writes whether the pod accepts requests.
func (p *Pod) Ready(ctx context.Context, ready bool) error {
	if err := p.cluster.ApplyAs(ctx, "kubelet", p.pod(ready)); err != nil {
		return err
	}
	return p.cluster.ApplyAs(ctx, "kube-controller-manager", p.slice(endpoint{ready: ready, serving: ready}))
}

// Terminate writes that the pod is about to end: it answers, but should get no
// new requests.
func (p *Pod) Terminate(ctx context.Context) error {
	return p.cluster.ApplyAs(ctx, "kube-controller-manager", p.slice(endpoint{serving: true, terminating: true}))
}

// Remove ends the pod, and deletes its objects.
func (p *Pod) Remove(ctx context.Context) error {
	p.Stop()
	return p.cluster.Delete(ctx, p.slice(endpoint{}), p.pod(false))
}

func (p *Pod) pod(ready bool) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: %[2]s, labels: {app: %[3]s, version: %[4]s}}
spec:
  nodeName: node-1
  hostNetwork: true
  containers: [{name: app, image: %[3]s, ports: [{name: http, containerPort: %[5]d}]}]
status:
  phase: Running
  podIP: %[6]s
  podIPs: [{ip: %[6]s}]
  conditions: [{type: Ready, status: "%[7]s"}]
`, p.Name, p.Namespace, p.Service, p.Version, p.Port, p.cluster.address, map[bool]string{true: "True", false: "False"}[ready])
}

func (p *Pod) slice(e endpoint) string {
	return fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s, namespace: %[2]s, labels: {kubernetes.io/service-name: %[3]s}}
addressType: IPv4
ports: [{name: http, port: %[4]d, protocol: TCP}]
endpoints:
  - addresses: [%[5]s]
    nodeName: node-1
    conditions: {ready: %[6]t, serving: %[7]t, terminating: %[8]t}
    targetRef: {kind: Pod, namespace: %[2]s, name: %[1]s}
`, p.Name, p.Namespace, p.Service, p.Port, p.cluster.address, e.ready, e.serving, e.terminating)
}
