package kubeconv

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"meshlog.dev/services/internal/model"
)

// Unmirrored says of a Service, of which those are all slices, that it has
// endpoints which nobody sees: meshlog reads EndpointSlices only, and no
// controller has made any of its Endpoints object; nil: all is well. Only a
// Service for which LacksSlices may be that, so it is not worth it to watch
// Endpoints for this.
func Unmirrored(s *corev1.Service, slices []*discoveryv1.EndpointSlice, endpoints *corev1.Endpoints) *model.Diagnostic { //nolint:staticcheck // what is deprecated is what this looks for
	if !LacksSlices(s, slices) || endpoints == nil || len(endpoints.Subsets) == 0 {
		return nil
	}
	d := &model.Diagnostic{
		Severity: model.Warning, Code: "unmirrored",
		Key:    model.Key{Kind: "Service", Namespace: s.Namespace, Name: s.Name},
		Reason: "its endpoints are in an Endpoints object only, of which no controller has made an EndpointSlice",
		Advice: "write an EndpointSlice with the label " + SliceLabel + ": " + s.Name,
		Effect: "the Service has no endpoints",
	}
	if endpoints.Labels[discoveryv1.LabelSkipMirror] == "true" {
		d.Advice = "remove the label " + discoveryv1.LabelSkipMirror + " from the Endpoints, or write an EndpointSlice"
	}
	return d
}

// LacksSlices says of a Service, of which those are all slices, that somebody
// else was to write its endpoints, and wrote no slice.
func LacksSlices(s *corev1.Service, slices []*discoveryv1.EndpointSlice) bool {
	return len(slices) == 0 && len(s.Spec.Selector) == 0 && s.Spec.Type != corev1.ServiceTypeExternalName
}
