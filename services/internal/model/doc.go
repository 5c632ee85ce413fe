// Package model is the world and what may be asked of it: keys, values,
// overlays, diagnostics, the World at a position, the PushContext that indexes
// it for generation, proxies and their classes.
//
// A PushContext is made of indexes, one for each idea (raw resources,
// services, endpoints, VirtualServices, rules, Gateways). Each is immutable
// and has an edit, which takes in objects as they were and as they are, names
// the inputs that differ and makes the next index; what does not change is
// shared. Objects that only one can have, a host above all, go to the one that
// wins: by source priority, then age, then name.
//
// It is pure: no context, clock, log, goroutine or IO, and it knows nothing of
// events. Everything is immutable once made and safe for concurrent use.
package model
