package kubeconv

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/problem"
)

// OwnEndpoints says of a Service that it selects no pods: whoever made it writes
// its endpoints.
func OwnEndpoints(s *corev1.Service) bool {
	return len(s.Spec.Selector) == 0 && s.Spec.Type != corev1.ServiceTypeExternalName
}

// Unmirrored says of the Endpoints of a Service with OwnEndpoints and without a
// single EndpointSlice that nobody sees them: meshlog reads slices alone, and no
// controller has made one of these; nil: there are none to see. It is not worth
// it to watch Endpoints for this: ask for those of such Services.
func Unmirrored(e *corev1.Endpoints) *problem.Diagnostic { //nolint:staticcheck // what is deprecated is what this looks for
	if len(e.Subsets) == 0 {
		return nil
	}
	d := &problem.Diagnostic{
		Severity: problem.Warning, Code: "unmirrored",
		Key:    ident.Key{Kind: "Service", Namespace: e.Namespace, Name: e.Name},
		Reason: "its endpoints are in an Endpoints object only, of which no controller has made an EndpointSlice",
		Advice: "write an EndpointSlice with the label " + SliceLabel + ": " + e.Name,
		Effect: "the Service has no endpoints",
	}
	if e.Labels[discoveryv1.LabelSkipMirror] == "true" {
		d.Advice = "remove the label " + discoveryv1.LabelSkipMirror + " from the Endpoints, or write an EndpointSlice"
	}
	return d
}
