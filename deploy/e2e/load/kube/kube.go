// Package kube writes a large mesh to a real Kubernetes API server, and makes the
// measured change: an endpoint of a slice.
package kube

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"meshlog.dev/deploy/testkit/kubetest"
)

// Size describes how large a mesh is.
type Size struct {
	Services  int
	Endpoints int // of each service, in one slice; at most 100
	Pods      int // pods that the endpoints are spread over, in each namespace its own
	// Rules is how many services have a VirtualService and a DestinationRule.
	Rules int
}

// Objects returns how many objects a mesh of that size has.
func (s Size) Objects() int {
	return namespaces + nodes + s.Services*2 + s.Pods + 2*min(s.Rules, s.Services)
}

const (
	namespaces = 100
	nodes      = 200
	// writers is how many goroutines write at once. The API server and etcd share
	// the processors, so more writers would only wait for each other.
	writers = 32
)

// Mesh is a mesh that was written to an API server.
type Mesh struct {
	size    Size
	client  kubernetes.Interface
	slice   *discoveryv1.EndpointSlice // the slice that changes, as it was last written
	changes int
}

// Fill writes a mesh of a size. It uses protobuf, as controllers do.
func Fill(ctx context.Context, s *kubetest.Server, size Size) (*Mesh, error) {
	config := s.Config()
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	m := &Mesh{size: size, client: client}
	for _, part := range []struct {
		what  string
		n     int
		write func(context.Context, int) error
	}{
		{"namespace", namespaces, m.writeNamespace},
		{"node", nodes, m.writeNode},
		{"service", size.Services, m.writeService},
		{"pod", size.Pods, m.writePod},
		{"slice", size.Services, m.writeSlice},
		{"rules", min(size.Rules, size.Services), func(ctx context.Context, i int) error { return s.Apply(ctx, m.rules(i)) }},
	} {
		if err := each(ctx, part.n, part.write); err != nil {
			return nil, fmt.Errorf("write %s: %w", part.what, err)
		}
	}
	return m, nil
}

// each calls f with each number below n, several at once.
func each(ctx context.Context, n int, f func(context.Context, int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(writers)
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error { return f(ctx, i) })
	}
	return g.Wait()
}

// Change is a change that was written.
type Change struct {
	// Written is when the request began, Answered when the API server had
	// answered.
	Written, Answered time.Time
	// Token occurs in the response that every proxy gets for the change, and in
	// no earlier response.
	Token []byte
}

// ChangeEndpoint replaces the first endpoint of the last service.
func (m *Mesh) ChangeEndpoint(ctx context.Context) (Change, error) {
	m.changes++
	address := fmt.Sprintf("10.250.%d.%d", m.changes/250, m.changes%250+1)
	m.slice.Endpoints[0].Addresses = []string{address}
	c := Change{Written: time.Now(), Token: []byte(address)}
	next, err := m.client.DiscoveryV1().EndpointSlices(m.slice.Namespace).Update(ctx, m.slice, metav1.UpdateOptions{})
	c.Answered = time.Now()
	if err == nil {
		m.slice = next
	}
	return c, err
}

// Namespace returns the name of the i-th namespace; it wraps around.
func Namespace(i int) string { return fmt.Sprintf("ns-%d", i%namespaces) }

func (m *Mesh) rules(i int) string {
	host := fmt.Sprintf("%s.%s.svc.cluster.local", service(i), Namespace(i))
	return strings.NewReplacer("NAMESPACE", Namespace(i), "NAME", service(i), "HOST", host).Replace(`
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: NAME, namespace: NAMESPACE}
spec:
  hosts: [HOST]
  http:
  - timeout: 5s
    retries: {attempts: 2, perTryTimeout: 2s, retryOn: "5xx,connect-failure"}
    route:
    - {destination: {host: HOST, subset: v1}, weight: 90}
    - {destination: {host: HOST, subset: v2}, weight: 10}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: NAME, namespace: NAMESPACE}
spec:
  host: HOST
  trafficPolicy: {loadBalancer: {simple: LEAST_REQUEST}}
  subsets:
  - {name: v1, labels: {version: v1}}
  - {name: v2, labels: {version: v2}}
`)
}
