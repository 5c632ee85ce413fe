package index

import "slices"

// Values of exportTo that are no namespaces (VIS-1).
const (
	exportOwn  = "."
	exportAll  = "*"
	exportNone = "~"
)

// visibilityOf reads an object's exportTo; without one the mesh's default
// counts. "*" wins over everything, then "~".
func visibilityOf(exportTo, byDefault []string, namespace string) Visibility {
	if len(exportTo) == 0 {
		exportTo = byDefault
	}
	switch {
	case slices.Contains(exportTo, exportAll) || len(exportTo) == 0:
		return Visibility{exportAll}
	case slices.Contains(exportTo, exportNone):
		return Visibility{exportNone}
	}
	v := make(Visibility, 0, len(exportTo))
	for _, to := range exportTo {
		if to == namespace {
			to = exportOwn
		}
		v = append(v, to)
	}
	return sortUnique(v)
}

// sortUnique sorts texts and keeps one of each.
func sortUnique[S ~[]string](s S) S {
	slices.Sort(s)
	return slices.Compact(s)
}

// Public reports whether all namespaces see it.
func (v Visibility) Public() bool { return len(v) == 1 && v[0] == exportAll }

// namespaces returns the namespaces that see an object that is not public.
func (v Visibility) namespaces(own string) []string {
	if v.Public() || slices.Contains(v, exportNone) {
		return nil
	}
	names := make([]string, 0, len(v))
	for _, to := range v {
		if to == exportOwn {
			to = own
		}
		names = append(names, to)
	}
	return names
}

// Shows reports whether a proxy of a namespace sees an object of namespace own.
func (v Visibility) Shows(own, namespace string) bool {
	if v.Public() {
		return true
	}
	if namespace == own && slices.Contains(v, exportOwn) {
		return true
	}
	return namespace != "" && namespace != own && slices.Contains(v, namespace)
}

// meets reports whether some namespace sees both objects.
func (v Visibility) meets(own string, o Visibility, other string) bool {
	if v.Public() || o.Public() {
		return !slices.Contains(v, exportNone) && !slices.Contains(o, exportNone)
	}
	theirs := o.namespaces(other)
	return slices.ContainsFunc(v.namespaces(own), func(ns string) bool { return slices.Contains(theirs, ns) })
}
