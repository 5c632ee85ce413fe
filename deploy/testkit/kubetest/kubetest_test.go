package kubetest

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

var (
	services   = schema.GroupVersionResource{Version: "v1", Resource: "services"}
	pods       = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	vs         = schema.GroupVersionResource{Group: "networking.istio.io", Version: "v1", Resource: "virtualservices"}
	routes     = schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "httproutes"}
)

const shop = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec:
  ports: [{name: http, port: 80}]
---
apiVersion: v1
kind: Pod
metadata: {name: cart-1, namespace: shop}
spec:
  containers: [{name: cart, image: cart}]
status:
  podIP: 10.1.0.1
  podIPs: [{ip: 10.1.0.1}]
`

func client(t *testing.T, c *rest.Config) dynamic.Interface {
	t.Helper()
	d, err := dynamic.NewForConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, d dynamic.Interface, kind schema.GroupVersionResource, namespace, name string) *unstructured.Unstructured {
	t.Helper()
	u, err := d.Resource(kind).Namespace(namespace).Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	return u
}

// Tests that restore the server's state share one server.
func TestServer(t *testing.T) {
	s := Start(t)
	for name, test := range map[string]func(*testing.T, *Server){
		"apply and delete":                testApplyAndDelete,
		"a user has exactly its rights":   testUser,
		"kubeconfig":                      testKubeconfig,
		"install and remove definitions":  testCRDs,
		"a proxy hangs and cuts":          testProxy,
		"a proxy intercepts requests":     testProxyIntercepts,
		"a paused server does not answer": testPause,
	} {
		t.Run(name, func(t *testing.T) { test(t, s) })
	}
}

func testApplyAndDelete(t *testing.T, s *Server) {
	d := client(t, s.Config())
	must(t, s.Apply(t.Context(), shop))

	if ip, _, _ := unstructured.NestedString(get(t, d, services, "shop", "cart").Object, "spec", "clusterIP"); ip == "" {
		t.Error("the service has no address")
	}
	pod := get(t, d, pods, "shop", "cart-1")
	if ip, _, _ := unstructured.NestedString(pod.Object, "status", "podIP"); ip != "10.1.0.1" {
		t.Errorf("podIP is %q: Apply did not write the status", ip)
	}
	if m := pod.GetManagedFields(); len(m) == 0 || m[0].Manager != "kubetest" {
		t.Errorf("managed by %v, want kubetest", m)
	}

	must(t, s.ApplyAs(t.Context(), "alice", `{apiVersion: v1, kind: Service, metadata: {name: cart, namespace: shop, labels: {team: a}}}`))
	if m := get(t, d, services, "shop", "cart").GetManagedFields(); len(m) != 2 || m[0].Manager != "alice" && m[1].Manager != "alice" {
		t.Errorf("managed by %v, want kubetest and alice", m)
	}

	must(t, s.Delete(t.Context(), shop))
	must(t, s.Delete(t.Context(), shop))
	if _, err := d.Resource(namespaces).Get(t.Context(), "shop", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the namespace is still there: %v", err)
	}
	if err := s.Apply(t.Context(), `{apiVersion: v1, kind: Nonsense, metadata: {name: n}}`); err == nil {
		t.Error("Apply of an unknown kind succeeds")
	}
}

func TestRestartKeepsDataAndPort(t *testing.T) {
	s := Start(t)
	d := client(t, s.Config())
	must(t, s.Apply(t.Context(), shop))
	uid := get(t, d, services, "shop", "cart").GetUID()
	for _, step := range []struct {
		name string
		do   func(ctx context.Context) error
	}{
		{"the API server crashes", s.API.Restart},
		{"etcd crashes under it", s.Etcd.Restart},
		{"both crash", s.Restart},
	} {
		must(t, step.do(t.Context()))
		if got := get(t, d, services, "shop", "cart").GetUID(); got != uid {
			t.Errorf("%s: uid %s, want %s", step.name, got, uid)
		}
	}

	// A watch does not delay Stop, which ends it.
	w, err := d.Resource(services).Watch(t.Context(), metav1.ListOptions{})
	must(t, err)
	must(t, s.Stop())
	for range w.ResultChan() {
	}
	if s.API.Running() || s.Etcd.Running() {
		t.Error("a process is running after Stop")
	}
}

func testPause(t *testing.T, s *Server) {
	d := client(t, s.Config())
	must(t, s.API.Pause())
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := d.Resource(namespaces).List(ctx, metav1.ListOptions{}); err == nil {
		t.Error("a paused API server answers")
	}
	must(t, s.API.Resume())
	if _, err := d.Resource(namespaces).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
}

// A watch from a compacted revision that is in no cache ends with 410, and so does
// a list at that revision.
func TestCompactionGivesGone(t *testing.T) {
	s := Start(t)
	d := client(t, s.Config())
	must(t, s.Apply(t.Context(), shop))
	old := get(t, d, services, "shop", "cart").GetResourceVersion()
	for _, team := range []string{"a", "b"} {
		must(t, s.Apply(t.Context(), `{apiVersion: v1, kind: Service, metadata: {name: cart, namespace: shop, labels: {team: `+team+`}}, spec: {ports: [{name: http, port: 80}]}}`))
	}
	if e := firstEvent(t, d, old); e.Type != watch.Modified {
		t.Errorf("before: %s %v, want the first change", e.Type, e.Object)
	}
	must(t, s.Compact(t.Context()))
	must(t, s.API.Restart(t.Context()))
	if e := firstEvent(t, d, old); e.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) && !apierrors.IsGone(apierrors.FromObject(e.Object)) {
		t.Errorf("after: %s %v, want 410", e.Type, e.Object)
	}
	_, err := d.Resource(services).List(t.Context(), metav1.ListOptions{ResourceVersion: old, ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("list: %v, want 410", err)
	}
}

// firstEvent returns the first event of a watch on services from a revision, or
// an error event if the API server refuses the watch.
func firstEvent(t *testing.T, d dynamic.Interface, revision string) watch.Event {
	t.Helper()
	w, err := d.Resource(services).Namespace("shop").Watch(t.Context(), metav1.ListOptions{ResourceVersion: revision})
	if status := apierrors.APIStatus(nil); err != nil {
		var ok bool
		if status, ok = err.(apierrors.APIStatus); !ok {
			t.Fatal(err)
		}
		s := status.Status()
		return watch.Event{Type: watch.Error, Object: &s}
	}
	defer w.Stop()
	select {
	case e := <-w.ResultChan():
		return e
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
		return watch.Event{}
	}
}
