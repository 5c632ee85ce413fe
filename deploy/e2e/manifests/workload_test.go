package manifests

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// workload is a Deployment or a StatefulSet.
type workload struct {
	Name, Namespace string
	Replicas        int
	Template        corev1.PodTemplateSpec
	claims          []string // volumes that a StatefulSet creates
}

// workloadOf returns the workload of an object, if it has one.
func workloadOf(t *testing.T, u *unstructured.Unstructured) (*workload, bool) {
	t.Helper()
	w := &workload{Name: u.GetName(), Namespace: u.GetNamespace(), Replicas: 1}
	var replicas *int32
	switch u.GetKind() {
	case "Deployment":
		d := as[appsv1.Deployment](t, u.Object)
		w.Template, replicas = d.Spec.Template, d.Spec.Replicas
	case "StatefulSet":
		s := as[appsv1.StatefulSet](t, u.Object)
		w.Template, replicas = s.Spec.Template, s.Spec.Replicas
		for _, c := range s.Spec.VolumeClaimTemplates {
			w.claims = append(w.claims, c.Name)
		}
	default:
		return nil, false
	}
	if replicas != nil {
		w.Replicas = int(*replicas)
	}
	return w, true
}

// workloads returns all workloads, with the minimum of replicas that their
// autoscalers set.
func workloads(t *testing.T, all []*unstructured.Unstructured) map[string]*workload {
	t.Helper()
	out := map[string]*workload{}
	for _, u := range all {
		if w, ok := workloadOf(t, u); ok {
			out[w.Name] = w
		}
	}
	for _, u := range all {
		if u.GetKind() == "HorizontalPodAutoscaler" {
			h := as[autoscalingv2.HorizontalPodAutoscaler](t, u.Object)
			out[h.Spec.ScaleTargetRef.Name].Replicas = int(*h.Spec.MinReplicas)
		}
	}
	return out
}

// podNames returns the names of its pods; a real Deployment chooses other names.
func (w *workload) podNames() (names []string) {
	for i := range w.Replicas {
		names = append(names, fmt.Sprintf("%s-%d", w.Name, i))
	}
	return names
}
