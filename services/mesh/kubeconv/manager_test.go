package kubeconv_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshlog.dev/services/mesh/kubeconv"
)

func TestManager(t *testing.T) {
	at := func(manager, subresource string, second int) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{
			Manager: manager, Subresource: subresource, Operation: metav1.ManagedFieldsOperationUpdate,
			Time: &metav1.Time{Time: time.Unix(int64(second), 0)},
		}
	}
	timeless := metav1.ManagedFieldsEntry{Manager: "before-first-apply"}
	for name, c := range map[string]struct {
		fields []metav1.ManagedFieldsEntry
		want   string
	}{
		"none":                  {nil, ""},
		"newest":                {[]metav1.ManagedFieldsEntry{at("helm", "", 1), at("kubectl-edit", "", 9), at("argocd-controller", "", 5)}, "kubectl-edit"},
		"status does not count": {[]metav1.ManagedFieldsEntry{at("helm", "", 1), at("istiod", "status", 9)}, "helm"},
		"only status":           {[]metav1.ManagedFieldsEntry{at("istiod", "status", 9)}, ""},
		"scale counts":          {[]metav1.ManagedFieldsEntry{at("helm", "", 1), at("keda", "scale", 9)}, "keda"},
		"a tie":                 {[]metav1.ManagedFieldsEntry{at("b", "", 1), at("c", "", 1), at("a", "", 1)}, "c"},
		"without a time":        {[]metav1.ManagedFieldsEntry{timeless, at("helm", "", 1)}, "helm"},
		"all without":           {[]metav1.ManagedFieldsEntry{timeless, {Manager: "a"}}, "before-first-apply"},
	} {
		if got := kubeconv.Manager(c.fields); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		slices.Reverse(c.fields)
		if got := kubeconv.Manager(c.fields); got != c.want {
			t.Errorf("%s, in reverse order: %q, want %q", name, got, c.want)
		}
	}
}

// TestUnmirrored checks that Endpoints without slices are reported, except empty ones and
// those of a Service with a selector.
func TestUnmirrored(t *testing.T) {
	for spec, want := range map[string]bool{
		"{clusterIP: 10.0.0.1}":                              true,
		"{clusterIP: None}":                                  true,
		"{selector: {app: web}}":                             false,
		"{type: ExternalName, externalName: db.example.com}": false,
	} {
		if got := kubeconv.OwnEndpoints(read[corev1.Service](t, "spec: "+spec)); got != want {
			t.Errorf("%s: %t, want %t", spec, got, want)
		}
	}
	e := read[corev1.Endpoints](t, "metadata: {name: db, namespace: prod}\nsubsets: [{addresses: [{ip: 192.168.0.9}], ports: [{port: 5432}]}]") //nolint:staticcheck // Unmirrored is about the deprecated type
	d := kubeconv.Unmirrored(e)
	if d == nil || d.Key.String() != "Service prod/db" || d.Reason == "" || d.Effect == "" {
		t.Fatalf("got %+v", d)
	}
	e.Labels = map[string]string{discoveryv1.LabelSkipMirror: "true"}
	if skipped := kubeconv.Unmirrored(e); skipped.Advice == d.Advice {
		t.Error("the advice does not name the label that prevents mirroring")
	}
	e.Subsets = nil
	if d := kubeconv.Unmirrored(e); d != nil {
		t.Errorf("Endpoints without addresses: %+v", d)
	}
}
