package kubetest

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	once  = `{apiVersion: v1, kind: Namespace, metadata: {name: far, labels: {more: "1"}}}`
	twice = `{apiVersion: v1, kind: Namespace, metadata: {name: far, labels: {more: "2"}}}`
	plain = `{apiVersion: v1, kind: Namespace, metadata: {name: far}}`
)

func testProxy(t *testing.T, s *Server) {
	must(t, s.Apply(t.Context(), plain))
	defer func() { must(t, s.Delete(t.Context(), plain)) }()
	p, err := s.Proxy(s.Config())
	must(t, err)
	defer p.Close()
	d := client(t, p.Config()).Resource(namespaces)
	before, err := d.List(t.Context(), metav1.ListOptions{})
	must(t, err)
	w, err := d.Watch(t.Context(), metav1.ListOptions{ResourceVersion: before.GetResourceVersion()})
	must(t, err)
	defer w.Stop()

	must(t, s.Apply(t.Context(), once))
	if got := label(t, <-w.ResultChan()); got != "1" {
		t.Errorf("the watch got label %q, want 1", got)
	}

	// A hanging watch gets its events after Resume.
	p.Hang()
	must(t, s.Apply(t.Context(), twice))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := d.List(ctx, metav1.ListOptions{}); err == nil {
		t.Error("a hanging proxy answered a list")
	}
	select {
	case e := <-w.ResultChan():
		t.Errorf("a hanging watch got %v", e)
	default:
	}
	p.Resume()
	if got := label(t, <-w.ResultChan()); got != "2" {
		t.Errorf("the watch got label %q, want 2", got)
	}

	// Cut ends the watch; the proxy forwards new requests.
	p.Cut()
	for range w.ResultChan() {
	}
	_, err = d.List(t.Context(), metav1.ListOptions{})
	must(t, err)
}

func label(t *testing.T, e watch.Event) string {
	t.Helper()
	u, ok := e.Object.(*unstructured.Unstructured)
	if !ok {
		t.Fatalf("event %+v", e)
	}
	return u.GetLabels()["more"]
}

func testProxyIntercepts(t *testing.T, s *Server) {
	p, err := s.Proxy(s.Config())
	must(t, err)
	defer p.Close()
	d := client(t, p.Config())

	p.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasPrefix(r.URL.Path, "/api/v1/namespaces") {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"NamespaceList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`)
		return true
	})
	l, err := d.Resource(namespaces).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if len(l.Items) != 0 {
		t.Errorf("%d namespaces, want the empty list that Intercept returns", len(l.Items))
	}
	if l, err = d.Resource(services).List(t.Context(), metav1.ListOptions{}); err != nil || len(l.Items) == 0 {
		t.Errorf("services: %v, %v, want the services of the API server", l, err)
	}

	p.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	})
	if _, err := d.Resource(services).List(t.Context(), metav1.ListOptions{}); !apierrors.IsTooManyRequests(err) {
		t.Errorf("%v, want too many requests", err)
	}
	p.Intercept(nil)
	_, err = d.Resource(namespaces).Get(t.Context(), "default", metav1.GetOptions{})
	must(t, err)
}
