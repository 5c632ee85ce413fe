// Package validate finds the problems in the message of an object, kind by kind,
// before a builder uses it, and names their fields. The tests of mesh/trial prove
// for every field that generation refuses nothing that this package accepts.
//
// A field that has no effect in this build is a warning: a row in effects.go and
// a call of noEffect in the file of its kind, always both. Messages of good
// objects are checked without an allocation.
//
// It is pure.
package validate

//go:generate go run ./gen
