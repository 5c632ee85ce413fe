// Package simulate finds out what a proxy does with a call: which clusters and endpoints
// the call would reach, and whether policies allow it. It walks a proxy's listeners, the
// filters of policies, routes, clusters and endpoints as Envoy does, without an Envoy.
//
// It knows the features that mesh/xds generates and that raw resources commonly use.
// Outcome.Notes lists the features of a call that it does not know. If it does not know
// one that decides whether a call is allowed, Outcome.Unknown says so: the outcome is never
// "allowed" by mistake.
//
// It takes as given what it is told about the caller: an identity is one of a verified
// certificate, and a token that is not Invalid has a good signature. It is pure.
package simulate
