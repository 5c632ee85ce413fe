package admission

import (
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshlog.dev/services/mesh/problem"
)

// ProbeLabel marks the ConfigMap with which the webhook tests itself: only such ConfigMaps
// are sent to it.
const ProbeLabel = "meshlog.dev/admission-probe"

// ProbeName is the name of that ConfigMap. It is never stored: the process that sends it
// asks for a dry run.
const ProbeName = "meshlog-admission-probe"

const (
	probeField = "object"
	// probeObject is invalid for its timeout.
	probeObject = `{"apiVersion":"networking.istio.io/v1","kind":"VirtualService","metadata":{"name":"probe","namespace":"default"},` +
		`"spec":{"hosts":["probe.invalid"],"http":[{"timeout":"-1s","redirect":{"uri":"/"}}]}}`
	probeRefused = "spec.http[0].timeout"
)

// Probe returns a ConfigMap that holds an invalid object, which the webhook must refuse. A
// ConfigMap, because each cluster has that kind, and a process that may create this one
// changes no configuration with it.
func Probe(namespace string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: ProbeName, Namespace: namespace, Labels: map[string]string{ProbeLabel: "true"}},
		Data:       map[string]string{probeField: probeObject},
	}
}

// ProbeRefused reports whether the API server refused the probe because the webhook found
// the object in it invalid.
func ProbeRefused(err error) bool {
	return err != nil && strings.Contains(err.Error(), probeWebhook) && strings.Contains(err.Error(), probeRefused)
}

// reviewProbe reviews the object in a probe, which is refused unless that is valid.
func reviewProbe(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	outer, err := fields(r.Object.Raw)
	var text string
	if data, _ := outer["data"].(map[string]any); data != nil {
		text, _ = data[probeField].(string)
	}
	object, inner := fields([]byte(text))
	if err != nil || inner != nil {
		return refusal(r, []problem.Diagnostic{{Severity: problem.Error, Field: "data." + probeField, Reason: "is no object in JSON", Advice: "remove the label " + ProbeLabel}})
	}
	if problems := Problems(object); len(problems) > 0 {
		return refusal(r, problems)
	}
	return &admissionv1.AdmissionResponse{UID: r.UID, Allowed: true}
}
