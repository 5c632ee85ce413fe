package admission

import (
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// ADM-2, ADM-5: which objects and namespaces a webhook gets; ADM-3: how long the API server
// waits.
func TestRevision(t *testing.T) {
	for _, revision := range []string{"", "canary"} {
		all := Webhooks(Options{Namespace: "meshlog", Revision: revision, Policy: admissionregistrationv1.Fail})
		asked := func(namespace string, object map[string]string) bool {
			n := 0
			for _, w := range all[:len(all)-1] { // without the probe's
				if selects(t, w.NamespaceSelector, map[string]string{"kubernetes.io/metadata.name": namespace}) && selects(t, w.ObjectSelector, object) {
					n++
				}
				if *w.FailurePolicy != admissionregistrationv1.Fail || *w.TimeoutSeconds != 5 || *w.SideEffects != admissionregistrationv1.SideEffectClassNone {
					t.Errorf("%s: %v", w.Name, w)
				}
			}
			if n > 1 {
				t.Errorf("an object %v is sent twice", object)
			}
			return n == 1
		}
		of := func(revision string) map[string]string { return map[string]string{"istio.io/rev": revision} }
		if !asked("shop", nil) || !asked("shop", of("canary")) || asked("shop", of("stable")) != (revision == "") {
			t.Errorf("revision %q: no label %v, canary %v, stable %v", revision, asked("shop", nil), asked("shop", of("canary")), asked("shop", of("stable")))
		}
		if asked("meshlog", nil) || asked("kube-system", nil) {
			t.Errorf("revision %q: an excluded namespace is checked", revision)
		}
	}
	if a, b := ConfigurationName(""), ConfigurationName("A_b"); a != "meshlog-admission" || b != "meshlog-admission-a-b" {
		t.Errorf("names %s, %s", a, b)
	}
}

func selects(t *testing.T, s *metav1.LabelSelector, object map[string]string) bool {
	t.Helper()
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		t.Fatal(err)
	}
	return selector.Matches(labels.Set(object))
}
