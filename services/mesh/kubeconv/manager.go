package kubeconv

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Manager is the field manager that wrote the content of an object last, as far
// as its managed fields tell: status and other observations do not count. Of
// several at one time the last by name counts. Times are only compared with
// each other: they are of the API server's clock. It is empty where nobody is
// named.
func Manager(fields []metav1.ManagedFieldsEntry) string {
	if i := newest(fields); i >= 0 {
		return fields[i].Manager
	}
	return ""
}

// newest is the index of the entry that Manager is of; -1: there is none.
func newest(fields []metav1.ManagedFieldsEntry) int {
	at := -1
	for i := range fields {
		if fields[i].Subresource != statusSubresource && (at < 0 || later(&fields[i], &fields[at])) {
			at = i
		}
	}
	return at
}

const statusSubresource = "status"

func later(a, b *metav1.ManagedFieldsEntry) bool {
	switch {
	case a.Time == nil || b.Time == nil:
		if (a.Time == nil) != (b.Time == nil) {
			return b.Time == nil
		}
	case !a.Time.Equal(b.Time):
		return b.Time.Before(a.Time)
	}
	return a.Manager > b.Manager
}
