// Package validate finds what is wrong in the message of an object, kind by
// kind, before anything is built from it. A field that has no effect in this
// build is a problem too, of lower severity.
//
// It is pure.
package validate

//go:generate go run ./gen
