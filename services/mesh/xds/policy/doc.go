// Package policy makes the HTTP filters that enforce policies: one for each slot of the
// connection managers. They come apart from the listeners, by ECDS, so a changed policy
// holds for the next request on every connection that stands (POL-1).
//
// It is pure.
package policy
