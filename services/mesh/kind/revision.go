package kind

// RevisionLabel names the revision of the control plane that an object is for, as in
// Istio.
const RevisionLabel = "istio.io/rev"

// InRevision reports whether the control plane of a revision sees an object of k with
// these labels (REV-1): it does if the object names no other revision. An empty
// revision sees all. Services, Namespaces and other objects of Kubernetes itself belong
// to every revision: there the label has other meanings.
func (k *Kind) InRevision(revision string, labels map[string]string) bool {
	of, named := labels[RevisionLabel]
	return revision == "" || !named || of == revision || k.Form == Converted
}
