// Package patch applies the patches of EnvoyFilters to what other parts make.
//
// A part of a class that EnvoyFilters select is put into a part of this package, which makes
// its pieces and patches each of them: that of a virtual host or of a filter chain too. It
// reads the patches that can match the piece, by the places that the index tells apart, so a
// patch that changes makes only these pieces again (EF-10).
//
// A patch whose result Envoy would refuse, or that changes what policies decide and may not,
// is left out, and all others of the piece are applied (EF-9, POL-17).
//
// It is pure.
package patch
