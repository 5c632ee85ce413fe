package kubeconv

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"meshlog.dev/services/nearest"
)

// meant returns the field that the last one of a path, which an object of this type does
// not have, probably means.
func meant(t reflect.Type, path string) (name string, ok bool) {
	parts := strings.Split(path, ".")
	last := len(parts) - 1
	for _, part := range parts[:last] {
		part, _, _ = strings.Cut(part, "[")
		if t = fieldsOf(element(t))[part]; t == nil {
			return "", false
		}
	}
	var known []string
	for name := range fieldsOf(element(t)) {
		known = append(known, name)
	}
	slices.Sort(known)
	return nearest.Name(parts[last], known)
}

// element returns the type of the values that t points to or holds.
func element(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	return t
}

// fieldsOf returns the types of a struct's fields by their names in JSON; nil for others.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	if t.Kind() != reflect.Struct {
		return nil
	}
	all := map[string]reflect.Type{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && name != "-" {
			all[name] = f.Type
		} else if f.Anonymous {
			maps.Copy(all, fieldsOf(element(f.Type)))
		}
	}
	return all
}
