// Package why finds out which objects made what a proxy is served, and which of their
// fields set which fields of it.
//
// It has no list of what goes into what. It makes the resource again in worlds that
// differ in one object or in one field, and compares. It is pure.
package why
