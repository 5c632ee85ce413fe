package kubeconv

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Manager returns the field manager that last wrote an object outside its status,
// according to its managed fields, or "". Of several at the same time it returns
// the last by name. It compares only times of the API server's clock.
func Manager(fields []metav1.ManagedFieldsEntry) string {
	var last metav1.Time // zero as the time of an entry without one
	var manager string
	for _, f := range fields {
		later := cmp.Or(value(f.Time).Compare(last.Time), cmp.Compare(f.Manager, manager)) > 0
		if f.Subresource != "status" && later {
			last, manager = value(f.Time), f.Manager
		}
	}
	return manager
}
