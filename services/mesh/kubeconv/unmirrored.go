package kubeconv

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/problem"
)

// OwnEndpoints reports whether a Service selects no pods, so that its owner writes
// its endpoints.
func OwnEndpoints(s *corev1.Service) bool {
	return len(s.Spec.Selector) == 0 && s.Spec.Type != corev1.ServiceTypeExternalName
}

// Unmirrored returns the diagnostic for the Endpoints of a Service with
// OwnEndpoints and without any EndpointSlice, or nil if they are empty: meshlog
// reads only slices, and no controller has created one. Watching Endpoints for
// this is too expensive; the caller reads them for such Services.
func Unmirrored(e *corev1.Endpoints) *problem.Diagnostic { //nolint:staticcheck // finds uses of the deprecated type
	if len(e.Subsets) == 0 {
		return nil
	}
	d := &problem.Diagnostic{
		Severity: problem.Warning, Code: "unmirrored",
		Key:    ident.Key{Kind: "Service", Namespace: e.Namespace, Name: e.Name},
		Reason: "its endpoints are only in an Endpoints object, for which no controller has created an EndpointSlice",
		Advice: "write an EndpointSlice with the label " + SliceLabel + ": " + e.Name,
		Effect: "the Service has no endpoints",
	}
	if e.Labels[discoveryv1.LabelSkipMirror] == "true" {
		d.Advice = "remove the label " + discoveryv1.LabelSkipMirror + " from the Endpoints, or write an EndpointSlice"
	}
	return d
}
