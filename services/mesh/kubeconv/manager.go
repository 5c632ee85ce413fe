package kubeconv

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Manager returns the field manager that last wrote an object outside its status,
// according to its managed fields, or "". Of several at the same time it returns
// the last by name. It compares only times of the API server's clock.
func Manager(fields []metav1.ManagedFieldsEntry) string {
	var last *metav1.ManagedFieldsEntry
	for i := range fields {
		if f := &fields[i]; f.Subresource != "status" && (last == nil || later(f, last)) {
			last = f
		}
	}
	if last == nil {
		return ""
	}
	return last.Manager
}

func later(a, b *metav1.ManagedFieldsEntry) bool {
	switch {
	case a.Time.Equal(b.Time):
		return a.Manager > b.Manager
	case b.Time == nil:
		return true
	}
	return b.Time.Before(a.Time) // false if a has no time
}
